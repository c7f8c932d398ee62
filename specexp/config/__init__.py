"""Configuration files in YAML, checked against the constructors of the parts without importing torch."""

from specexp.config.build import (
    build_analyses,
    build_builder,
    build_controller,
    build_data,
    build_drafter,
    build_engine,
    build_execution,
    build_latency,
    build_outline,
    build_pair,
    build_parts,
    build_reasoning,
    build_task_items,
    build_verifier,
    build_workload,
    is_multi_sequence,
    prompts_error,
)
from specexp.config.config import (
    Config,
    apply_overrides,
    has_key,
    is_replayed,
    recording_folder,
    save_resolved,
)
from specexp.config.layers import CommandError, ConfigError
from specexp.config.load import ComposedArm, arms_of, load_config
from specexp.config.schema import Generation

__all__ = [
    "CommandError",
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
    "build_latency",
    "build_outline",
    "build_pair",
    "build_parts",
    "build_reasoning",
    "build_task_items",
    "build_verifier",
    "build_workload",
    "has_key",
    "is_multi_sequence",
    "is_replayed",
    "load_config",
    "prompts_error",
    "recording_folder",
    "save_resolved",
]
