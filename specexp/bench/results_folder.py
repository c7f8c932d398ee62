"""The folder of a run or a study: one process writes it at a time, and it holds the results of one experiment."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import yaml

from specexp.bench.publish import PAGE
from specexp.config import Config

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
RECORDS = "records.jsonl"
"""The records of a run; a study has none of this name."""
OF_A_STUDY = ("trials.csv", "reference.json", "journal.log")
"""Files of which a study has at least one, whether it has ended or not."""
_OF_NO_RESULT = ("output", "tracking")
"""Sections that may differ between two runs of one experiment."""


class FolderBusyError(RuntimeError):
    """Another process writes the folder."""


@contextmanager
def sole_writer(
    folder: Path, advice: str = "wait for it, or give this one another name (--name NEW)"
) -> Iterator[None]:
    """Hold a folder for this process; the lock ends with the process, however that ends.

    Args:
        folder: The folder, which is made if it does not exist.
        advice: The end of the error's sentence.

    Raises:
        FolderBusyError: Another process holds it.
        OSError: It cannot be written.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / LOCK).open("a+", encoding="utf-8") as file:
            _lock(file, folder, advice)
            yield
    finally:
        remove_unused(folder, made)


def _lock(file: IO[str], folder: Path, advice: str) -> None:
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.seek(0)
        holder = file.read().strip() or "unknown"
        raise FolderBusyError(f"{folder} is being written by process {holder}: {advice}") from error
    file.seek(0)
    file.truncate()
    file.write(f"{os.getpid()}\n")
    file.flush()


def remove_unused(folder: Path, made: Sequence[Path]) -> None:
    """Remove folders that were made for results of which none was written.

    Args:
        folder: Folder of the results.
        made: The folders that were made, the innermost first.
    """
    if made and {path.name for path in folder.glob("*")} == {LOCK}:
        (folder / LOCK).unlink()
    for path in made:
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def check_run_folder(config: Config, folder: Path) -> None:
    """Check that a run would not replace the results of a study.

    Raises:
        ConfigError: The folder holds the results of a study.
    """
    if any((folder / name).exists() for name in OF_A_STUDY):
        _refuse(config, folder, "the results of a sweep")


def replaced_results(config: Config, folder: Path) -> str | None:
    """Return a sentence about the finished results that a run replaces, None if they are of the same experiment."""
    if not (folder / PAGE).exists():
        return None  # an earlier run has not ended
    whose = "another command"
    if (folder / RECORDS).exists():
        earlier = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
        key = _difference(earlier, config.to_dict())
        if not key:
            return None
        whose = f"an earlier run ({key} differs)"
    return f"This run replaces the results of {whose} in {folder}; --name NEW keeps both."


def check_study_folder(config: Config, folder: Path) -> None:
    """Check that a study would replace no results of another command.

    Args:
        config: Configuration of the study.
        folder: Its folder.

    Raises:
        ConfigError: The folder holds other results.
    """
    if (folder / RECORDS).exists():
        _refuse(config, folder, "the results of a run")
    if (folder / PAGE).exists() and not any((folder / name).exists() for name in OF_A_STUDY):
        _refuse(config, folder, "the results of another command")


def _refuse(config: Config, folder: Path, what: str) -> None:
    raise config.checker.error(
        ("name",), f": {folder} holds {what}: choose another name (--name NEW), or remove that folder"
    )


def _difference(one: Any, other: Any, key: str = "") -> str:
    """The first dotted key at which two configurations differ; empty if they are equal."""
    if not (isinstance(one, Mapping) and isinstance(other, Mapping)):
        return "" if one == other else key
    for name in dict.fromkeys([*one, *other]):
        if key or name not in _OF_NO_RESULT:
            missing = object()  # equal to nothing
            inside = f"{key}.{name}" if key else str(name)
            found = _difference(one.get(name, missing), other.get(name, missing), inside)
            if found:
                return found
    return ""
