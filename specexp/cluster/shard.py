"""Shards: parts of the prompts of a recording or an evaluation, one for each worker."""

from __future__ import annotations

import re
import shutil
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from specexp.artifacts.atomic_write import held
from specexp.cluster.launch import ClusterOptions, run_workers
from specexp.config.config import Config
from specexp.config.layers import COMMAND_LINE, ConfigError
from specexp.core.messages import counted

SHARDS = ".shards"
"""Folder of the parts, ``0-of-3`` and so on, inside the folder of the whole."""

OPTION = "--shard"

Item = TypeVar("Item")


@dataclass(frozen=True)
class Shard:
    """One of ``count`` parts of equal size, in the order of the whole."""

    number: int  # from 0
    count: int

    def of(self, items: Sequence[Item]) -> list[Item]:
        """Return its part of a sequence; the parts of all shards, one after the other, are the sequence."""
        start, end = (place * len(items) // self.count for place in (self.number, self.number + 1))
        return list(items[start:end])

    def folder(self, whole: Path) -> Path:
        """Return its folder inside the folder of the whole."""
        return whole / SHARDS / f"{self.number}-of-{self.count}"


def take_shard(arguments: Sequence[str]) -> tuple[Shard | None, list[str]]:
    """Split ``--shard 0/3`` off a command line; the shard is None without it. ConfigError if it is not a shard."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument(OPTION, nargs="?", const="")
    given, rest = parser.parse_known_args(list(arguments))
    if given.shard is None:
        return None, rest
    found = re.fullmatch(r"(\d+)/(\d+)", given.shard)
    if found is None or int(found[1]) >= int(found[2]):
        raise ConfigError(
            f"{COMMAND_LINE}: {OPTION} must be a shard's number and their count, such as 0/3, 1/3 and 2/3, got "
            f"{given.shard!r}"
        )
    return Shard(int(found[1]), int(found[2])), rest


def shards_in(whole: Path) -> list[Shard]:
    """Return all shards in order if the folder holds at least one of them; ConfigError if their counts differ."""
    counts = {int(path.name.rpartition("-")[2]) for path in (whole / SHARDS).glob("*-of-*")}
    if len(counts) > 1:
        found = " and of ".join(map(str, sorted(counts)))
        raise ConfigError(f"{whole / SHARDS} holds parts of {found} shards: remove the wrong ones")
    return [Shard(number, count) for count in counts for number in range(count)]


@contextmanager
def ends_last(whole: Path, is_whole: Callable[[Path], bool]) -> Iterator[bool]:
    """Yield whether this worker assembles the whole: all shards are done, and no other worker assembles it.

    Args:
        is_whole: Returns whether the folder of a shard is complete.
    """

    def all_done() -> bool:
        shards = shards_in(whole)
        return bool(shards) and all(is_whole(shard.folder(whole)) for shard in shards)

    if not all_done():  # the folder of the lock may not exist yet
        yield False
        return
    with held(whole / SHARDS / ".lock") as locked:
        yield locked and all_done()  # another worker may have assembled them since


def forget_shards(whole: Path) -> None:
    """Remove the assembled parts."""
    shutil.rmtree(whole / SHARDS, ignore_errors=True)


def run_shards(
    command: str, typed: Sequence[str], options: ClusterOptions, whole: Path, config: Config
) -> int:
    """Run one worker per shard; the last to end assembles the whole. Return the exit code, 1 if one failed.

    Args:
        command: The module, such as ``specexp.record``.
        typed: The command's arguments without those of the cluster.
        whole: Folder of the result, which all machines share.
    """
    start = (sys.executable, "-m", command, *typed)
    run = partial(
        run_workers,
        options,
        folder=whole.parent / f".{whole.name}-workers",  # outside the whole, which must be empty at first
        gpus=options.gpus_on(config.get("pair.device")),
        threads=config.get("generation.threads") or 1,
    )
    count = options.workers
    status = run({f"{whole.name} {n} of {count}": (*start, OPTION, f"{n}/{count}") for n in range(count)})
    if status == 0 and shards_in(whole):  # no worker was last: a shared file system may show files late
        status = run({f"{whole.name} whole": start})
    if status == 0:
        print(f"Done by {counted(count, 'worker')}: {whole}")
    return status
