"""What a search shows: its progress, and speedups that follow the machine's drift."""

from __future__ import annotations

import math
from pathlib import Path

import optuna
import pytest
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState

from specexp.sweep.study import PlainSeconds
from specexp.sweep.trials import ProgressTable


def trial(speedup: float, spread: float = 0.0, **attributes: object) -> optuna.trial.FrozenTrial:
    log = math.log(speedup)
    return optuna.create_trial(
        params={"x": speedup},
        distributions={"x": FloatDistribution(0, 9)},
        value=log,
        intermediate_values={0: log - spread, 1: log + spread},
        user_attrs={"digest": str(speedup), **attributes},
    )


def failed() -> optuna.trial.FrozenTrial:
    return optuna.create_trial(state=TrialState.FAIL)


def test_the_best_so_far_has_its_interval_and_the_rest_is_counted() -> None:
    study = optuna.create_study(direction="maximize")
    seconds = iter([0.0, 0.0, 30.0, 40.0])
    standing = ProgressTable(["speedup"], 10, clock=lambda: next(seconds))
    standing.update(study)
    assert standing.lines == {
        "best so far": "none yet",
        "trials": "0 of 10 done",
        "time left": "not known yet",
    }
    study.add_trials([trial(1.5, math.log(1.5 / 1.25)), trial(1.1), trial(2.0, pruned_at=3), failed()])
    standing.update(study)
    assert standing.lines["best so far"] == "trial 0, 1.50x AR [1.25, 1.80] here", (
        "a pruned trial is no candidate"
    )
    assert standing.lines["trials"] == "3 of 10 done, 1 pruned, 1 failed"
    assert standing.lines["time left"] == "about 70 s", "three took 30 s, seven are left"


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
    assert PlainSeconds.load(path, "workload").seconds_per_token == {"a": 0.25}
    assert PlainSeconds.load(path, "another").seconds_per_token == {}
    path.write_text("{")
    assert PlainSeconds.load(path, "workload").seconds_per_token == {}
    assert PlainSeconds.load(tmp_path / "none.json", "workload").seconds_per_token == {}
