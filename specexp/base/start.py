"""Start-up code that every command runs before slow imports: handles signals, and hides passwords in URLs.

Before the command acts, and while it imports modules, a signal ends the process at once. At other times, a signal
raises :class:`Interrupted`, so that open files and databases are closed.
"""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")
"""The signals that end a command. As in shells, the exit code is 128 + the signal's number: 130, 143 and 129."""

_IMPORTING = "<frozen importlib._bootstrap>"
_acting = False


class Interrupted(KeyboardInterrupt):
    """Raised when a signal ends the process, so that libraries clean up as they do after Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(number).name}")
        self.code = 128 + number


def begin() -> None:
    """Handle signals, hide passwords in tracebacks, collect garbage less often, and keep matplotlib off the screen."""
    for name in SIGNALS:
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        # a signal that the parent ignores, as nohup does, stays ignored
        if number is not None and signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _answer)
    sys.excepthook = _show
    # read when torch is imported: with fewer threads than it expects, torch's own products are NaN
    os.environ.pop("OMP_DYNAMIC", None)
    # imports create many long-lived objects; with the default threshold of 700, they take a fifth longer
    gc.set_threshold(20_000)
    os.environ["MPLBACKEND"] = "agg"  # another backend may not be importable here


@contextmanager
def acting() -> Iterator[None]:
    """Make signals raise :class:`Interrupted` within the block, so that open files and databases are closed."""
    global _acting
    _acting = True
    try:
        yield
    finally:
        _acting = False


def _answer(number: int, frame: FrameType | None) -> None:
    global _acting
    if _acting and not _is_importing(frame):
        _acting = False  # a second signal ends the process without waiting for clean-up
        raise Interrupted(number)
    os.write(2, f"error: {Interrupted(number)}: the same command can be run again\n".encode())
    os._exit(128 + number)


def _is_importing(frame: FrameType | None) -> bool:
    """Return whether the frame is importing a module, which an exception would leave incomplete."""
    while frame is not None and frame.f_code.co_filename != _IMPORTING:
        frame = frame.f_back
    return frame is not None


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    from traceback import format_exception

    sys.stderr.write(masked("".join(format_exception(kind, error, trace))))


HIDDEN = "***"  # replaces each password

_IN_FRONT_OF_HOST = re.compile(r"(\w[\w+.-]*://[^\s:/@'\"]*):[^\s'\"]*@")
_IN_QUERY = re.compile(r"([?&]\w*(?:password|passwd|pwd|secret|token)=)[^\s&'\"]+", re.IGNORECASE)


def masked(text: str) -> str:
    """Return a text with all passwords in URLs masked.

    Example:
        >>> masked("postgresql://me:pass@word@host/studies?sslpassword=x is locked")
        'postgresql://me:***@host/studies?sslpassword=*** is locked'
    """
    if "://" not in text:
        return text
    return _IN_QUERY.sub(rf"\1{HIDDEN}", _IN_FRONT_OF_HOST.sub(rf"\1:{HIDDEN}@", text))


def all_masked(value: Any) -> Any:
    """Return a copy of nested values with every text :func:`masked`."""
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, Mapping):
        return {name: all_masked(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [all_masked(item) for item in value]
    return value
