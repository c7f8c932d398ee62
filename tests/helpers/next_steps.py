"""The line that a command prints last, and typing it."""

from __future__ import annotations

import shlex

import pytest

from helpers.commands import main_of

DRY = ("run", "sweep", "verify", "profile", "record", "fit", "why", "what_if")
"""Commands that are typed with ``--dry-run``: everything but decoding is done."""


def next_line(capsys: pytest.CaptureFixture[str]) -> str:
    """The line after ``Next:`` of what was printed since the last look."""
    shown = capsys.readouterr()
    (found,) = (
        line.removeprefix("Next: ")
        for line in (shown.out + shown.err).splitlines()
        if line.startswith("Next: ")
    )
    return found


def typed(line: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Type a line as a shell would take it; every command of it must succeed.

    Returns:
        The commands, e.g. ``["verify"]``.
    """
    ran = []
    for step in line.split(" && "):
        words = shlex.split(step, comments=True)
        if words[0] == "cd":
            monkeypatch.chdir(words[1])
            continue
        python, m, module, *arguments = words
        assert (python, m) == ("python", "-m")
        command = module.removeprefix("specexp.")
        ran.append(command)
        if command in DRY and "--dry-run" not in arguments:
            arguments.append("--dry-run")
        if command == "doctor":  # it measures passes for seconds
            monkeypatch.setattr("specexp.commands.doctor.command.checks", list)
        if command == "serve":  # everything up to the first request
            monkeypatch.setattr("uvicorn.Server.run", lambda server, sockets: None)
            arguments[arguments.index("--port") + 1] = "0"
        assert main_of(module)(arguments) == 0, line
    return ran
