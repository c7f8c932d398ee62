"""Workers of a study in a database: they take turns, and one that died gives its turn and its trials back."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
from helpers.fake_bench import FakeBench, opened, settings, sign_in
from optuna.trial import TrialState

from specexp.sweep import conclusion, workers
from specexp.sweep.conclusion import Conclusion
from specexp.sweep.search import run_study
from specexp.sweep.storage import open_storage
from specexp.sweep.trials import confirmable
from specexp.sweep.workers import CONFIRMATION, Turn, in_turn, open_turns, requeue

pytestmark = pytest.mark.filterwarnings("ignore:Heartbeat of storage")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/study.db"


def turns_of(url: str, folder: Path) -> optuna.Study:
    return open_turns("fake", open_storage(url, folder, requeue))


def test_of_two_confirmations_one_is_left_to_the_other_worker(url: str, tmp_path: Path) -> None:
    one, other = (turns_of(url, tmp_path) for _ in range(2))
    confirmed = []

    def confirm(turn: Turn) -> None:
        assert turn.is_mine()
        confirmed.append("one")
        assert not in_turn(other, CONFIRMATION, lambda turn: confirmed.append("other"), alone=False)

    assert in_turn(one, CONFIRMATION, confirm, alone=False)
    assert confirmed == ["one"]
    assert in_turn(other, CONFIRMATION, lambda turn: confirmed.append("later"), alone=False)
    assert confirmed == ["one", "later"]


def test_other_work_waits_for_the_turns_before_it(url: str, tmp_path: Path) -> None:
    one, other = (turns_of(url, tmp_path) for _ in range(2))
    began, done = threading.Event(), list[str]()

    with ThreadPoolExecutor(1) as pool:

        def first(turn: Turn) -> None:
            waiting = pool.submit(in_turn, other, "start", lambda turn: done.append("other"), alone=False)
            began.set()
            with pytest.raises(TimeoutError):
                waiting.result(3 * workers.TURN_SECONDS)
            done.append("first")

        assert in_turn(one, CONFIRMATION, first, alone=False)
        assert began.is_set()
    assert done == ["first", "other"]


def test_a_turn_of_a_dead_process_is_ended_and_its_owner_learns_of_it(url: str, tmp_path: Path) -> None:
    turns = turns_of(url, tmp_path)
    dead = turns.ask()
    dead.set_user_attr("worker", workers.worker().partition(":")[0] + ":999999999")
    dead.set_user_attr("kind", CONFIRMATION)
    done = []
    assert in_turn(turns, CONFIRMATION, done.append, alone=False)
    assert len(done) == 1
    assert not Turn(turns, dead).is_mine()


def test_an_error_within_a_turn_is_raised_and_the_turn_ends(url: str, tmp_path: Path) -> None:
    turns = turns_of(url, tmp_path)

    def fail(turn: Turn) -> None:
        turns.tell(0, state=TrialState.FAIL)  # as another worker that missed its heart
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        in_turn(turns, CONFIRMATION, fail, alone=False)
    assert in_turn(turns, CONFIRMATION, lambda turn: None, alone=False)


def test_the_known_configuration_of_a_dead_worker_is_measured_before_the_confirmation(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = settings(n_trials=3, storage=url, confirm={"best": 1})
    study = opened(chosen, tmp_path)
    sign_in(study, chosen, tmp_path, alone=False)
    dying = study.ask()
    dying.set_user_attr("worker", "elsewhere:1")
    bench = FakeBench()
    run_study(study, chosen, bench)
    name = dying.user_attrs["known"]
    assert name not in [trial.user_attrs.get("known") for trial in confirmable(study)]

    def dies(seconds: float) -> None:
        monkeypatch.setattr("specexp.sweep.workers.is_dead", lambda trial: "known" in trial.user_attrs)

    confirmed: list[str] = []

    def conclude(self: Conclusion, study: Any, turn: Turn) -> str:
        confirmed.extend(trial.user_attrs.get("known", "") for trial in confirmable(self.trials))
        return "concluded"

    monkeypatch.setattr(conclusion, "time", SimpleNamespace(sleep=dies))
    monkeypatch.setattr(Conclusion, "conclude", conclude)
    config: Any = SimpleNamespace(workload=dict)
    output: Any = SimpleNamespace(say=lambda sentence: None, folder=tmp_path)
    end = Conclusion(study, chosen, config, output)
    ours: Any = None
    found: Any = end.in_turn(ours, turns_of(url, tmp_path), lambda: run_study(study, chosen, bench))
    assert found == "concluded"
    assert study.trials[dying.number].state is TrialState.FAIL
    assert name in confirmed
