"""Configuration files in YAML, checked against the constructors of the parts without importing torch."""

from specexp.config.build import (
    build_analyses as build_analyses,
    build_builder as build_builder,
    build_controller as build_controller,
    build_data as build_data,
    build_drafter as build_drafter,
    build_engine as build_engine,
    build_execution as build_execution,
    build_latency as build_latency,
    build_outline as build_outline,
    build_pair as build_pair,
    build_parts as build_parts,
    build_reasoning as build_reasoning,
    build_task_items as build_task_items,
    build_verifier as build_verifier,
    build_workload as build_workload,
    check_rows as check_rows,
    is_multi_sequence as is_multi_sequence,
    missing_engine as missing_engine,
    no_room as no_room,
    prompt_errors as prompt_errors,
)
from specexp.config.config import (
    Config as Config,
    apply_overrides as apply_overrides,
    has_key as has_key,
    is_replayed as is_replayed,
    recording_folder as recording_folder,
    save_resolved as save_resolved,
)
from specexp.config.layers import CommandError as CommandError, ConfigError as ConfigError
from specexp.config.load import ComposedArm as ComposedArm, arms_of as arms_of, load_config as load_config
from specexp.config.schema import Generation as Generation
