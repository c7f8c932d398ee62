"""Runs are shared by their rows, have the machine for themselves, and fail alone."""

import time
from types import SimpleNamespace

import pytest

from experiments.reproduce import measure as module
from experiments.reproduce.measure import measure
from experiments.reproduce.row_record import RowRecord


@pytest.fixture
def started(monkeypatch, tmp_path, leave_results):
    """The names of the started runs, each with the number of active ones; a run leaves results unless it must fail."""
    found, active = [], []

    def run(command, stdout, stderr):
        file, name = command[3], command[-1]
        active.append(name)
        time.sleep(0.2)  # so that a second run starts meanwhile, if it may
        found.append((name, len(active)))
        if "empty" not in file:
            leave_results(tmp_path / "runs" / name)
        time.sleep(0.2)
        active.remove(name)
        return SimpleNamespace(returncode=2 if "broken" in file else 0)

    monkeypatch.setattr(module.subprocess, "run", run)
    return found


@pytest.fixture
def make(row_of, tmp_path, started):
    """Measure what is missing of the named rows, each with its file; returns the failures."""

    def missing(rows):
        runs = [run for row in rows for run in row.each_run()]
        return [run for run in runs if RowRecord.read(tmp_path / "records", run.row).why_not(run)]

    def make(**files):
        rows = [row_of(name=name, runs=f"{file}.yaml") for name, file in files.items()]
        failed = measure(missing(rows), tmp_path / "records", tmp_path / "runs")
        assert len(missing(rows)) == failed
        return failed

    return make


def test_rows_with_the_same_run_share_it_and_its_picture(make, started, tmp_path):
    assert make(one="made", two="made", three="other") == 0
    assert sorted(name for name, _ in started) == ["one", "three"]
    assert (tmp_path / "records" / "two/results/two.png").read_bytes() == b"picture"


def test_a_measured_run_is_not_repeated(make, started):
    make(one="made")
    make(one="made", two="other")
    assert [name for name, _ in started] == ["one", "two"]


def test_every_run_is_alone_and_a_shared_one_is_made_once(make, started):
    make(a="a", b="b", c="c", d="b")
    assert started == [("a", 1), ("b", 1), ("c", 1)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "why"), [("broken", "exit code 2, see "), ("empty", "must hold the results of a run")]
)
def test_a_failed_run_is_reported_and_stops_no_other(make, capsys, file, why):
    assert make(one=file, two="made") == 1
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("one: ") and why in line for line in lines)
    assert lines[-1] == "two: measured"
