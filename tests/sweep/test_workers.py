"""Workers of a study in a database: one of them confirms, and one that died gives its claim and its trials back."""

from types import SimpleNamespace

import pytest
from helpers.fake_bench import FakeBench, opened, settings
from optuna.trial import TrialState

from specexp.sweep import workers
from specexp.sweep.storage import open_storage
from specexp.sweep.trials import confirmable
from specexp.sweep.workers import Claim, SharedSearch, TakenOverError, Workers, claim_confirmation, open_confirmations

pytestmark = pytest.mark.filterwarnings("ignore:Heartbeat of storage")


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/study.db"


def confirmations_of(url, folder):
    return open_confirmations("fake", open_storage(url, folder))


def test_of_two_confirmations_one_is_left_to_the_other_worker(url, tmp_path):
    one, other = (confirmations_of(url, tmp_path) for _ in range(2))

    def confirm(claim):
        claim.check()
        with pytest.raises(TakenOverError):
            claim_confirmation(other, lambda claim: "other")
        return "one"

    assert claim_confirmation(one, confirm) == "one"
    assert claim_confirmation(other, lambda claim: "later") == "later"


@pytest.mark.slow
def test_the_claim_of_a_dead_process_is_ended_and_its_owner_learns_of_it(url, tmp_path):
    confirmations = confirmations_of(url, tmp_path)
    dead = confirmations.ask()
    dead.set_user_attr("worker", workers.worker().partition(":")[0] + ":999999999")
    assert claim_confirmation(confirmations, lambda claim: "confirmed") == "confirmed"
    with pytest.raises(TakenOverError):
        Claim(confirmations, dead).check()


def test_an_error_within_a_claim_is_raised_and_the_claim_ends(url, tmp_path):
    confirmations = confirmations_of(url, tmp_path)

    def fail(claim):
        confirmations.tell(0, state=TrialState.FAIL)  # as another worker does when heartbeats are missing
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        claim_confirmation(confirmations, fail)
    assert claim_confirmation(confirmations, lambda claim: 1) == 1


def test_a_worker_that_continues_a_study_counts_the_trials_of_dead_ones(url, tmp_path):
    chosen = settings(storage=url, confirm={"best": 1})
    study = opened(chosen, tmp_path)
    study.ask().set_user_attr("worker", workers.worker().partition(":")[0] + ":999999999")
    process = Workers(None, chosen)
    assert process.result(study) is None
    assert study.trials[0].state is TrialState.RUNNING  # the models are not loaded yet, and may be refused
    assert process.join(study, chosen) == 1


@pytest.mark.slow
def test_a_configuration_that_two_workers_queue_at_once_is_measured_once(url, tmp_path):
    chosen = settings(n_trials=3, storage=url)
    studies = [opened(chosen, tmp_path) for _ in range(2)]
    Workers(None, chosen).join(studies[0], chosen)
    for trial in studies[0].trials:  # as if the other worker had not seen them
        studies[0].enqueue_trial(trial.user_attrs["queued"], user_attrs=trial.user_attrs)
    benches = [FakeBench(), FakeBench()]
    for study, bench in zip(studies, benches, strict=True):
        SharedSearch(study, chosen, bench).run()
    measured = [digest for bench in benches for digest in bench.measured]
    assert len(measured) == len(set(measured)) == 3


@pytest.mark.slow
def test_the_known_configuration_of_a_dead_worker_is_measured_before_the_confirmation(url, tmp_path, monkeypatch):
    chosen = settings(n_trials=3, storage=url, confirm={"best": 1})
    study = opened(chosen, tmp_path)
    Workers(None, chosen).join(study, chosen)
    dying = study.ask()
    dying.set_user_attr("worker", "elsewhere:1")
    bench = FakeBench()
    SharedSearch(study, chosen, bench).run()
    name = dying.user_attrs["known"]
    assert name not in [trial.user_attrs.get("known") for trial in confirmable(study)]

    def dies(seconds):
        monkeypatch.setattr("specexp.sweep.workers.is_dead", lambda trial: "known" in trial.user_attrs)

    confirmed: list[str] = []

    def confirm(*given):
        confirmed.extend(trial.user_attrs.get("known", "") for trial in confirmable(study))
        return "concluded"

    def search():
        SharedSearch(study, chosen, bench).run()

    monkeypatch.setattr("specexp.sweep.workers.sleep", dies)
    monkeypatch.setattr("specexp.sweep.workers.conclude", confirm)
    monkeypatch.setattr(Workers, "unchanged", lambda process, trials: None)
    process = Workers(None, chosen)
    process.confirmations = confirmations_of(url, tmp_path)
    assert process.conclude(SimpleNamespace(trials=study, say=print), search) == "concluded"
    assert study.trials[dying.number].state is TrialState.FAIL
    assert name in confirmed
