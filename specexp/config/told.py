"""What a command came to: its last line for a person, one line of JSON for a program, the page that opens."""

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

from specexp.core.secrets import masked

QUIET, JSON, OPEN = "--quiet", "--json", "--open"
SHOWING = (QUIET, JSON, OPEN)
"""Options of every command: say the answer and what to do next alone; say all as one line of JSON; open the page."""


@dataclass
class CommandResult:
    """What a command came to; keys of the line of JSON.

    Attributes:
        exit_code: Of the command.
        answer: What it comes to, in a sentence.
        error: What went wrong, in a sentence.
        folder: Where its files are.
        page: File of the page one opens.
        artifact: What a deployment loads.
        summary: Figures to compare runs by.
        tables: Rows of every table, as mappings from heading to cell.
        next: What to type next, or to do.
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
        """One line; what is empty is left out, and what is no number is null."""
        known = {name: value for name, value in asdict(self).items() if value or name == "exit_code"}
        return masked(json.dumps(_plain(known), allow_nan=False, default=str))


_CURRENT: ContextVar[CommandResult | None] = ContextVar("told", default=None)


def told() -> CommandResult:
    """Of the command that runs; what a function is told outside of one is lost."""
    return _CURRENT.get() or CommandResult()


@contextmanager
def telling(given: Collection[str]) -> Iterator[CommandResult]:
    """Let a command act, then say what it came to as it was asked to.

    Args:
        given: What was typed; of :data:`SHOWING` what is in it counts.
    """
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
    """Print; whoever reads it, as ``head`` does, may have seen enough before its end. Returns 0, as a command does."""
    try:
        print(text, end=end, flush=True)
    except BrokenPipeError:
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # or the interpreter's own flush fails too
    return 0


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
