"""Checks of an experiment against this machine, made before any slow import."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from specexp.config.config import Config, is_replayed
from specexp.config.errors import ConfigError
from specexp.config.layers import Key
from specexp.core.messages import counted
from specexp.models.sources import PairError, checked_sources
from specexp.tracking.mode import asked_mode


def check_here(config: Config, *written: str) -> None:
    """Raise if threads, models, files of prompts or folders are not available on this machine.

    Args:
        config: of a command that is about to begin.
        written: keys of the folders that the command writes, ``output`` aside.

    Raises:
        ConfigError: one sentence with the key.
    """
    threads, cores = config.get("generation.threads"), os.cpu_count()
    if threads is not None and cores is not None and threads > cores:
        raise config.checker.error(
            ("generation", "threads"),
            f" is {threads}, and this machine has {counted(cores, 'core')}: at most so many are allowed",
        )
    if config.get("tracking.mode") != "disabled":
        check_tracking(config)
    if not is_replayed(config):
        try:
            checked_sources(config.get("pair.target"), config.get("pair.draft"))
        except PairError as error:
            raise config.checker.error(("pair", error.argument), f": {error}") from error
    for key, value in _paths(
        config.get("data.prompts.init_args", None) or {}, ("data", "prompts", "init_args")
    ):
        path = Path(value).expanduser()
        is_file_name = path.suffix != "" or value.startswith((".", "/", "~"))  # others can be a data set's id
        if "://" not in value and is_file_name and not path.exists():
            raise config.checker.error(key, f": {value} does not exist; a file of prompts is expected")
    for dotted in ("output", *written):
        folder = config.get(dotted, None)
        if folder is not None:
            below = (config.get("name"),) if dotted == "output" else ()
            check_writable(Path(folder, *below), config.checker.error(tuple(dotted.split(".")), ""))


def check_tracking(config: Config) -> None:
    """Raise if W&B would refuse the mode or the names of a project and of its owner.

    Raises:
        ConfigError: one sentence with the key.
    """
    try:
        asked_mode(config.get("tracking.mode"))
    except ValueError as error:  # of the environment: the file's own value is checked with the file
        raise ConfigError(str(error)) from error
    for key in ("project", "entity"):
        name = config.get(f"tracking.{key}")
        if name is not None and (not name.strip() or set(name) & set("/\\#?%:")):
            raise config.checker.error(
                ("tracking", key), f" must be a name without any of / \\ # ? % :, got {name!r}"
            )


def check_writable(folder: Path, error: ConfigError) -> None:
    """Raise if a folder cannot be made, or nothing can be written in it; nothing is made.

    Args:
        folder: where files are to go.
        error: its text, file and key, begins the message.

    Raises:
        ConfigError: names the path that is in the way.
    """
    there = next(path for path in (folder, *folder.parents, Path()) if path.exists() or path.is_symlink())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        why = f"no permission in {there}" if there.is_dir() else f"{there} is not a folder"
        raise ConfigError(f"{error}: {folder} cannot be written ({why}): name another folder")


def _paths(value: Any, at: Key) -> Iterator[tuple[Key, str]]:
    """Yield key and value of every argument that names a file, of a part and of those inside it."""
    inner = (
        value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    )
    for name, item in inner:
        key = (*at, str(name))
        if name in ("path", "instances") and isinstance(item, str):
            yield key, item
        yield from _paths(item, key)
