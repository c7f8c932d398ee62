"""A part of the prompts of a recording or an evaluation, and the folder where one worker keeps it."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from specexp.artifacts.file_lock import held
from specexp.cluster.fleet import Status, Work
from specexp.cluster.lead import lead
from specexp.cluster.options import ClusterOptions
from specexp.config.command import fail
from specexp.config.config import Config
from specexp.config.errors import ConfigError
from specexp.config.files import COMMAND_LINE
from specexp.core.messages import counted

SHARDS = ".shards"
"""Folder inside the one of the whole, whose parts lie in ``0-of-3`` and so on."""

OPTION = "--shard"

Item = TypeVar("Item")


@dataclass(frozen=True)
class Shard:
    """One of several parts of equal size, in the order of the whole.

    Attributes:
        number: Which one, from 0.
        count: How many there are.
    """

    number: int
    count: int

    def of(self, items: Sequence[Item]) -> list[Item]:
        """Its part of a sequence; those of all shards one after another are the sequence."""
        start, end = (place * len(items) // self.count for place in (self.number, self.number + 1))
        return list(items[start:end])

    def folder(self, whole: Path) -> Path:
        """Where it lies."""
        return whole / SHARDS / f"{self.number}-of-{self.count}"


def take_shard(arguments: Sequence[str]) -> tuple[Shard | None, list[str]]:
    """Split ``--shard 0/3`` off a command line.

    Returns:
        The shard, None where the whole is meant; and everything else.

    Raises:
        ConfigError: It is none.
    """
    rest, given = list(arguments), None
    for place, one in enumerate(arguments):
        name, equals, value = one.partition("=")
        if name == OPTION:
            given = value if equals else "".join(arguments[place + 1 : place + 2])
            del rest[place : place + (1 if equals else 2)]
            break
    if given is None:
        return None, rest
    found = re.fullmatch(r"(\d+)/(\d+)", given)
    if found is None or int(found[1]) >= int(found[2]):
        raise ConfigError(
            f"{COMMAND_LINE}: {OPTION} is {given!r}; a number from 0 and how many shards there are is expected, such "
            "as 0/3, 1/3 and 2/3"
        )
    return Shard(int(found[1]), int(found[2])), rest


def shards_in(whole: Path) -> list[Shard]:
    """The shards of which a folder holds at least one, in order; none where there are none.

    Raises:
        ConfigError: There are some of several numbers of shards.
    """
    counts = {int(path.name.rpartition("-")[2]) for path in (whole / SHARDS).glob("*-of-*")}
    if len(counts) > 1:
        raise ConfigError(
            f"{whole / SHARDS} holds parts of {' and of '.join(map(str, sorted(counts)))} shards: remove those that "
            "are not meant"
        )
    return [Shard(number, count) for count in counts for number in range(count)]


@contextmanager
def ends_last(whole: Path, is_whole: Callable[[Path], bool]) -> Iterator[bool]:
    """Whether a worker whose shard is done puts all together, because no other is missing and no other worker does.

    Args:
        whole: Folder of the result.
        is_whole: Whether the folder of a shard holds all of it.
    """

    def all_are() -> bool:
        shards = shards_in(whole)
        return bool(shards) and all(is_whole(shard.folder(whole)) for shard in shards)

    if not all_are():
        yield False
        return
    with held(whole / SHARDS / ".lock") as mine:
        yield mine and all_are()  # whoever held it before may have put them together meanwhile


def forget_shards(whole: Path) -> None:
    """Remove the parts, once they are in the whole."""
    shutil.rmtree(whole / SHARDS, ignore_errors=True)


def lead_shards(
    command: str,
    typed: Sequence[str],
    options: ClusterOptions,
    whole: Path,
    config: Config,
) -> int:
    """Let each worker do a shard, and the last of them put the whole together.

    Args:
        command: The module, such as ``specexp.record``.
        typed: The command's arguments, those of the cluster left out.
        options: Where the workers are; there are as many shards.
        whole: Folder of the result, which every machine sees.
        config: The experiment, whose device and threads the workers need.

    Returns:
        The exit code: 1 where a worker failed; the same command then does what is missing.

    Raises:
        ConfigError: There is no such cluster, or it is too small.
    """
    console = Console(highlight=False, soft_wrap=True)
    gpus, threads = options.gpus_on(config.get("pair.device")), config.get("generation.threads")
    start = (sys.executable, "-m", command, *typed)
    logs = whole.parent / f".{whole.name}-workers"  # beside the whole, which may hold nothing else yet

    def run(works: Sequence[Work]) -> list[Status]:
        return lead(options, works, logs, gpus=gpus, threads=threads, console=console)

    shards = [
        Work(f"{whole.name} {number} of {options.workers}", (*start, OPTION, f"{number}/{options.workers}"))
        for number in range(options.workers)
    ]
    failed = [one for one in run(shards) if one.state == "failed"]
    if not failed and shards_in(whole):  # no worker was last, as where machines see each other's files late
        failed = [one for one in run([Work(f"{whole.name} whole", start)]) if one.state == "failed"]
    for one in failed:
        fail(f"{one.name} ended: {one.said or 'it was killed'}; the same command does what is missing", 1)
    if not failed:
        console.print(f"Done by {counted(options.workers, 'worker')}: {whole}", markup=False)
    return 1 if failed else 0
