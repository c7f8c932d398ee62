"""What a command line says of a cluster, and the sentences where it cannot be had."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from specexp.cluster.fleet import Status, environment_of_workers, last_line
from specexp.cluster.lead import summary, table_of
from specexp.cluster.options import ClusterOptions, take_options
from specexp.cluster.starting import start_fleet
from specexp.config import ConfigError
from specexp.sweep.workers import checked_storage


def test_the_options_of_a_cluster_are_split_off() -> None:
    typed = "x.yaml --on slurm --workers 4 --pair.device cuda --slurm-partition gpu --slurm-time=90 --detach"
    options, rest = take_options(typed.split())
    assert options == ClusterOptions("slurm", 4, None, True, {"slurm_partition": "gpu", "slurm_time": 90})
    assert rest == ["x.yaml", "--pair.device", "cuda"]
    assert take_options(["x.yaml", "--n-trials", "3"]) == (None, ["x.yaml", "--n-trials", "3"])


def test_a_worker_has_a_gpu_where_the_experiment_is_on_one() -> None:
    assert ClusterOptions("ray").gpus_on("cuda:0") == 1
    assert ClusterOptions("ray").gpus_on("cpu") == 0
    assert ClusterOptions("ray", gpus=2).gpus_on("cuda") == 2


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("--on kubernetes", "invalid choice: 'kubernetes'"),
        ("--workers 3", "--workers is for workers of a cluster: add --on ray, slurm, local"),
        ("--slurm-partition gpu", "add --on"),
        ("--on ray --slurm-partition gpu", "--slurm-... goes with --on slurm, and --on ray was given"),
        ("--on local --detach", "--detach is for workers that Ray or SLURM keeps; those of --on local end"),
        ("--on ray --workers 0", "--workers is 0; at least 1 is expected"),
        ("--on ray --workers many", "--workers: invalid int value: 'many'"),
        ("--on ray --gpus-per-worker -1", "--gpus-per-worker is -1; at least 0 is expected"),
    ],
)
def test_what_is_no_cluster_is_refused(typed: str, said: str) -> None:
    with pytest.raises(ConfigError, match="command line: ") as caught:
        take_options(typed.split())
    assert said in str(caught.value)


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specexp.cluster.options.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r'--on slurm needs submitit.*pip install -e "\.\[cluster\]"'):
        take_options(["--on", "slurm"])


def test_a_study_of_many_machines_needs_a_database() -> None:
    with pytest.raises(
        ConfigError, match="--on ray needs a database that all workers reach: --storage postgresql:"
    ):
        checked_storage(None, ClusterOptions("ray"))
    with pytest.raises(ConfigError, match="an SQLite file serves one alone"):
        checked_storage("sqlite:///x.db", ClusterOptions("slurm"))
    assert checked_storage("sqlite:///x.db", ClusterOptions("local")) == "sqlite:///x.db"


def test_without_slurm_the_sentence_says_where_to_type_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match="no sbatch here: type the command on a login node"):
        start_fleet(ClusterOptions("slurm"), [], 0, None, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_workers_get_what_libraries_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", "pa55word")
    monkeypatch.setenv("LD_PRELOAD_OF_THIS_SHELL", "x")
    passed = environment_of_workers()
    assert passed["PGPASSWORD"] == "pa55word"
    assert "LD_PRELOAD_OF_THIS_SHELL" not in passed


def test_the_last_sentence_of_a_log_is_told(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_line(log) == ""
    log.write_text("error: the disk is full\nTraceback of whoever ran it\n")
    assert last_line(log) == "the disk is full"
    log.write_text("trial 3\n\n")
    assert last_line(log) == "trial 3"


def test_one_table_shows_all_workers() -> None:
    statuses = [Status("a 0", "running", "node:1"), Status("a 1", "failed", "node:2", "the disk is full")]
    assert summary(statuses) == "2 workers: 1 running, 1 failed"
    console = Console(width=100)
    with console.capture() as shown:
        console.print(table_of(statuses))
    assert "the disk is full" in shown.get()
