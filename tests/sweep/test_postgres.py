"""A study in a real PostgreSQL: workers that share it, die, and lose it, measure every configuration once."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import optuna
import pytest
from helpers.fake_bench import FakeBench, opened, settings, sign_in
from helpers.postgres import PASSWORD, Postgres
from helpers.shared_study import check, finished
from helpers.waiting import wait_for
from optuna.trial import TrialState
from sqlalchemy import NullPool, create_engine, text

from specexp.config import ConfigError
from specexp.core.start import masked
from specexp.sweep.search import run_study
from specexp.sweep.storage import check_storage, open_storage
from specexp.sweep.study_config import StudyError
from specexp.sweep.trials import distinct_finished
from specexp.sweep.workers import MAX_RETRIES, Turn, enqueue, in_turn, open_turns, requeue

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

WORKER = Path(__file__).parents[1] / "helpers" / "database_worker.py"


def start(url: str, folder: Path, seconds: float = 0.01, *host: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(WORKER), url, str(folder), str(seconds), *host],
        stdout=subprocess.PIPE,
        text=True,
    )


def test_four_workers_measure_24_distinct_trials_and_none_twice(url: str, tmp_path: Path) -> None:
    workers = [start(url, tmp_path / str(number)) for number in range(4)]
    told = [worker.communicate()[0].split() for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * 4
    check(url, 4)
    measured = Counter(digest for own in told for digest in own)
    assert set(measured.values()) == {1}
    assert sum(bool(own) for own in told) > 1  # they did share it


@pytest.mark.parametrize("round_", range(10))
def test_a_worker_of_another_machine_that_is_killed_is_missed_by_its_heart(
    url: str, tmp_path: Path, round_: int
) -> None:
    workers = [start(url, tmp_path / host, 0.02, host) for host in ("here", "there")]
    wait_for(lambda: len(finished(url)) > 1)
    time.sleep(random.Random(round_).uniform(0, 3))
    before = finished(url)
    workers[0].send_signal(signal.SIGKILL)
    assert workers[1].wait() == 0
    check(url, 2, before)


def test_who_opens_a_study_while_the_server_restarts_waits_for_it(
    server: Postgres, url: str, tmp_path: Path
) -> None:
    server.stop()
    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(opened, settings(storage=url), tmp_path)
        time.sleep(0.5)
        assert not opening.done()
        server.start()
        assert opening.result().study_name == "fake"


def test_a_worker_that_waits_for_its_turn_waits_on_over_a_restart_of_the_server(
    server: Postgres, url: str, tmp_path: Path
) -> None:
    turns = [open_turns("fake", open_storage(url, tmp_path, requeue)) for _ in range(2)]
    began, ends, done = threading.Event(), threading.Event(), list[str]()

    def first(turn: Turn) -> None:
        began.set()
        ends.wait()
        assert turn.is_mine()
        done.append("first")

    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(in_turn, turns[0], "start", first, alone=False)
        began.wait()
        other = pool.submit(in_turn, turns[1], "start", lambda turn: done.append("other"), alone=False)
        time.sleep(0.5)
        server.stop()
        server.start()
        time.sleep(1.0)
        assert not done
        ends.set()
        assert one.result()
        assert other.result()
    assert done == ["first", "other"]


def test_a_search_goes_on_after_a_cut_within_any_statement(
    server: Postgres, url: str, tmp_path: Path
) -> None:
    chosen = settings(storage=url, n_trials=24)
    study = opened(chosen, tmp_path)
    sign_in(study, chosen, tmp_path, alone=False)
    searching = threading.Thread(target=run, args=(study, chosen))
    searching.start()
    admin = create_engine(server.url(), poolclass=NullPool)
    cut = text("select pg_terminate_backend(pid) from pg_stat_activity where datname = :name")
    while searching.is_alive():
        with admin.connect() as connection:
            connection.execute(cut, {"name": url.rpartition("/")[2]})
        time.sleep(0.7)
    check(url, 1)


def test_a_worker_on_another_kind_of_device_is_refused_by_name(url: str, tmp_path: Path) -> None:
    opened(settings(storage=url), tmp_path, "workload", "NVIDIA H200")
    with pytest.raises(StudyError, match="measures on NVIDIA H200, and this worker has NVIDIA A100"):
        opened(settings(storage=url), tmp_path, "workload", "NVIDIA A100")


def test_a_trial_whose_worker_dies_four_times_is_given_up(url: str, tmp_path: Path) -> None:
    chosen = settings(storage=url, enqueue=[])
    study = opened(chosen, tmp_path)
    enqueue(study, {"builder": "chain", "builder.init_args.nodes": 41}, {})
    for _ in range(MAX_RETRIES + 1):
        assert study.ask().suggest_categorical("builder", ["bush", "chain"]) == "chain"
        sign_in(study, chosen, tmp_path, alone=True)
    assert [trial.state for trial in study.trials] == [TrialState.FAIL] * (MAX_RETRIES + 1)
    assert "Chain/41" not in run(study, chosen).measured


def test_two_workers_that_begin_together_ask_for_a_dead_ones_trial_once(url: str, tmp_path: Path) -> None:
    chosen = settings(storage=url, enqueue=[])
    studies = [opened(chosen, tmp_path) for _ in range(2)]
    for number in range(4):
        enqueue(studies[0], {"builder": "chain", "builder.init_args.nodes": 41 + number}, {})
        studies[0].ask().suggest_categorical("builder", ["bush", "chain"])
    both = threading.Barrier(2)

    def begin(study: optuna.Study) -> int:
        both.wait()
        return sign_in(study, chosen, tmp_path, alone=True)

    with ThreadPoolExecutor(2) as pool:
        assert sum(pool.map(begin, studies)) == 4
    states = Counter(trial.state for trial in studies[0].get_trials())
    assert states == {TrialState.FAIL: 4, TrialState.WAITING: 4}


def run(study: optuna.Study, chosen: object) -> FakeBench:
    bench = FakeBench()
    run_study(study, chosen, bench)
    return bench


def test_what_cannot_be_reached_is_told_in_one_sentence_without_the_password(
    server: Postgres,
) -> None:
    for url, words in (
        (server.url("wr0ng"), 'password authentication failed for user "me"'),
        (server.url() + "_not", 'database "postgres_not" does not exist'),
    ):
        with pytest.raises(ConfigError) as caught:
            check_storage(url, ConfigError("command line: sweep.storage"))
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)
        assert not {PASSWORD, "wr0ng"} & {*str(caught.value).replace(":", " ").replace("@", " ").split()}
        assert masked(url) in str(caught.value)


def test_the_best_is_the_one_that_a_worker_alone_finds(url: str, tmp_path: Path) -> None:
    space = {
        "builder": {"type": "categorical", "choices": [{"name": "chain", "class_path": "Chain"}]},
        "builder.init_args.nodes": {"type": "int", "low": 14, "high": 24},
    }
    found = []
    for storage in (None, url):
        chosen = settings(storage=storage, space=space, enqueue=[], n_trials=11)
        study = opened(chosen, tmp_path)
        threads = [threading.Thread(target=run, args=(study, chosen))] if storage is None else []
        if storage is not None:
            others = [opened(chosen, tmp_path) for _ in range(2)]
            threads = [threading.Thread(target=run, args=(one, chosen)) for one in (study, *others)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        best = max(distinct_finished(study), key=lambda trial: trial.value)
        found.append((best.user_attrs["digest"], best.value))
    assert found[0] == found[1]
