"""Configuration files in YAML, checked against the constructors of the parts without importing torch."""

from specexp.config.build import (
    build_analyses as build_analyses,
    build_data as build_data,
    build_pair as build_pair,
    build_parts as build_parts,
    check_rows as check_rows,
    missing_engine as missing_engine,
    no_room as no_room,
    prompt_errors as prompt_errors,
)
from specexp.config.config import (
    Config as Config,
)
from specexp.config.layers import CommandError as CommandError, ConfigError as ConfigError
from specexp.config.load import ComposedArm as ComposedArm, arms_of as arms_of, load_config as load_config
from specexp.config.schema import Generation as Generation
