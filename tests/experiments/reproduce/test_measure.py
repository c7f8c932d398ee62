"""Runs are shared by their rows, have the machine for themselves where time counts, and fail alone."""

from types import SimpleNamespace
from typing import ClassVar

import pytest

from experiments.reproduce import measure as module
from experiments.reproduce.measure import measure
from experiments.reproduce.row_record import RowRecord


class Process:
    """A run that ends when it is polled twice. It leaves its results, unless its file is to fail."""

    active: ClassVar[list[str]] = []

    def __init__(self, command, stdout, stderr, env):
        self.name, self.file, self.polls, self.returncode = command[-1], command[3], 0, None
        Process.active.append(self.name)
        self.leave(self)

    def poll(self):
        self.polls += 1
        if self.polls > 1:
            Process.active.remove(self.name)
            self.returncode = 2 if "broken" in self.file else 0
        return self.returncode


@pytest.fixture
def started(monkeypatch, tmp_path, leave_results):
    """The names of the started runs, each with the number of active ones."""
    found = []

    def leave(process):
        found.append((process.name, len(Process.active)))
        if "empty" not in process.file:
            leave_results(tmp_path / "runs" / process.name)

    Process.active = []
    Process.leave = staticmethod(leave)
    monkeypatch.setattr(module, "subprocess", SimpleNamespace(Popen=Process))
    monkeypatch.setattr(module, "_POLL", 0.0)
    return found


@pytest.fixture
def make(row_of, tmp_path, started):
    """Measure what is missing of the named rows, each with its file and whether it is timed; returns the failures."""

    def missing(rows):
        runs = [run for row in rows for run in row.each_run()]
        return [run for run in runs if RowRecord.read(tmp_path / "records", run.row).why_not(run)]

    def make(**files):
        rows = [row_of(name=name, runs=f"{file}.yaml", timed=timed) for name, (file, timed) in files.items()]
        failed = measure(missing(rows), tmp_path / "records", tmp_path / "runs")
        assert len(missing(rows)) == failed
        return failed

    return make


def test_rows_with_the_same_run_share_it_and_its_picture(make, started, tmp_path):
    assert make(one=("made", False), two=("made", False), three=("other", False)) == 0
    assert [name for name, _ in started] == ["one", "three"]
    assert (tmp_path / "records" / "two.png").read_bytes() == b"picture"


def test_a_measured_run_is_not_repeated(make, started):
    make(one=("made", False))
    make(one=("made", False), two=("other", False))
    assert [name for name, _ in started] == ["one", "two"]


def test_timed_runs_are_alone_and_others_go_in_twos(make, started):
    # b's run is shared with a timed row
    make(a=("a", True), b=("b", False), c=("c", False), d=("d", True), e=("b", True))
    assert started == [("c", 1), ("a", 1), ("b", 1), ("d", 1)]
    started.clear()
    make(f=("f", False), g=("g", False), h=("h", False))
    assert started == [("f", 1), ("g", 2), ("h", 1)]


@pytest.mark.parametrize(
    ("file", "why"), [("broken", "exit code 2, see "), ("empty", "must hold the results of a run")]
)
def test_a_failed_run_is_reported_and_stops_no_other(make, capsys, file, why):
    assert make(one=(file, True), two=("made", True)) == 1
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("one: ") and why in line for line in lines)
    assert lines[-1] == "two: measured"
