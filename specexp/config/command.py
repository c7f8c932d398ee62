"""What the commands have in common."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence

from specexp.config import Config, ConfigError, load_config

_DRY_RUN = "--dry-run"


def fail(why: object, status: int = 2) -> int:
    """Tell what went wrong, in one sentence on stderr.

    Args:
        why: the error or the sentence.
        status: exit code: 2 for a mistake of the user, 1 for what went wrong without one.

    Returns:
        ``status``.
    """
    print(f"error: {why}", file=sys.stderr)
    return status


def run_command(
    usage: str,
    arguments: Sequence[str] | None,
    act: Callable[[Config, bool], int],
    short: Mapping[str, str] | None = None,
) -> int:
    """Read a configuration file, act on it, and tell mistakes in one sentence on stderr.

    Args:
        usage: printed for ``--help``, and where no file is given.
        arguments: file, ``--dry-run`` and overrides; the process's own if None.
        act: with the file and whether it is a dry run; returns the exit code.
        short: dotted key by the short option that means it, e.g. ``n-trials``.

    Returns:
        The exit code: of ``act``, 2 for a mistake of the user, 1 where something cannot be written.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help"):
        print(usage)
        return 0 if given else 2
    try:
        if given[0].startswith("--"):
            raise ConfigError(
                f"command line: {given[0]} stands where the configuration file is expected, first"
            )
        overrides = [_long(argument, short or {}) for argument in given[1:] if argument != _DRY_RUN]
        return act(load_config(given[0], overrides), _DRY_RUN in given)
    except ConfigError as error:
        return fail(error)
    except OSError as error:
        return fail(f"{error.filename or 'output'} cannot be written ({error.strerror or error})", 1)


def _long(argument: str, short: Mapping[str, str]) -> str:
    name, equals, value = argument.removeprefix("--").partition("=")
    return f"--{short[name]}{equals}{value}" if argument.startswith("--") and name in short else argument
