"""A server started by a command: its port, its health, its last lines, and its end."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from urllib.error import URLError
from urllib.request import urlopen

from specexp.core.messages import did_you_mean
from specexp.engines import guard
from specexp.engines.engine import EngineError

_HEALTH = ("/health", "/v1/models")
_LAST_BYTES = 400
_POLL_SECONDS = 0.1
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def filled(template: str, values: Mapping[str, object]) -> list[str]:
    """The words of a command, with values in the place of ``{names}``.

    A word is split from the others before it is filled, so that a value is one word whatever it holds; no shell runs.

    Raises:
        EngineError: a name has no value.
    """
    words = []
    for word in shlex.split(template):
        try:
            words.append(word.format_map(dict(values)))
        except (KeyError, IndexError, ValueError) as error:
            name = str(error).strip("'")
            raise EngineError(
                f"the command has {{{name}}}, which nothing fills{did_you_mean(name, map(str, values))}"
            ) from error
    return words


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class StartedServer:
    """A command at work, which ends with this process whatever happens to it.

    Args:
        command: Its words.
        url: Where it will listen.
        start_seconds: How long it may take until it is healthy.

    Raises:
        EngineError: it ends, or is not healthy in time; the sentence has its last lines.
    """

    def __init__(self, command: Sequence[str], url: str, start_seconds: float) -> None:
        self.url = url
        self._log = TemporaryFile()  # noqa: SIM115 - as long as the server
        self._command = command
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(guard.__file__)), *command],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        try:
            self._wait(start_seconds)
        except BaseException:
            self.close()
            raise

    def ended(self, seconds: float = 0.0) -> bool:
        """Whether it has ended, or does so within some seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._guard.wait(seconds)
        return self._guard.returncode is not None

    def last_lines(self) -> str:
        """What it said last, in one line."""
        self._log.seek(0, 2)
        self._log.seek(max(0, self._log.tell() - _LAST_BYTES))
        return " ".join(self._log.read().decode(errors="replace").split()) or "it said nothing"

    def memory_bytes(self) -> int | None:
        """What its processes hold of main memory together; None where the system does not tell."""
        try:
            (command,) = _words(f"/proc/{self._guard.pid}/task/{self._guard.pid}/children")
            return sum(
                int(_words(f"{folder}/statm")[1]) * _PAGE_BYTES
                for folder in Path("/proc").glob("[0-9]*")
                if _session_of(folder) == command
            )
        except (OSError, ValueError, IndexError):
            return None

    def close(self) -> None:
        """End it, and all that it started."""
        if self._guard.stdin is not None:
            with contextlib.suppress(OSError):
                self._guard.stdin.close()
        self._guard.wait()

    def _wait(self, start_seconds: float) -> None:
        deadline = time.monotonic() + start_seconds
        while not self._healthy():
            if self.ended():
                raise EngineError(
                    f"{self._command[0]} ended with {self._guard.returncode} before it answered: {self.last_lines()}"
                )
            if time.monotonic() > deadline:
                raise EngineError(
                    f"{self._command[0]} did not answer {self.url}{_HEALTH[0]} within {start_seconds:g} seconds: "
                    f"{self.last_lines()}"
                )
            time.sleep(_POLL_SECONDS)

    def _healthy(self) -> bool:
        for path in _HEALTH:
            try:
                with urlopen(f"{self.url}{path}", timeout=5) as answer:
                    if answer.status == 200:
                        return True
            except (URLError, OSError, ValueError):
                continue
        return False


def _words(file: str) -> list[str]:
    return Path(file).read_text(encoding="utf-8").split()


def _session_of(folder: Path) -> str:
    """Of a process, which the guard gave to the command it started; empty where it has ended meanwhile."""
    try:
        return (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[3]
    except (OSError, IndexError):
        return ""
