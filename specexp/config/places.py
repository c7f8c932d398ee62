"""Names and paths that a run writes to: they stay in the folder they belong to."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from specexp.config.errors import ConfigError

WRITTEN = ("output", "sweep.export.to", "fit.export.to", "profile.to", "record.to", "recording")
"""Keys of folders that commands write."""

_FOLDER_NAME = re.compile(r"[^\s./\\:~-][^/\\:]{0,127}")

_UNEXPANDED = re.compile(r"~|.*\$\w|.*\$\{|%\w+%|.*[\x01-\x1f]" + (r"|[A-Za-z]:" if os.sep == "/" else ""))
"""Paths that only a shell, or Windows, would lead elsewhere."""


def check_folder_name(name: Any, error: ConfigError) -> None:
    """Refuse the name of a run that is not the name of one folder.

    Args:
        name: as it was given; what is no text is refused elsewhere.
        error: its text, file and key, begins the message.

    Raises:
        ConfigError: the name would lead out of the folder it belongs to, or into another one.
    """
    if name is None:
        raise ConfigError(f"{error} is null; a plain folder name is allowed, such as tree_shape")
    if isinstance(name, str) and not (_FOLDER_NAME.fullmatch(name) and name.isprintable()):
        raise ConfigError(f"{error} is {name!r}; a plain folder name is allowed, such as tree_shape")


def check_expanded(path: str, error: ConfigError) -> None:
    """Refuse a path to write to that only a shell, or Windows, would understand.

    Raises:
        ConfigError: it has a home, a variable, a drive or a control character; ``error`` begins the message.
    """
    if _UNEXPANDED.match(path):
        raise ConfigError(
            f"{error} is {path!r}, in which nothing is expanded: write the whole path, without ~, $ or a drive"
        )


def check_written(path: Any, error: ConfigError, file: Path | None = None) -> None:
    """Refuse a path to write to that leads out of the folder it belongs to.

    That is the working directory; of an absolute path in a file also the file's own folder, or, of the configuration
    that a run left, the folder that all runs of that output are in. Whoever types an absolute path means it.

    Args:
        path: as configured; what is no text is not looked at.
        error: its text, file and key, begins the message.
        file: the file that set it; None for the command line.

    Raises:
        ConfigError: the path leads out of it.
    """
    if isinstance(path, str):
        check_expanded(path, error)
    if isinstance(path, str) and Path(path).is_absolute() and file is not None:
        whole, here = Path(os.path.normpath(path)), file.absolute().parent
        if not (
            whole.is_relative_to(Path.cwd()) or whole.is_relative_to(here) or whole in [*here.parents][:2]
        ):
            key = str(error).rpartition(": ")[2]
            raise ConfigError(
                f"{error} is {path!r}, outside of the working directory and of the file's own folder: type --{key} "
                f"{path} if it is meant"
            )
    if isinstance(path, str) and not Path(path).is_absolute() and os.path.normpath(path).startswith(".."):
        raise ConfigError(
            f"{error} is {path!r}; a path below the working directory, or an absolute one, is allowed"
        )
