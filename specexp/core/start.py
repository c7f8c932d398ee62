"""The first act of a command, before other imports: answer signals and hide passwords in URLs from then on.

This module imports nothing that takes time. A signal while modules are imported, or before the command acts, ends the
process at once, for nothing was begun; later one raises :class:`Interrupted`, so that whatever is open is closed.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")
"""What ends a command. The exit code is 128 and the signal's number, as shells have it: 130, 143 and 129."""

_IMPORTING = "<frozen importlib._bootstrap>"
_acting = False


class Interrupted(KeyboardInterrupt):
    """The process was asked to end, by whichever signal; libraries clean up as after Ctrl-C.

    Args:
        number: The signal's.
    """

    def __init__(self, number: int = signal.SIGINT) -> None:
        super().__init__(f"interrupted by {signal.Signals(number).name}")
        self.code = 128 + number


def begin() -> None:
    """Answer the signals that end a process, hide passwords in the traceback of an error nobody expected, and draw
    pictures for files alone.

    Signals that whoever started the process had it ignore, as ``nohup`` does, stay ignored.
    """
    for name in SIGNALS:
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number is not None and signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _answer)
    sys.excepthook = _show
    os.environ["MPLBACKEND"] = "agg"  # another one, or a misspelt one, may be impossible to import here


@contextmanager
def acting() -> Iterator[None]:
    """Let signals raise :class:`Interrupted` meanwhile: something was begun that must be closed."""
    global _acting
    _acting = True
    try:
        yield
    finally:
        _acting = False


def _answer(number: int, frame: FrameType | None) -> None:
    global _acting
    if _acting and not _is_importing(frame):
        _acting = False  # a second signal does not wait for what the first one closes
        raise Interrupted(number)
    os.write(2, f"error: {Interrupted(number)}: the same command can be given again\n".encode())
    os._exit(128 + number)


def _is_importing(frame: FrameType | None) -> bool:
    """Whether a module is being imported, which an exception would leave in pieces."""
    while frame is not None and frame.f_code.co_filename != _IMPORTING:
        frame = frame.f_back
    return frame is not None


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    from traceback import format_exception

    sys.stderr.write(masked("".join(format_exception(kind, error, trace))))


HIDDEN = "***"
"""Stands where a password was."""

_IN_FRONT_OF_HOST = re.compile(r"(\w[\w+.-]*://[^\s:/@'\"]*):[^\s'\"]*@")
_IN_QUERY = re.compile(r"([?&]\w*(?:password|passwd|pwd|secret|token)=)[^\s&'\"]+", re.IGNORECASE)


def masked(text: str) -> str:
    """A text whose URLs show no password.

    Example:
        >>> masked("postgresql://me:pass@word@host/studies?sslpassword=x is asked")
        'postgresql://me:***@host/studies?sslpassword=*** is asked'
    """
    if "://" not in text:
        return text
    return _IN_QUERY.sub(rf"\1{HIDDEN}", _IN_FRONT_OF_HOST.sub(rf"\1:{HIDDEN}@", text))


def all_masked(value: Any) -> Any:
    """Values such as those of a configuration, every text in them masked; mappings and lists anew."""
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, Mapping):
        return {name: all_masked(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [all_masked(item) for item in value]
    return value
