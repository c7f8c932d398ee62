"""Configuration: YAML files checked against the constructors of the parts, without importing torch."""

from specexp.config.arms import ComposedArm, arms_of
from specexp.config.build import (
    build_analyses,
    build_builder,
    build_controller,
    build_data,
    build_drafter,
    build_engine,
    build_execution,
    build_generation,
    build_latency,
    build_outline,
    build_pair,
    build_parts,
    build_reasoning,
    build_task_items,
    build_verifier,
    build_workload,
    check_parts,
    is_multi_sequence,
    prompts_error,
)
from specexp.config.config import (
    Config,
    apply_overrides,
    check_key,
    has_key,
    is_replayed,
    recording_folder,
)
from specexp.config.errors import ConfigError
from specexp.config.load import load_config
from specexp.config.resolved import save_resolved, unwritable
from specexp.config.schema import Generation
from specexp.config.swept import build_sweep

__all__ = [
    "ComposedArm",
    "Config",
    "ConfigError",
    "Generation",
    "apply_overrides",
    "arms_of",
    "build_analyses",
    "build_builder",
    "build_controller",
    "build_data",
    "build_drafter",
    "build_engine",
    "build_execution",
    "build_generation",
    "build_latency",
    "build_outline",
    "build_pair",
    "build_parts",
    "build_reasoning",
    "build_sweep",
    "build_task_items",
    "build_verifier",
    "build_workload",
    "check_key",
    "check_parts",
    "has_key",
    "is_multi_sequence",
    "is_replayed",
    "load_config",
    "prompts_error",
    "recording_folder",
    "save_resolved",
    "unwritable",
]
