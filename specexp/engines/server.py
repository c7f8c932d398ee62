"""Server processes: fill in and run a start command, wait until the server is healthy, and stop it."""

from __future__ import annotations

import contextlib
import re
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from tempfile import TemporaryFile

import psutil

from specexp.base import supervisor
from specexp.base.messages import did_you_mean, restated
from specexp.engines.engine import EngineError
from specexp.engines.openai_client import fetch

_HEALTH = ("/health", "/v1/models")  # some servers have only the second path
_LAST_BYTES = 400  # length of the server's output in an error message
_ERROR_BYTES = 65_536  # end of the output that is searched for an error
# pydantic names the value in a second line; vLLM logs errors that only point to the first one, and harmless warnings
_ERROR = re.compile(
    r"^(?!.*\bWARNING\b).*?(\b\w*(?:Error|Exception): "
    r"(?!Engine core initialization failed|EngineCore encountered|WorkerProc init|cancelled)"
    r"(?:\d+ validation errors? for .+\n)?.+"
    r"|\bWorker proc .+ died unexpectedly)",
    re.MULTILINE,
)
_POLL_SECONDS = 0.1
_REST_SECONDS = 3.0  # vLLM's workers poll on a core each for a second after an answer
_RESTING = 0.2  # cores
_SIGNAL_HELPS = {
    "SIGILL": "its build uses instructions that this processor lacks: use a build for any processor, such as xllamacpp",
    "SIGSEGV": "another build may help, and for llama.cpp with quantized weights --no-repack",
    "SIGKILL": "the machine may have run out of memory",
}


def filled(template: str, values: Mapping[str, object], what: str = "the command") -> list[str]:
    """Split a command template into words, and replace each ``{name}`` with its value.

    The command is split first, so a value with spaces or quotes stays one word.

    Args:
        what: the template's name in error messages.

    Raises:
        EngineError: a name has no value, or a brace or quotation mark no partner.
    """
    with restated(ValueError, lambda error: EngineError(f"{what} cannot be split into words ({error})")):
        split = shlex.split(template)
    words = []
    for word in split:
        try:
            words.append(word.format_map(dict(values)))
        except (KeyError, IndexError, ValueError) as error:
            name = str(error).strip("'")
            if isinstance(error, KeyError) and name.isidentifier():
                why = f"there is no value for {name!r}{did_you_mean(name, map(str, values))}"
                raise EngineError(f"{what} contains {{{name}}}, but {why}") from error
            why = "write {{ and }} for the command's own braces"
            raise EngineError(f"{what} must have {{NAME}} or doubled braces, got {word!r}: {why}") from error
    return words


def free_port() -> int:
    """Return a free port; another process may take it before it is used."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class StartedServer:
    """A server process. It is killed when this process ends, even if this process crashes.

    Attributes:
        start_seconds: time until the server was healthy.

    Raises:
        EngineError: the server exits or is not healthy in time. The message contains the end of its output.
    """

    def __init__(self, command: Sequence[str], url: str, start_seconds: float) -> None:
        self.url = url
        self._log = TemporaryFile()  # noqa: SIM115 - stays open as long as the server runs
        self._process = supervisor.start(command, stdout=self._log, stderr=self._log)
        try:
            self._wait(command[0], start_seconds)
        except BaseException:
            self.close()
            raise

    def ended(self, seconds: float = 0.0) -> bool:
        """Wait up to ``seconds`` for the server to exit, and return whether it has."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self._process.returncode is not None

    def end(self) -> str:
        """Describe how the server's process ended, with the end of its output and, after a signal, what helps."""
        code = self._process.returncode
        if code >= 0:
            return f"exited with status {code} ({self.last_lines()})"
        name = signal.Signals(-code).name
        helps = f"; {_SIGNAL_HELPS[name]}" if name in _SIGNAL_HELPS else ""
        return f"was ended by {name} ({self.last_lines()}){helps}"

    def last_error(self) -> str:
        """Return the last error in the server's output; empty if there is none."""
        errors = _ERROR.findall(self._output())
        return " ".join(errors[-1].split())[:_LAST_BYTES] if errors else ""

    def last_lines(self) -> str:
        """Return the last error in the server's output or, if there is none, the end of the output."""
        return self.last_error() or " ".join(self._output()[-_LAST_BYTES:].split()) or "no output"

    def _output(self) -> str:
        self._log.seek(0, 2)
        self._log.seek(max(0, self._log.tell() - _ERROR_BYTES))
        return self._log.read().decode(errors="replace")

    def memory_bytes(self) -> int | None:
        """Return the resident memory of all the server's processes; None if one has just ended."""
        try:
            # the supervisor, their common ancestor, is not part of the server
            processes = psutil.Process(self._process.pid).children(recursive=True)
            return int(sum(one.memory_info().rss for one in processes))
        except psutil.Error:
            return None

    def rest(self) -> None:
        """Wait, for at most three seconds, until the server computes no longer, so that it disturbs no other one."""
        deadline, before = time.monotonic() + _REST_SECONDS, self._cpu_seconds()
        while time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
            now = self._cpu_seconds()
            if now - before < _RESTING * _POLL_SECONDS:
                break
            before = now

    def _cpu_seconds(self) -> float:
        try:
            times = [one.cpu_times() for one in psutil.Process(self._process.pid).children(recursive=True)]
            return float(sum(one.user + one.system for one in times))
        except psutil.Error:
            return 0.0

    def close(self) -> None:
        """Stop the server and all processes that it started."""
        supervisor.end(self._process)

    def _wait(self, program: str, start_seconds: float) -> None:
        started = time.monotonic()
        while not self._healthy():
            if self.ended():
                raise EngineError(f"before {program} was healthy, it {self.end()}")
            if time.monotonic() > started + start_seconds:
                raise EngineError(
                    f"{program} was not healthy at {self.url}{_HEALTH[0]} within {start_seconds:g} seconds: "
                    f"{self.last_lines()}"
                )
            time.sleep(_POLL_SECONDS)
        self.start_seconds = time.monotonic() - started

    def _healthy(self) -> bool:
        for path in _HEALTH:
            with contextlib.suppress(EngineError):
                fetch(f"{self.url}{path}", 5)
                return True
        return False
