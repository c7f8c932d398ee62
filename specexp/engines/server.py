"""A server started by a command: its port, its health, its last lines, and its end."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile

import httpx

from specexp.core import supervisor
from specexp.core.messages import did_you_mean
from specexp.engines.engine import EngineError

_HEALTH = ("/health", "/v1/models")  # some servers have only the second
_LAST_BYTES = 400  # of the output, in an error
_POLL_SECONDS = 0.1


def filled(template: str, values: Mapping[str, object]) -> list[str]:
    """Return the words of a command, with values in the place of ``{names}``.

    The command is split before it is filled, so that a value is one word whatever it holds; no shell runs.

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
                f"the command has {{{name}}}, which has no value{did_you_mean(name, map(str, values))}"
            ) from error
    return words


def free_port() -> int:
    """Return a port on which no process listens now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class StartedServer:
    """A running command, which ends with this process however that ends.

    Raises:
        EngineError: it ends, or is not healthy at ``url`` in time; the sentence has its last lines.
    """

    def __init__(self, command: Sequence[str], url: str, start_seconds: float) -> None:
        self.url = url
        self._log = TemporaryFile()  # noqa: SIM115 - as long as the server
        self._process = supervisor.start(command, stdout=self._log, stderr=self._log)
        try:
            self._wait(command[0], start_seconds)
        except BaseException:
            self.close()
            raise

    def ended(self, seconds: float = 0.0) -> bool:
        """Return whether it has ended, or ends within ``seconds``."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self._process.returncode is not None

    def last_lines(self) -> str:
        """Return the end of its output, in one line."""
        self._log.seek(0, 2)
        self._log.seek(max(0, self._log.tell() - _LAST_BYTES))
        return " ".join(self._log.read().decode(errors="replace").split()) or "no output"

    def memory_bytes(self) -> int | None:
        """Return the resident memory of all its processes; None if the system has no ``/proc``."""
        try:
            # the supervisor's only child is the command, which leads a session with all its processes
            pid = self._process.pid
            session = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").strip()
            page = os.sysconf("SC_PAGE_SIZE")
            folders = [folder for folder in Path("/proc").glob("[0-9]*") if _session_of(folder) == session]
            return sum(int((one / "statm").read_text(encoding="utf-8").split()[1]) * page for one in folders)
        except (OSError, ValueError, IndexError):
            return None

    def close(self) -> None:
        """End it, and all processes that it started."""
        supervisor.end(self._process)

    def _wait(self, program: str, start_seconds: float) -> None:
        deadline = time.monotonic() + start_seconds
        while not self._healthy():
            if self.ended():
                raise EngineError(
                    f"{program} ended with {self._process.returncode} before it answered: {self.last_lines()}"
                )
            if time.monotonic() > deadline:
                raise EngineError(
                    f"{program} did not answer {self.url}{_HEALTH[0]} within {start_seconds:g} seconds: "
                    f"{self.last_lines()}"
                )
            time.sleep(_POLL_SECONDS)

    def _healthy(self) -> bool:
        for path in _HEALTH:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{self.url}{path}", timeout=5, trust_env=False).status_code == 200:  # no proxy
                    return True
        return False


def _session_of(folder: Path) -> str:
    """The session of a process, which is the command's pid; empty if the process has ended."""
    try:
        # the name, in parentheses, may hold blanks and parentheses; the session is the fourth field behind it
        return (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[3]
    except (OSError, IndexError):
        return ""
