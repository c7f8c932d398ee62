"""A command that a signal ends prints one sentence and has an exit code of its own."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from specexp.base.start import SIGNALS, begin
from specexp.config.command import GOES_ON, answered

CODES = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129}


@pytest.fixture
def handlers():
    """Default handlers, also where tests run in the background with ignored signals; restored afterwards."""
    before = {name: signal.getsignal(getattr(signal, name)) for name in SIGNALS}
    hook = sys.excepthook
    for name in SIGNALS:
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    yield
    sys.excepthook = hook
    for name, handler in before.items():
        signal.signal(getattr(signal, name), handler)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("name", SIGNALS)
def test_an_interrupted_command_closes_its_files(name, capsys):
    closed = []

    def act() -> int:
        try:
            os.kill(os.getpid(), getattr(signal, name))
            time.sleep(5)
        finally:
            closed.append(name)
        return 0

    begin()
    assert answered(act, GOES_ON) == CODES[name]
    assert capsys.readouterr().err == f"error: interrupted by {name}: {GOES_ON}\n"
    assert closed == [name]


@pytest.mark.usefixtures("handlers")
def test_a_signal_that_nohup_ignores_stays_ignored():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    begin()
    assert answered(lambda: os.kill(os.getpid(), signal.SIGHUP) or 0) == 0


IMPORTING = "from specexp.base.start import begin; begin(); print('begun', flush=True); import takes_long"


def start(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    """Start a program with this one's path and its working directory."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["", *filter(None, sys.path)])}
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env=environment,
    )


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("name", SIGNALS)
def test_a_signal_during_imports_is_one_sentence(name, tmp_path):
    (tmp_path / "takes_long.py").write_text("import time\ntime.sleep(20)\n")
    with start("-c", IMPORTING, cwd=tmp_path) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(getattr(signal, name))
        _, shown = process.communicate()
    assert shown == f"error: interrupted by {name}: the same command can be run again\n"
    assert process.returncode == CODES[name]
