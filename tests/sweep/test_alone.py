"""The end of a study that several workers share, of which one died."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.fake_bench import FakeBench, opened, settings, sign_in
from optuna.trial import TrialState

from specexp.sweep import alone
from specexp.sweep.search import run_study
from specexp.sweep.trials import confirmable


@pytest.mark.filterwarnings("ignore:Heartbeat of storage")
def test_the_known_configuration_of_a_dead_worker_is_measured_before_the_confirmation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = settings(n_trials=3, storage=f"sqlite:///{tmp_path}/study.db", confirm={"best": 1})
    study = opened(chosen, tmp_path)
    sign_in(study, chosen, tmp_path, alone=False)
    dying = study.ask()
    dying.set_user_attr("worker", "elsewhere:1")
    bench = FakeBench()
    run_study(study, chosen, bench)
    name = dying.user_attrs["known"]
    assert name not in [trial.user_attrs.get("known") for trial in confirmable(study)]

    def dies(seconds: float) -> None:
        monkeypatch.setattr("specexp.sweep.worker._is_dead", lambda trial: True)

    confirmed: list[str] = []

    def conclude(study: Any, *given: Any) -> str:
        confirmed.extend(trial.user_attrs.get("known", "") for trial in confirmable(study))
        return "concluded"

    monkeypatch.setattr(alone, "time", SimpleNamespace(sleep=dies))
    monkeypatch.setattr(alone, "concluded", lambda *given: None)
    monkeypatch.setattr(alone, "digest_of_end", lambda *given: "end")
    monkeypatch.setattr(alone, "conclude", conclude)
    backend: Any = SimpleNamespace(study_config=None)
    output: Any = SimpleNamespace(say=lambda sentence: None, folder=tmp_path)
    found: Any = alone.conclude_alone(study, chosen, backend, output, lambda: run_study(study, chosen, bench))
    assert found == "concluded"
    assert study.trials[dying.number].state is TrialState.FAIL
    assert name in confirmed
