"""Shards, the parts into which the prompts of a recording or evaluation are split, one per worker."""

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
from specexp.base.messages import counted
from specexp.cluster.launch import USAGE, ClusterOptions, run_workers, take_options
from specexp.config.command import STARTS_OVER, fail, run_command
from specexp.config.layers import COMMAND_LINE, ConfigError

SHARDS = ".shards"
"""Name of the subfolder of the result's folder that holds one folder per shard, such as ``0-of-3``."""

OPTION = "--shard"

Item = TypeVar("Item")


@dataclass(frozen=True)
class Shard:
    """One of ``count`` consecutive parts of nearly equal size."""

    number: int  # from 0
    count: int

    def of(self, items: Sequence[Item]) -> list[Item]:
        """Return this shard's part of a sequence. The shards' parts, in order, make up the whole sequence."""
        start, end = (place * len(items) // self.count for place in (self.number, self.number + 1))
        return list(items[start:end])

    def folder(self, whole: Path) -> Path:
        """Return this shard's folder within ``whole``, the folder of the complete result."""
        return whole / SHARDS / f"{self.number}-of-{self.count}"


def take_shard(arguments: Sequence[str], on_workers: bool = False) -> tuple[Shard | None, list[str]]:
    """Split ``--shard`` (such as ``--shard 0/3``) from the rest of a command line. Without it, the shard is None.

    Raises ConfigError if the value is invalid, or if ``on_workers``, because each worker gets its own shard.
    """
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument(OPTION, nargs="?", const="")
    given, rest = parser.parse_known_args(list(arguments))
    if given.shard is None:
        return None, rest
    if on_workers:
        raise ConfigError(f"{COMMAND_LINE}: {OPTION} must not be given with --on, which gives each worker its shard")
    found = re.fullmatch(r"(\d+)/(\d+)", given.shard)
    if found is None or int(found[1]) >= int(found[2]):
        raise ConfigError(
            f"{COMMAND_LINE}: {OPTION} must be NUMBER/COUNT with a number from 0 to COUNT - 1, such as 0/3, got "
            f"{given.shard!r}"
        )
    return Shard(int(found[1]), int(found[2])), rest


def run_sharded(usage: str, arguments: Sequence[str] | None, act: Callable[..., int], after: str = STARTS_OVER) -> int:
    """Run a command as `run_command` does, with the options for workers and shards.

    ``act`` also gets ``cluster``, ``shard`` and ``typed`` (the arguments without the worker options).
    """
    try:
        cluster, typed = take_options(sys.argv[1:] if arguments is None else arguments)
        shard, rest = take_shard(typed, cluster is not None)
    except ConfigError as error:
        return fail(error)
    act = partial(act, cluster=cluster, shard=shard, typed=typed)
    return run_command(f"{usage}\n{USAGE}", rest, act, after=after)


def shards_in(whole: Path) -> list[Shard]:
    """Return all shards in order, or an empty list if there are none. Raises ConfigError if their counts differ."""
    counts = {int(path.name.rpartition("-")[2]) for path in (whole / SHARDS).glob("*-of-*")}
    if len(counts) > 1:
        found = " and ".join(map(str, sorted(counts)))
        raise ConfigError(f"{whole / SHARDS} has shards of different counts ({found}): remove the wrong ones")
    return [Shard(number, count) for count in counts for number in range(count)]


@contextmanager
def ends_last(whole: Path, is_whole: Callable[[Path], bool]) -> Iterator[bool]:
    """Yield whether this worker must assemble the result, because all shards are done and no other worker is doing so.

    ``is_whole`` returns whether a shard's folder is complete.
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
    """Remove the folders of all shards after the result has been assembled."""
    shutil.rmtree(whole / SHARDS, ignore_errors=True)


def run_shards(
    command: str, typed: Sequence[str], options: ClusterOptions, whole: Path, device: str, threads: int | None
) -> int:
    """Run one worker per shard; the last one to end assembles the result. Return the exit code: 1 if a worker failed.

    Args:
        command: The module to run, such as ``specexp.record``.
        typed: The command's arguments without the worker options.
        whole: Folder of the result, which all machines must share.
        device: The torch device of the models.
        threads: Number of CPU threads of each worker; None for one core.
    """
    start = (sys.executable, "-m", command, *typed)
    run = partial(
        run_workers,
        options,
        folder=whole.parent / f".{whole.name}-workers",  # not inside ``whole``, which must be empty at first
        gpus=options.gpus_on(device),
        threads=threads or 1,
    )
    count = options.workers
    status = run({f"{whole.name} {n} of {count}": (*start, OPTION, f"{n}/{count}") for n in range(count)})
    if status == 0 and shards_in(whole):  # no worker saw all shards: a shared file system may show files late
        status = run({f"{whole.name} whole": start})
    if status == 0:
        print(f"{counted(count, 'worker')} completed {whole}")
    return status
