"""Reading a configuration: composed, overridden and checked, in about a second."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from specexp.config.arms import check_arms
from specexp.config.build import check_parts, is_multi_sequence
from specexp.config.config import Config, is_replayed
from specexp.config.errors import ConfigError
from specexp.config.files import parse_overrides, read_layers
from specexp.config.sweep import METHOD
from specexp.config.swept import check_sweep


def check_replay(config: Config) -> None:
    """Raise if a recording cannot answer the experiment, or is not used by it. The recording is not read.

    Raises:
        ConfigError: one sentence.
    """
    if not is_replayed(config):
        if config.get("recording") is not None and config.get("what_if") is None:
            raise config.checker.error(
                ("recording",),
                f" is {config.get('recording')!r} and backend is live, which runs the models: set backend to replay, "
                "or leave recording out",
            )
        return
    where = f"{config.source_of(('backend',))}: backend is replay"
    if is_multi_sequence(config) or _searches_execution(config):
        raise ConfigError(
            f"{where}, and the experiment decodes several sequences for a prompt, which overlap on the device as no "
            "recording tells: leave execution and TaskItems out, or set backend to live"
        )
    if config.get("latency") is None:
        raise ConfigError(
            f"{where}, whose seconds are those of a latency profile, and there is no latency: measure one with python "
            "-m specexp.profile and name its artifact, or write one by hand as in configs/latency"
        )


def _searches_execution(config: Config) -> bool:
    sweep = config.get("sweep") or {"space": {}, "enqueue": []}
    keys = [*sweep["space"], *(key for known in sweep["enqueue"] for key in known)]
    return any(key.partition(".")[0] == "execution" for key in keys)


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
