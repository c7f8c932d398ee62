"""An evaluation whose prompts several workers decode: which can be split, and the records of the parts."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from specexp.artifacts.atomic_write import atomic_write
from specexp.artifacts.manifest import sha256
from specexp.cluster.shard import Shard
from specexp.config import Config, ConfigError, is_multi_sequence

if TYPE_CHECKING:
    from specexp.bench.experiment import ExperimentArms
    from specexp.bench.record import PromptRecord

WHOLE = "whole.txt"
"""A shard's digest of its configuration, written once all its prompts are decoded."""


def check_sharded(config: Config, experiment: ExperimentArms) -> None:
    """Refuse to split prompts where an answer's figures depend on the prompts before.

    Raises:
        ConfigError: One sentence with the arm or the analysis.
    """
    from specexp.bench.arm import EngineArm

    learning = [arm for arm in experiment.arms if isinstance(arm, EngineArm) and arm.parts.keeps_learning]
    why = ""
    if learning:
        why = f"arm {learning[0].name!r} goes on learning from prompt to prompt"
    elif experiment.analyses:
        why = f"{type(experiment.analyses[0]).__name__} watches all prompts"
    elif is_multi_sequence(config):
        why = "several sequences are decoded for a prompt"
    if why:
        raise ConfigError(
            f"{config.file}: {why}, so shards would measure something else: run it on one machine"
        )


def mark_whole(config: Config, folder: Path) -> None:
    """Say that all prompts of a shard are decoded."""
    atomic_write(folder / WHOLE, _digest(config))


def is_decoded(config: Config, folder: Path) -> bool:
    """Whether all prompts of a shard are decoded as the configuration says."""
    try:
        return (folder / WHOLE).read_text(encoding="utf-8") == _digest(config)
    except FileNotFoundError:  # or another worker has put all together
        return False


def gathered(
    config: Config, whole: Path, shards: Sequence[Shard], records: str, decode: Callable[[Shard], object]
) -> list[PromptRecord]:
    """The records of all shards, those of one that was killed decoded here.

    Args:
        config: Configuration of the experiment.
        whole: Folder of the results.
        shards: All of them, in order.
        records: Name of the file of records.
        decode: Decodes the prompts of a shard.
    """
    from specexp.bench.record import read_records, write_records

    found: list[PromptRecord] = []
    for shard in shards:
        if not is_decoded(config, shard.folder(whole)):
            decode(shard)
        found += read_records(shard.folder(whole) / records)
    path = whole / records
    path.unlink(missing_ok=True)
    write_records(path, found)
    return found


def _digest(config: Config) -> str:
    return sha256(json.dumps(config.to_dict(), sort_keys=True, default=str).encode())
