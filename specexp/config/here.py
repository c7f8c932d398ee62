"""What an experiment asks of this machine: looked at before anything is imported that takes seconds."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from specexp.config.config import Config, is_replayed
from specexp.config.errors import ConfigError
from specexp.config.layers import Key
from specexp.core.messages import counted, first_line
from specexp.models.gguf import is_local
from specexp.models.hub import is_cached, why_unreachable
from specexp.models.sources import PairError, check_source, not_here, sources_of
from specexp.tracking.mode import asked_mode


def check_here(config: Config, *written: str) -> None:
    """Refuse more threads than cores, models and prompts that are not here, and folders that cannot be written.

    Args:
        config: Of a command that is about to begin.
        written: Keys of the folders that the command writes, ``output`` aside.

    Raises:
        ConfigError: One sentence with the key.
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
        _check_models(config)
    _check_prompts(config)
    for key in ("output", *written):
        path = config.get(key, None)
        if path is not None:
            below = (config.get("name"),) if key == "output" else ()
            check_writable(Path(path, *below), config.checker.error(tuple(key.split(".")), ""))


def check_tracking(config: Config) -> None:
    """Refuse a mode, and names of a project and of its owner, that W&B does not take.

    Raises:
        ConfigError: One sentence with the key.
    """
    try:
        asked_mode(config.get("tracking.mode"))
    except ValueError as error:  # of the environment: the file's own value is checked with the file
        raise ConfigError(str(error)) from error
    for key, owner in (("project", "a project"), ("entity", "an entity")):
        name = config.get(f"tracking.{key}")
        if name is None:  # W&B's own default
            continue
        if not name.strip():
            raise config.checker.error(("tracking", key), f" is {name!r}; a name such as specexp is allowed")
        if wrong := [mark for mark in "/\\#?%:" if mark in name]:
            raise config.checker.error(
                ("tracking", key), f" is {name!r}; W&B takes no {wrong[0]} in {owner}'s name"
            )


def check_writable(folder: Path, error: ConfigError) -> None:
    """Refuse a folder that cannot be made, or in which nothing can be written; nothing is made.

    Args:
        folder: Where files are to go.
        error: Its text, file and key, begins the message.

    Raises:
        ConfigError: It names what stands in the way.
    """
    if "\0" in str(folder):
        raise ConfigError(
            f"{error} is {str(folder)!r}, and no name holds a null character: name another folder"
        )
    there = next(path for path in (folder, *folder.parents, Path()) if path.exists() or path.is_symlink())
    if not there.exists():
        raise ConfigError(
            f"{error}: {folder} cannot be written ({there} is a link to nothing): name another folder"
        )
    if not there.is_dir():
        raise ConfigError(f"{error}: {folder} cannot be written ({there} is a file): name another folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(
            f"{error}: {folder} cannot be written (no permission in {there}): name another folder"
        )


def _check_models(config: Config) -> None:
    sources = sources_of(config.get("pair.target"), config.get("pair.draft"))
    for role, source in zip(("target", "draft"), sources, strict=True):
        try:
            if source is None:
                continue
            check_source(role, source)
            if not is_local(source) and not is_cached(source) and (offline := why_unreachable()):
                raise not_here(role, source, offline)
        except PairError as error:
            raise config.checker.error(("pair", error.argument), f": {first_line(error)}") from error


def _check_prompts(config: Config) -> None:
    """Files of prompts and of a task's items, whose names can be no data set's, must be there."""
    at: Key = ("data", "prompts", "init_args")
    for key, value in _paths(config.get("data.prompts.init_args", None) or {}, at):
        path = Path(value).expanduser()
        is_file_name = path.suffix != "" or value.startswith((".", "/", "~"))
        if "://" not in value and is_file_name and not path.exists():
            raise config.checker.error(key, f": {value} does not exist; a file of prompts is expected")


def _paths(value: Any, at: Key) -> Iterator[tuple[Key, str]]:
    """Every argument that names a file, of a part and of those inside it, with its key."""
    inner = (
        value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    )
    for name, item in inner:
        key = (*at, str(name))
        if name in ("path", "instances") and isinstance(item, str):
            yield key, item
        yield from _paths(item, key)
