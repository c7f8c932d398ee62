"""A study in a real PostgreSQL: workers that share it, die, and lose it, measure every configuration once."""

import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from helpers.fake_bench import FakeBench, opened, settings
from helpers.postgres import PASSWORD
from helpers.shared_study import check, finished
from helpers.waiting import wait_for
from optuna.trial import TrialState
from sqlalchemy import NullPool, create_engine, text

from specexp.base.start import masked
from specexp.config import ConfigError
from specexp.sweep.storage import check_storage
from specexp.sweep.trial_queue import MAX_RETRIES, enqueue, put_back
from specexp.sweep.workers import SharedSearch, Workers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

WORKER = Path(__file__).parents[1] / "helpers" / "database_worker.py"


def start(url, folder, seconds=0.01, *host):
    return subprocess.Popen(
        [sys.executable, str(WORKER), url, str(folder), str(seconds), *host], stdout=subprocess.PIPE, text=True
    )


def test_four_workers_measure_24_distinct_trials_and_none_twice(url, tmp_path):
    workers = [start(url, tmp_path / str(number)) for number in range(4)]
    lists = [worker.communicate()[0].split() for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * 4
    check(url, 4)
    measured = Counter(digest for own in lists for digest in own)
    assert set(measured.values()) == {1}
    assert sum(bool(own) for own in lists) > 1  # they did share it


@pytest.mark.parametrize("round_", range(10))
def test_a_killed_worker_of_another_machine_is_found_by_its_heartbeat(url, tmp_path, round_):
    workers = [start(url, tmp_path / host, 0.02, host) for host in ("here", "there")]
    wait_for(lambda: len(finished(url)) > 1)
    time.sleep(random.Random(round_).uniform(0, 3))
    before = finished(url)
    workers[0].send_signal(signal.SIGKILL)
    assert workers[1].wait() == 0
    check(url, 2, before)


def test_opening_a_study_waits_for_a_restarting_server(server, url, tmp_path):
    server.stop()
    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(opened, settings(storage=url), tmp_path)
        time.sleep(0.5)
        assert not opening.done()
        server.start()
        assert opening.result().study_name == "fake"


def test_a_search_goes_on_after_a_cut_within_any_statement(server, url, tmp_path):
    chosen = settings(storage=url, n_trials=24)
    study = opened(chosen, tmp_path)
    Workers(None, chosen).join(study, chosen)
    searching = threading.Thread(target=run, args=(study, chosen))
    searching.start()
    admin = create_engine(server.url(), poolclass=NullPool)
    cut = text("select pg_terminate_backend(pid) from pg_stat_activity where datname = :name")
    while searching.is_alive():
        with admin.connect() as connection:
            connection.execute(cut, {"name": url.rpartition("/")[2]})
        time.sleep(0.7)
    check(url, 1)


def test_a_trial_is_given_up_after_four_deaths_of_its_worker(url, tmp_path):
    chosen = settings(storage=url, enqueue=[])
    study = opened(chosen, tmp_path)
    enqueue(study, {"builder": "chain", "builder.init_args.nodes": 41}, {})
    for _ in range(MAX_RETRIES + 1):
        assert study.ask().suggest_categorical("builder", ["bush", "chain"]) == "chain"
        put_back(study)
    assert [trial.state for trial in study.trials] == [TrialState.FAIL] * (MAX_RETRIES + 1)
    assert "Chain/41" not in run(study, chosen).measured


def run(study, chosen):
    bench = FakeBench()
    SharedSearch(study, chosen, bench).run()
    return bench


def test_an_unreachable_database_is_one_sentence_without_the_password(server):
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
