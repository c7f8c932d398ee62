"""Studies by two workers on clusters and a real PostgreSQL: Ray loses its head, or a node, at random moments."""

import os
import random
import signal
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import optuna
import pytest
from helpers.clusters import is_alive, parent, ray_cluster, raylet_of, slurm_cluster, start
from helpers.postgres import PASSWORD
from helpers.shared_study import check, finished
from helpers.waiting import wait_for
from helpers.whole_study import WholeStudy, files_with_the_password

from specexp.cluster.launch import CLUSTERS
from specexp.sweep.workers import WORKER

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROUNDS = range(3)
SECONDS = 0.1
"""Seconds of a prompt: 24 trials of twelve prompts take two workers a quarter of a minute."""

LIFE = 20.0
"""Most seconds between the start of a study and the loss."""


def lead(url, folder):
    worker = str(Path(__file__).parents[1] / "helpers" / "database_worker.py")
    return start(folder, "ray", *([sys.executable, worker, url, f"{folder}/{n}", str(SECONDS)] for n in range(2)))


def workers(url):
    """Processes of the workers that signed in and live."""
    try:
        names = optuna.load_study(study_name="fake", storage=url).user_attrs
    except Exception:  # no study yet
        return []
    numbers = [int(name.rpartition(":")[2]) for name in names if name.startswith(WORKER)]
    return [process for process in numbers if is_alive(process)]


@pytest.mark.parametrize("round_", ROUNDS)
def test_a_cluster_that_loses_its_head_loses_no_trial(round_, url, tmp_path, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "5")
    with ray_cluster(2) as cluster:
        leading = lead(url, tmp_path)
        time.sleep(random.Random(round_).uniform(0, LIFE))
        before = finished(url)
        for name in ("gcs_server", "raylet"):
            os.kill(cluster.head_node.all_processes[name][0].process.pid, signal.SIGKILL)
        leading.wait(120)
        wait_for(lambda: not workers(url))
    with ray_cluster(2):
        assert lead(url, tmp_path).wait(300) == 0
    check(url, 4, before)


@pytest.fixture(scope="module")
def cluster():
    pytest.importorskip("ray")
    with ray_cluster() as running:
        yield running


@pytest.mark.parametrize("round_", ROUNDS)
def test_a_cluster_that_loses_a_node_starts_its_worker_on_another(round_, cluster, url, tmp_path):
    moments = random.Random(round_)
    leading = lead(url, tmp_path)
    time.sleep(moments.uniform(0, LIFE))
    before = finished(url)
    at_work = {parent(parent(process)) for process in workers(url)}
    busy = [node for node in cluster.worker_nodes if raylet_of(node) in at_work]
    cluster.remove_node(moments.choice(busy or [*cluster.worker_nodes]), allow_graceful=False)
    try:
        assert leading.wait(300) == 0
    finally:
        cluster.add_node(num_cpus=1)  # for the next round
    check(url, 4, before)


@pytest.mark.parametrize("on", ["local", "ray", "slurm"])
def test_two_workers_search_and_one_of_them_confirms_and_exports(on, url, tmp_path, model_folder, tmp_path_factory):
    pytest.importorskip(CLUSTERS[on] or "specexp")
    started = {"local": nullcontext, "ray": lambda: ray_cluster(2), "slurm": lambda: slurm_cluster(own)}
    own = tmp_path_factory.mktemp("cluster")
    study = WholeStudy(tmp_path, model_folder, url)
    with started[on]() as cluster:
        leading = study.type("--on", on, "--workers", "2")
        printed = leading.communicate()[0]
        assert leading.returncode == 0, printed
        logs = [
            *(files_with_the_password(Path(cluster.head_node.get_session_dir_path())) if on == "ray" else []),
            *(path for path in own.glob("*.log") if PASSWORD.encode() in path.read_bytes()),
        ]
    study.check([printed])
    assert logs == []
