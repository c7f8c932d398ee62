"""Runs are shared by the rows that ask for them, are alone on the machine where seconds count, and fail alone."""

import dataclasses
from types import SimpleNamespace
from typing import ClassVar

import pytest

from experiments.reproduce import measure as module
from experiments.reproduce.measure import measure, missing, wanted


class Process:
    """A run that ends at the second look at it: it leaves its results, unless its file is to fail."""

    going: ClassVar[list[str]] = []

    def __init__(self, command, stdout, stderr, env):
        self.name, self.code = command[-1], None
        self.file, self.folder = command[3], command[-3]
        self.environment = env
        self.looks = 0
        Process.going.append(self.name)
        self.leave(self, stdout)

    def poll(self):
        self.looks += 1
        if self.looks > 1:
            Process.going.remove(self.name)
            self.code = 2 if "broken" in self.file else 0
        return self.code

    @property
    def returncode(self):
        return self.code


@pytest.fixture
def started(monkeypatch, tmp_path, leave_results):
    """The names of what was started, each with what went on beside it."""
    found = []

    def leave(process, log):
        found.append((process.name, len(Process.going)))
        if "broken" in process.file:
            log.write(b"working\nerror: no such model\n\n")
        else:
            leave_results(tmp_path / "runs" / process.name)

    Process.going = []
    Process.leave = staticmethod(leave)
    fake = SimpleNamespace(Popen=Process)
    monkeypatch.setattr(module, "subprocess", fake)
    monkeypatch.setattr(module, "_LOOK", 0.0)
    return found


def make(rows, tmp_path, told=None, **options):
    lines = [] if told is None else told
    runs = missing(wanted(rows, [], short=False), tmp_path / "records")
    return measure(runs, tmp_path / "records", tmp_path / "runs", told=lines.append, **options)


def rows_of(row, **files):
    return [
        dataclasses.replace(row, name=f"dyspec.{name}", runs={"": (f"experiments/{file}.yaml",)}, timed=timed)
        for name, (file, timed) in files.items()
    ]


def test_rows_that_ask_for_the_same_run_share_it(row, started, tmp_path):
    rows = rows_of(row, one=("made", False), two=("made", False), three=("other", False))
    assert make(rows, tmp_path) == 0
    assert [name for name, _ in started] == ["dyspec_one", "dyspec_three"]
    assert missing(wanted(rows, [], short=False), tmp_path / "records") == []


def test_what_is_measured_is_not_run_again(row, started, tmp_path):
    rows = rows_of(row, one=("made", False), two=("other", False))
    make(rows[:1], tmp_path)
    make(rows, tmp_path)
    assert [name for name, _ in started] == ["dyspec_one", "dyspec_two"]


def test_runs_whose_seconds_count_are_alone_and_others_go_together(row, started, tmp_path):
    rows = rows_of(row, a=("a", True), b=("b", False), c=("c", False), d=("d", True), e=("b", True))
    make(rows, tmp_path, at_once=2)
    # b's run is shared with a row whose seconds count
    assert started == [("dyspec_c", 1), ("dyspec_a", 1), ("dyspec_b", 1), ("dyspec_d", 1)]
    started.clear()
    make(rows_of(row, f=("f", False), g=("g", False), h=("h", False)), tmp_path, at_once=2)
    assert started == [("dyspec_f", 1), ("dyspec_g", 2), ("dyspec_h", 1)]


def test_a_run_that_fails_is_told_with_its_last_words_and_stops_no_other(row, started, tmp_path):
    told = []
    rows = rows_of(row, one=("broken", True), two=("made", True))
    assert make(rows, tmp_path, told) == 1
    assert any("exit code 2" in line and line.endswith("ends: error: no such model") for line in told)
    assert [one.row.name for one in missing(wanted(rows, [], short=False), tmp_path / "records")] == [
        "dyspec.one"
    ]


def test_a_run_that_left_no_records_is_told(row, started, tmp_path, monkeypatch):
    monkeypatch.setattr(Process, "leave", staticmethod(lambda process, log: None))
    told = []
    assert make(rows_of(row, one=("made", True)), tmp_path, told) == 1
    assert any("is no result of a run" in line for line in told)
