"""Reading a configuration: composed, overridden and checked, in about a second."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from specexp.config.arms import check_arms
from specexp.config.build import check_parts
from specexp.config.config import Config
from specexp.config.files import parse_overrides, read_layers
from specexp.config.methods import METHOD
from specexp.config.replayed import check_replay
from specexp.config.swept import check_sweep


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read, compose, override and check a file; torch is not imported.

    Args:
        path: YAML; ``compose:`` names files to lay under it.
        overrides: ``--dotted.key value`` or ``--dotted.key=value``, later ones win.

    Raises:
        ConfigError: one sentence with file, key, value and what is allowed.

    Example:
        >>> load_config("experiments/tree_shape.yaml", ["--generation.seed", "1"])  # doctest: +SKIP
    """
    config = Config(read_layers(path, overrides), str(path))
    config.typed = parse_overrides(overrides)
    check_replay(config)
    varied = (config.get("sweep") or {}).get("space", {})
    if not varied.keys() & {"builder", "drafter", METHOD}:
        check_parts(config)
    check_arms(config)
    check_sweep(config)
    return config
