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


def check_folder_name(name: Any, error: ConfigError) -> None:
    """Refuse the name of a run that is not the name of one folder.

    Args:
        name: as it was given; what is no text is refused elsewhere.
        error: its text, file and key, begins the message.

    Raises:
        ConfigError: the name would lead out of the folder it belongs to, or into another one.
    """
    if isinstance(name, str) and not (_FOLDER_NAME.fullmatch(name) and name.isprintable()):
        raise ConfigError(f"{error} is {name!r}; a plain folder name is allowed, such as tree_shape")


def check_written(path: Any, error: ConfigError) -> None:
    """Refuse a relative path to write to that leads out of the working directory.

    Args:
        path: as configured; what is no text is not looked at.
        error: its text, file and key, begins the message.

    Raises:
        ConfigError: the path leads out of it.
    """
    if isinstance(path, str) and not Path(path).is_absolute() and os.path.normpath(path).startswith(".."):
        raise ConfigError(
            f"{error} is {path!r}; a path below the working directory, or an absolute one, is allowed"
        )
