"""AR's seconds follow the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from specexp.sweep.study import PlainSeconds


def test_without_a_run_nothing_has_drifted() -> None:
    assert PlainSeconds({"a": 0.004}).now("a") == 0.004


def test_all_prompts_are_rescaled_by_what_ar_takes_now() -> None:
    reference = PlainSeconds({"a": 0.004, "b": 0.006})
    reference.observe("a", 0.005)
    assert reference.drift == pytest.approx(1.25)
    assert reference.now("b") == pytest.approx(0.0075)


def test_one_disturbed_run_among_the_last_three_changes_nothing() -> None:
    reference = PlainSeconds({"a": 1.0})
    for seconds in (1.1, 9.0, 1.1):
        reference.observe("a", seconds)
    assert reference.drift == pytest.approx(1.1)
    reference.observe("a", 1.2)
    reference.observe("a", 1.2)
    assert reference.drift == pytest.approx(1.2)


def test_a_resumed_study_keeps_the_seconds_of_its_own_workload(tmp_path: Path) -> None:
    path = tmp_path / "reference.json"
    PlainSeconds({"a": 0.25}).save(path, "workload")
    kept = PlainSeconds.load(path, "workload")
    assert kept is not None
    assert kept.seconds_per_token == {"a": 0.25}
    assert PlainSeconds.load(path, "another") is None
    path.write_text("{")
    assert PlainSeconds.load(path, "workload") is None
    assert PlainSeconds.load(tmp_path / "none.json", "workload") is None
