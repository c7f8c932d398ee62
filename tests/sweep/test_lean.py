"""A storage with less traffic tells the same trials as Optuna's own, once they have ended."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest
from hypothesis import HealthCheck, given, settings as hypothesis_settings, strategies as st
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState

from specexp.sweep import lean
from specexp.sweep.database import Database
from specexp.sweep.lean import AT_ONCE, UNREAD


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'study.db'}"


def workers(url: str, count: int = 2) -> list[optuna.Study]:
    """The same study as several workers have it."""
    return [
        optuna.create_study(
            study_name="one", storage=Database(url), direction="maximize", load_if_exists=True
        )
        for _ in range(count)
    ]


def as_optuna_has_it(url: str) -> list[FrozenTrial]:
    return optuna.load_study(study_name="one", storage=RDBStorage(url)).trials


def running(study: optuna.Study) -> FrozenTrial:
    (trial,) = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    return trial


def test_what_a_trial_says_is_written_before_it_ends(url: str) -> None:
    mine, other = workers(url)
    trial = mine.ask()
    trial.suggest_int("nodes", 1, 9)
    for step in range(5):
        trial.report(float(step), step)
    trial.set_user_attr("metrics", {"tokens_per_step": 2.0})
    assert "metrics" not in running(other).user_attrs  # five seconds have not gone by
    mine.tell(trial, 7.0)
    (seen,) = other.get_trials()
    assert seen.intermediate_values == {step: float(step) for step in range(5)}
    assert seen.user_attrs == {"metrics": {"tokens_per_step": 2.0}}
    assert [seen] == as_optuna_has_it(url)


def test_what_a_trial_says_is_written_now_and_then(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lean, "WRITE_SECONDS", 0.0)
    (study,) = workers(url, 1)
    trial = study.ask()
    trial.report(1.0, 0)
    assert as_optuna_has_it(url)[0].intermediate_values == {0: 1.0}
    trial.report(2.0, 1)
    assert as_optuna_has_it(url)[0].intermediate_values == {0: 1.0, 1: 2.0}


@pytest.mark.parametrize("key", sorted(AT_ONCE))
def test_what_other_workers_ask_for_is_written_at_once(url: str, key: str) -> None:
    mine, other = workers(url)
    trial = mine.ask()
    trial.set_user_attr(UNREAD, {"nodes": 3})
    trial.set_user_attr(key, "said")
    seen = running(other)
    assert seen.user_attrs == {key: "said"}  # and nobody reads what is large before the trial has ended
    assert as_optuna_has_it(url)[0].user_attrs == {key: "said", UNREAD: {"nodes": 3}}


def test_a_pruned_trial_has_the_value_it_reported_last(url: str) -> None:
    (study,) = workers(url, 1)
    trial = study.ask()
    trial.report(0.25, 3)
    study.tell(trial, state=TrialState.PRUNED)
    assert study.trials[0].value == 0.25


def test_what_a_trial_says_that_was_given_to_another_worker_is_left(url: str) -> None:
    mine, other = workers(url)
    trial = mine.ask()
    trial.report(0.5, 0)
    other.tell(trial.number, state=TrialState.FAIL)
    with pytest.raises(ValueError, match="FAIL"):
        mine.tell(trial, 1.0)
    (kept,) = as_optuna_has_it(url)
    assert kept.state is TrialState.FAIL
    assert kept.intermediate_values == {}


def test_a_pruner_is_told_the_best_of_some_seconds_ago(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, other = workers(url)
    mine.tell(mine.ask(), 1.0)
    assert other.best_value == 1.0
    mine.tell(mine.ask(), 2.0)
    assert (mine.best_value, other.best_value) == (2.0, 1.0)  # who ends a trial looks again
    monkeypatch.setattr(lean, "BEST_SECONDS", 0.0)
    assert other.best_value == 2.0


@pytest.mark.filterwarnings("ignore:Heartbeat of storage is supposed")
def test_a_trial_whose_heart_stopped_is_found(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Database(url, heartbeat_interval=1, grace_period=3)
    study = optuna.create_study(storage=storage)
    numbers = [study.ask()._trial_id for _ in range(3)]
    assert storage._get_stale_trial_ids(study._study_id) == []  # one without a heartbeat was not begun
    storage.record_heartbeat(numbers[0])
    storage.record_heartbeat(numbers[1])
    assert storage._get_stale_trial_ids(study._study_id) == []
    monkeypatch.setattr(storage, "grace_period", -1)
    assert sorted(storage._get_stale_trial_ids(study._study_id)) == numbers[:2]
    assert sorted(RDBStorage._get_stale_trial_ids(storage, study._study_id)) == numbers[:2]


STEPS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(["ask", "say", "end", "prune", "fail", "enqueue", "look"]),
        st.floats(-9, 9, width=32),
    ),
    max_size=25,
)


@given(STEPS)
@hypothesis_settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_whatever_three_workers_do_in_turns_all_see_the_same_trials(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, str, float]]
) -> None:
    url = f"sqlite:///{tmp_path_factory.mktemp('turns') / 'study.db'}"
    studies = workers(url, 3)
    at: dict[int, list[optuna.Trial]] = {0: [], 1: [], 2: []}
    for who, what, value in steps:
        study, own = studies[who], at[who]
        if what == "enqueue":
            study.enqueue_trial({"nodes": 3}, user_attrs={"known": "three"})
        elif what == "look":
            study.get_trials(deepcopy=False)
        elif what == "ask":
            own.append(study.ask())
            own[-1].suggest_int("nodes", 1, 9)
            own[-1].suggest_categorical("builder", ["chain", "bush"])
            own[-1].set_user_attr("digest", str(value))
        elif own and what == "say":
            own[-1].report(value, len(own))
            own[-1].set_user_attr(UNREAD, {"value": value})
            own[-1].set_user_attr("metrics", value)
        elif own:
            state = {"end": TrialState.COMPLETE, "prune": TrialState.PRUNED, "fail": TrialState.FAIL}[what]
            study.tell(own.pop(), value if what == "end" else None, state=state)
    whole = as_optuna_has_it(url)
    for study in studies:
        seen = study.get_trials()
        assert [trial.state for trial in seen] == [trial.state for trial in whole]
        for one, other in zip(seen, whole, strict=True):
            if other.state.is_finished():
                assert one == other
            else:
                assert (one.params, one.distributions, one.number) == (
                    other.params,
                    other.distributions,
                    other.number,
                )
                assert one.system_attrs == other.system_attrs
                assert one.user_attrs.get("digest") == other.user_attrs.get("digest")
