"""Killed at random moments, a study ends with its full number of distinct finished trials, none lost or
repeated.
"""

import errno
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import optuna
import pytest
from helpers.fake_bench import PROMPTS, FakeBench, opened, resume, search, settings
from optuna.trial import TrialState

from specexp.sweep.search import StudySearch
from specexp.sweep.storage import JournalFile
from specexp.sweep.trial_queue import enqueue
from specexp.sweep.trials import FINISHED, distinct_finished, reason_of

SCRIPT = Path(__file__).parents[1] / "helpers" / "fake_bench.py"


def start(folder, url=""):
    return subprocess.Popen([sys.executable, str(SCRIPT), str(folder), *([url] if url else [])])


def finished(folder):
    study = load(folder) if (folder / "journal.log").exists() else None
    return {} if study is None else {t.number: tuple(t.values) for t in study.trials if t.state in FINISHED}


def load(folder, url=""):
    """The study, or None before it has been made."""
    with suppress(Exception):
        storage = url or optuna.storages.JournalStorage(JournalFile(folder / "journal.log"))
        return optuna.load_study(study_name="fake", storage=storage)


def check_full(study):
    distinct = distinct_finished(study)
    assert len(distinct) == 12
    assert len({trial.user_attrs["digest"] for trial in distinct}) == 12
    assert {"short chain", "outsider"} <= {trial.user_attrs.get("known") for trial in distinct}
    left = [trial for trial in study.trials if trial.state in (TrialState.RUNNING, TrialState.WAITING)]
    assert not [trial for trial in left if "worker" in trial.user_attrs or trial.state is TrialState.WAITING]
    for trial in distinct:
        assert len(trial.intermediate_values) == trial.user_attrs.get("pruned_at", PROMPTS)


@pytest.mark.slow
@pytest.mark.parametrize("round_", range(10))
def test_killed_at_random_moments(tmp_path, round_):
    moments = random.Random(round_)
    kept: dict[int, tuple[float, ...]] = {}
    for _ in range(3):
        process = start(tmp_path)
        deadline = time.monotonic() + 20
        while not (tmp_path / "journal.log").exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(moments.uniform(0.0, 0.25))
        process.send_signal(signal.SIGKILL)
        process.wait()
        now = finished(tmp_path)
        assert kept.items() <= now.items()  # nothing finished was lost or measured again
        kept = now
    assert start(tmp_path).wait() == 0
    assert kept.items() <= finished(tmp_path).items()
    check_full(load(tmp_path))


@pytest.mark.slow
def test_killed_with_a_database(tmp_path):
    url = f"sqlite:///{tmp_path}/study.db"
    process = start(tmp_path, url)
    while process.poll() is None and not (study := load(tmp_path, url)):
        time.sleep(0.1)  # to look costs more than a trial
    while process.poll() is None and len(study.trials) < 4:
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert start(tmp_path, url).wait() == 0
    check_full(load(tmp_path, url))


@pytest.mark.slow
def test_two_workers_share_a_database(tmp_path):
    url = f"sqlite:///{tmp_path}/study.db"
    first = start(tmp_path / "a", url)
    while first.poll() is None and load(tmp_path, url) is None:
        time.sleep(0.1)
    second = start(tmp_path / "b", url)
    assert (first.wait(), second.wait()) == (0, 0)
    study = load(tmp_path, url)
    assert len(distinct_finished(study)) in (12, 13)  # the other's last trial was under way
    assert not [trial for trial in study.trials if trial.state is TrialState.RUNNING]


def test_a_killed_trial_is_queued_again(tmp_path):
    chosen = settings()
    study = search(tmp_path, FakeBench(), settings(n_trials=4))
    enqueue(study, {"builder": "chain", "builder.init_args.nodes": 41}, {})
    trial = study.ask()
    assert trial.suggest_categorical("builder", ["bush", "chain"]) == "chain"
    study = search(tmp_path, FakeBench(), chosen)
    dead = study.trials[trial.number]
    assert dead.state is TrialState.FAIL
    assert reason_of(dead) == "the process that ran it ended"
    again = next(t for t in study.trials if t.user_attrs.get("retry_of") == trial.number)
    assert again.params == {"builder": "chain", "builder.init_args.nodes": 41}


def test_the_last_point_of_a_grid_is_queued_again(tmp_path):
    """The sampler that enumerates ends a study when its last point fails, but not one that has not begun."""
    points = {"builder": ["chain"], "builder.init_args.nodes": [7]}
    grid = {"class_path": "optuna.samplers.GridSampler", "init_args": {"search_space": points, "seed": 0}}
    chosen = settings(sampler=grid, n_trials=1, enqueue=[])
    study = opened(chosen, tmp_path)
    trial = study.ask()
    assert trial.suggest_categorical("builder", ["bush", "chain"]) == "chain"
    assert trial.suggest_int("builder.init_args.nodes", 1, 64) == 7
    assert resume(study, chosen) == 1
    assert study.trials[0].state is TrialState.FAIL
    bench = FakeBench()
    StudySearch(study, chosen, bench).run()
    assert bench.measured == ["Chain/7"]


@pytest.mark.variants(1)
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
def test_an_interrupted_trial_and_one_on_a_full_disk_are_queued_again(tmp_path, error):
    class Interrupted(FakeBench):
        def measure(self, candidate, report, trial):
            if trial == 3:
                raise error
            return super().measure(candidate, report, trial)

    with pytest.raises(type(error)):
        search(tmp_path, Interrupted(), settings())
    study = search(tmp_path, FakeBench(), settings())
    assert study.trials[3].state is TrialState.FAIL
    assert study.trials[4].user_attrs["retry_of"] == 3
    assert study.trials[4].params == study.trials[3].params
    check_full(study)


@pytest.mark.variants(1)
@pytest.mark.parametrize("fails", [False, True])
def test_a_stopped_worker_that_lost_its_trial_continues(tmp_path, fails):
    url = f"sqlite:///{tmp_path}/study.db"

    class Stopped(FakeBench):
        def measure(self, candidate, report, trial):
            if trial == 3:
                load(tmp_path, url).tell(3, state=TrialState.FAIL)  # as another worker that missed its heart
                if fails:
                    raise RuntimeError("the models took too long")
            return super().measure(candidate, report, trial)

    study = search(tmp_path, Stopped(), settings(storage=url))
    assert study.trials[3].state is TrialState.FAIL
    check_full(study)


def test_a_half_written_line_is_cut_off(tmp_path):
    before = [trial.params for trial in search(tmp_path, FakeBench(), settings(n_trials=3)).trials]
    with (tmp_path / "journal.log").open("a") as journal:
        journal.write('{"op_code":4,"work')
    again = search(tmp_path, FakeBench(), settings())
    assert [trial.params for trial in again.trials[: len(before)]] == before
    check_full(again)
