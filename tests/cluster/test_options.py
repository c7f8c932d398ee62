"""The command-line options of workers, and what is refused."""

from types import SimpleNamespace
from typing import Any

import pytest

from specexp.cluster.launch import ClusterOptions, take_options
from specexp.config import ConfigError
from specexp.sweep.workers import run_study_workers

pytestmark = pytest.mark.unit


def test_the_options_of_a_cluster_are_split_off():
    typed = "x.yaml --on slurm --workers 4 --pair.device cuda --slurm-partition gpu --slurm-time=90"
    options, rest = take_options(typed.split())
    assert options == ClusterOptions("slurm", 4, None, {"slurm_partition": "gpu", "slurm_time": 90})
    assert rest == ["x.yaml", "--pair.device", "cuda"]
    assert take_options(["x.yaml", "--n-trials", "3"]) == (None, ["x.yaml", "--n-trials", "3"])


def test_a_worker_has_a_gpu_where_the_experiment_is_on_one():
    assert ClusterOptions("ray").gpus_on("cuda:0") == 1
    assert ClusterOptions("ray").gpus_on("cpu") == 0
    assert ClusterOptions("ray", gpus=2).gpus_on("cuda") == 2


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        ("--on kubernetes", "--on must be one of 'local', 'ray', 'slurm', got 'kubernetes'"),
        ("--workers 3", "--workers needs --on ray, slurm, local"),
        ("--slurm-partition gpu", "--slurm-partition needs --on"),
        ("--on ray --slurm-partition gpu", "--slurm-... needs --on slurm, got --on ray"),
        ("--on ray --workers 0", "--workers must be an integer >= 1, got 0"),
        ("--on ray --workers many", "--workers must be an integer, got 'many'"),
        ("--on ray --gpus-per-worker -1", "--gpus-per-worker must be an integer >= 0, got -1"),
    ],
)
def test_a_wrong_option_is_refused(typed, text):
    with pytest.raises(ConfigError, match="command line: ") as caught:
        take_options(typed.split())
    assert text in str(caught.value)


def test_workers_of_this_machine_share_its_gpus(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    typed = "--on local --workers 3 --gpus-per-worker"
    assert take_options([*typed.split(), "1"])[0] == ClusterOptions("local", 3, 1)
    with pytest.raises(ConfigError, match=r"must be at most 1, because .* has 3 GPUs for 3 workers, got 2"):
        take_options([*typed.split(), "2"])


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setattr("specexp.cluster.launch.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r'--on slurm needs submitit.*pip install -e "\.\[cluster\]"'):
        take_options(["--on", "slurm"])


@pytest.mark.parametrize(
    ("on", "storage", "why"),
    [
        ("ray", None, "all workers must reach the study"),
        ("slurm", "sqlite:///x.db", "serves one machine only"),
    ],
)
def test_a_study_of_many_machines_needs_a_database(on, storage, why):
    config: Any = SimpleNamespace(sweep=SimpleNamespace(storage=storage))
    unused: Any = None
    with pytest.raises(ConfigError, match=f"--on {on} needs a database, because .*{why}: --storage postgresql:"):
        run_study_workers(config, ClusterOptions(on), [], unused)
