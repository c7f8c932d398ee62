"""Whole studies by workers of a cluster on a real PostgreSQL: one of them confirms and exports, and none tells the
password; a Ray cluster that loses its head loses no trial.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import nullcontext, suppress
from pathlib import Path

import optuna
import pytest
from helpers.first_hour import QUESTIONS, SWEEP
from helpers.postgres import PASSWORD
from helpers.processes import is_alive
from helpers.ray_cluster import ray_cluster
from helpers.shared_study import check, finished
from helpers.slurm_cluster import slurm_cluster
from helpers.waiting import wait_for

from specexp.bench.record import read_records
from specexp.cluster.options import CLUSTERS
from specexp.sweep.alone import CONCLUDED_BY
from specexp.sweep.trials import distinct_finished

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TESTS = Path(__file__).parents[1]
CONFIRMED = "n_trials: 4, confirm: {best: 1, data: {max_prompts: 2}}, export: {to: kept, kind: composition}"


@pytest.fixture
def folder(tmp_path: Path, model_folder: str) -> Path:
    """A working directory with a study, its prompts and its model."""
    (tmp_path / "question.jsonl").write_text(QUESTIONS)
    (tmp_path / "sweep.yaml").write_text(SWEEP.replace("n_trials: 3, confirm: null", CONFIRMED))
    shutil.copytree(model_folder, tmp_path / "model")
    return tmp_path


def sweep(folder: Path, url: str, *more: str) -> subprocess.Popen[str]:
    models = ("--pair.target", "model", "--pair.target_dtype", "float32")
    command = (sys.executable, "-m", "specexp.sweep", "sweep.yaml", "--storage", url, *models, *more)
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def trials_of(url: str) -> list[optuna.trial.FrozenTrial]:
    """Those that have finished; none before there is a study."""
    with suppress(Exception):
        return distinct_finished(optuna.load_study(study_name="sweep", storage=url))
    return []


def check_confirmed_once(url: str, folder: Path) -> None:
    """One worker confirmed: every answer was recorded once, and one composition was exported."""
    (results,) = folder.rglob("confirm.jsonl")
    answers = Counter((one.arm, *one.key) for one in read_records(results))
    assert set(answers.values()) == {1}
    manifests = [path for path in folder.glob("kept/v*/artifact.json") if not path.parent.is_symlink()]
    kinds = Counter(json.loads(path.read_text())["kind"] for path in manifests)
    assert kinds["composition"] == 1
    assert kinds["plain-decoding"] <= 1
    study = optuna.load_study(study_name="sweep", storage=url)
    assert Path(study.user_attrs[CONCLUDED_BY]["folder"]) == results.parent


def files_with_the_password(folder: Path) -> list[Path]:
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    assert files
    return [path for path in files if PASSWORD.encode() in path.read_bytes()]


@pytest.mark.parametrize("on", ["local", "ray", "slurm"])
def test_two_workers_search_and_one_of_them_confirms_and_exports(
    on: str, url: str, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pytest.importorskip(CLUSTERS[on])
    started = {"local": nullcontext, "ray": lambda: ray_cluster(2), "slurm": lambda: slurm_cluster(own)}
    own = tmp_path_factory.mktemp("cluster")
    with started[on]() as cluster:
        leading = sweep(folder, url, "--on", on, "--workers", "2")
        said = leading.communicate()[0]
        assert leading.returncode == 0, said
        logs = [
            *(files_with_the_password(Path(cluster.head_node.get_session_dir_path())) if on == "ray" else []),
            *(path for path in own.glob("*.log") if PASSWORD.encode() in path.read_bytes()),
        ]
    study = optuna.load_study(study_name="sweep", storage=url)
    digests = Counter(trial.user_attrs["digest"] for trial in distinct_finished(study))
    assert len(digests) >= 4
    assert set(digests.values()) == {1}
    check_confirmed_once(url, folder)
    assert PASSWORD not in said
    assert [*files_with_the_password(folder), *logs] == []


def test_of_two_commands_typed_at_once_one_confirms(url: str, folder: Path) -> None:
    searched = sweep(folder, url, "--sweep.confirm", "null", "--sweep.export", "null", "--output", "search")
    assert searched.wait() == 0, searched.communicate()[0]
    typed = [sweep(folder, url, "--output", name) for name in ("one", "other")]  # folders that nobody shares
    said = [one.communicate()[0] for one in typed]
    assert [one.returncode for one in typed] == [0, 0], said
    check_confirmed_once(url, folder)
    left = ("Another worker confirms the best trials.", "The best trials were confirmed by ")
    assert sum(any(words in one for words in left) for one in said) == 1


def test_a_worker_whose_disk_is_full_says_so_and_the_others_finish(url: str, folder: Path) -> None:
    small = folder / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", small], check=False).returncode:
        pytest.skip("nobody but root can mount a small disk")
    try:
        workers = [sweep(folder, url, "--output", "small")]
        wait_for(lambda: bool(trials_of(url)))
        with suppress(OSError), (small / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(bytes(4096))
        workers.append(sweep(folder, url, "--output", "large"))
        full, well = [worker.communicate()[0] for worker in workers]
    finally:
        subprocess.run(["umount", small], check=True)
    assert [worker.returncode for worker in workers] == [1, 0], (full, well)
    assert "cannot be written (No space left on device)" in full
    assert "Traceback" not in full
    study = optuna.load_study(study_name="sweep", storage=url)
    assert set(Counter(trial.user_attrs["digest"] for trial in distinct_finished(study)).values()) == {1}
    check_confirmed_once(url, folder)


LEADING = """
import sys
from pathlib import Path
from specexp.cluster.fleet import Work
from specexp.cluster.lead import lead
from specexp.cluster.options import ClusterOptions
url, folder, worker = sys.argv[1:]
works = [Work(f"fake {n}", (sys.executable, worker, url, f"{folder}/{n}", "0.2")) for n in range(2)]
lead(ClusterOptions("ray", 2), works, Path(folder) / "logs", gpus=0)
"""


def test_a_cluster_that_loses_its_head_loses_no_trial(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "10")

    def lead() -> subprocess.Popen[bytes]:
        worker = TESTS / "helpers" / "database_worker.py"
        return subprocess.Popen((sys.executable, "-c", LEADING, url, str(tmp_path), str(worker)))

    with ray_cluster(2) as cluster:
        leading = lead()
        wait_for(lambda: len(finished(url)) > 1)
        study = optuna.load_study(study_name="fake", storage=url)
        workers = [int(name.rpartition(":")[2]) for name in study.user_attrs if name.startswith("worker ")]
        before = finished(url)
        for name in ("gcs_server", "raylet"):
            os.kill(cluster.head_node.all_processes[name][0].process.pid, signal.SIGKILL)
        assert leading.wait(120) != 0
        wait_for(lambda: not any(is_alive(worker) for worker in workers))
    time.sleep(1)
    with ray_cluster(2):
        assert lead().wait(300) == 0
    check(url, 4)
    assert before.items() <= finished(url).items()
