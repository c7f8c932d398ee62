"""The result of a command, printed as a summary line, as JSON (`--json`), or opened as an HTML report (`--open`)."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from specexp.core.start import masked

QUIET, JSON, OPEN = "--quiet", "--json", "--open"
SHOWING = (QUIET, JSON, OPEN)
"""Options of every command about how its result is shown."""


@dataclass
class CommandResult:
    """The result of a command; its fields are the keys of the line of JSON.

    Attributes:
        answer: the outcome, in a sentence.
        error: what went wrong, in a sentence.
        folder: the command's files.
        page: the report's file.
        artifact: the folder that a deployment loads.
        summary: figures to compare runs by.
        tables: rows of every table, as mappings from heading to cell.
        next: what to type or do next.
    """

    exit_code: int = 0
    answer: str = ""
    error: str = ""
    folder: str = ""
    page: str = ""
    artifact: str = ""
    summary: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    next: str = ""

    def to_json(self) -> str:
        """Return one line of JSON without empty fields; numbers that are not finite are null."""
        known = {name: value for name, value in asdict(self).items() if value or name == "exit_code"}
        return masked(json.dumps(_plain(known), allow_nan=False, default=str))


_CURRENT: ContextVar[CommandResult | None] = ContextVar("told", default=None)


def told() -> CommandResult:
    """Return the result of the running command; outside of one, a result that is dropped."""
    return _CURRENT.get() or CommandResult()


@contextmanager
def telling(given: Collection[str]) -> Iterator[CommandResult]:
    """Collect a command's result, then show it as the options of :data:`SHOWING` among ``given`` ask."""
    found = CommandResult()
    token = _CURRENT.set(found)
    silent = QUIET in given or JSON in given
    try:
        with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere) if silent else nullcontext():
            yield found
    finally:
        _CURRENT.reset(token)
    if JSON in given:
        say(found.to_json())
    else:
        quietly = (found.answer, found.page) if QUIET in given else ()
        onward = f"Next: {found.next}" if found.next else ""
        for line in filter(None, (*quietly, onward)):
            say(line)
    if OPEN in given and found.page:
        import webbrowser

        webbrowser.open(Path(found.page).resolve().as_uri())


def say(text: str, end: str = "\n") -> int:
    """Print, also to a pipe that its reader closes early, as ``head`` does; returns 0, as a command does."""
    try:
        print(text, end=end, flush=True)
    except BrokenPipeError:
        # or the interpreter's own flush fails too
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
