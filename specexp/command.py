"""What commands that take a configuration file have in common."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from specexp.config import Config, ConfigError, load_config

_DRY_RUN = "--dry-run"


def run_command(usage: str, arguments: Sequence[str] | None, act: Callable[[Config, bool], int]) -> int:
    """Read a configuration file, act on it, and tell mistakes in one sentence on stderr.

    Args:
        usage: printed for ``--help``, and where no file is given.
        arguments: file, ``--dry-run`` and overrides; the process's own if None.
        act: with the file and whether it is a dry run; returns the exit code.

    Returns:
        The exit code: of ``act``, 2 for a mistake of the user, 1 where something cannot be written.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help"):
        print(usage)
        return 0 if given else 2
    try:
        config = load_config(given[0], [argument for argument in given[1:] if argument != _DRY_RUN])
        return act(config, _DRY_RUN in given)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        what = error.filename or "output"
        print(f"error: {what} cannot be written ({error.strerror or error})", file=sys.stderr)
        return 1
