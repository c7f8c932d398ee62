"""A native library that dies takes a child process with it, and this one goes on without the library."""

import subprocess
import sys

import pytest

from specexp.base import probe
from specexp.base.probe import death_of

DIES = "import ctypes; ctypes.string_at(0)"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    death_of.cache_clear()
    yield tmp_path / "specexp/kernels"
    death_of.cache_clear()


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGILL", "SIGABRT"])
def test_a_fault_is_named(name):
    code = f"import os, signal; os.kill(os.getpid(), signal.{name})"
    assert death_of("lib", "1", code) == f"lib died ({name}) in a test pass"


@pytest.mark.parametrize("code", ["pass", DIES])
def test_a_result_is_kept_per_machine_and_version(code, folder, monkeypatch):
    found = death_of("lib", "1", code)
    assert found == ("" if code == "pass" else "lib died (SIGSEGV) in a test pass")
    started = []
    run = subprocess.run
    monkeypatch.setattr(probe.subprocess, "run", lambda *given, **named: started.append(1) or run(*given, **named))
    death_of.cache_clear()  # as in another process
    assert death_of("lib", "1", code) == found
    assert not started
    assert death_of("lib", "2", code) == found
    monkeypatch.setattr(probe, "processor", lambda: "another")
    death_of.cache_clear()
    death_of("lib", "1", code)
    assert len(started) == 2
    assert len(list(folder.iterdir())) == 3


@pytest.mark.parametrize("code", ["import no_such_module", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"])
def test_an_error_of_python_and_a_kill_from_outside_say_nothing_about_the_library(code, folder):
    assert death_of("lib", "1", code) == ""
    assert not folder.exists()


def test_a_child_starts_no_other_child(monkeypatch):
    monkeypatch.setenv("SPECEXP_PROBE", "1")
    monkeypatch.setattr(sys, "executable", "/nowhere")
    assert death_of("lib", "1", DIES) == ""
