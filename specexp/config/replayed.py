"""Experiments answered by a recording instead of models: what no recording can answer."""

from __future__ import annotations

from specexp.config.build import is_multi_sequence
from specexp.config.config import Config, is_replayed
from specexp.config.errors import ConfigError


def check_replay(config: Config) -> None:
    """Refuse what no recording can answer, and a recording that nobody asks; the recording itself is not read.

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
