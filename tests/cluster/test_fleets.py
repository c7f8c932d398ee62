"""Workers on a real Ray cluster of three nodes, and by submitit's local executor: what dies comes again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.mortal_work import begun, ended, work
from helpers.processes import is_alive, parent
from helpers.ray_cluster import ray_cluster, raylet_of
from helpers.waiting import wait_for

from specexp.cluster.fleet import Work
from specexp.cluster.options import ClusterOptions
from specexp.cluster.starting import start_fleet
from specexp.config import ConfigError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    pytest.importorskip("ray")
    with ray_cluster() as running:
        yield running


@pytest.fixture(autouse=True)
def _password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", "pa55word")


def test_three_workers_on_three_nodes_and_one_that_is_killed_comes_again(
    cluster: Any, tmp_path: Path
) -> None:
    works = [work(tmp_path, number, lives=2 if number == 1 else 1) for number in range(3)]
    fleet = start_fleet(ClusterOptions("ray", 3), works, 0, 1, tmp_path / "logs")
    try:
        wait_for(lambda: len(begun(tmp_path, 1)) == 1)
        os.kill(begun(tmp_path, 1)[0], signal.SIGKILL)
        assert ended(fleet) == ["ended"] * 3
        assert len(begun(tmp_path, 1)) == 2
        lives = (tmp_path / "1.begun").read_text().splitlines()
        assert [line.split()[1] for line in lives] == ["pa55word"] * 2
        assert [int(line.split()[2]) for line in lives] == [os.nice(0)] * 2  # it measures as it would here
    finally:
        fleet.stop()


def test_workers_outlive_who_started_them_and_are_taken_over(cluster: Any, tmp_path: Path) -> None:
    options = ClusterOptions("ray", 1, detach=True)
    fleet = start_fleet(options, [work(tmp_path, 0, lives=2)], 0, 1, tmp_path / "logs")
    wait_for(lambda: len(begun(tmp_path, 0)) == 1)
    fleet.close()
    (process,) = begun(tmp_path, 0)
    assert is_alive(process)
    fleet = start_fleet(options, [work(tmp_path, 0, lives=2)], 0, 1, tmp_path / "logs")
    assert [one.state for one in fleet.statuses()] == ["running"]
    fleet.stop()
    wait_for(lambda: not is_alive(process))
    assert begun(tmp_path, 0) == [process]


def test_a_worker_whose_node_dies_comes_again_on_another(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    with ray_cluster(on_the_head=0) as own:
        fleet = start_fleet(ClusterOptions("ray", 1), [work(tmp_path, 0, lives=2)], 0, 1, tmp_path / "logs")
        wait_for(lambda: len(begun(tmp_path, 0)) == 1)
        (process,) = begun(tmp_path, 0)
        raylet = parent(parent(process))
        (node,) = (one for one in own.worker_nodes if raylet_of(one) == raylet)
        own.remove_node(node, allow_graceful=False)
        assert ended(fleet) == ["ended"]
        fleet.close()
        assert not is_alive(process)
        assert len(begun(tmp_path, 0)) == 2


def test_a_cluster_that_is_too_small_says_what_it_has(cluster: Any, tmp_path: Path) -> None:
    for gpus, cpus, said in (
        (0, 2, "3 on 3 nodes, room for 0"),
        (1, 1, "1 GPU each are more .*: 0 on 3 nodes"),
    ):
        with pytest.raises(ConfigError, match=said):
            start_fleet(
                ClusterOptions("ray", 2), [work(tmp_path, 0), work(tmp_path, 1)], gpus, cpus, tmp_path
            )


def test_where_no_cluster_is_the_sentence_says_how_to_start_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    program = (
        "from specexp.cluster.starting import start_fleet; from specexp.cluster.options import ClusterOptions;"
        "from pathlib import Path; start_fleet(ClusterOptions('ray'), [], 0, 1, Path('x'))"
    )
    environment = {**os.environ, "RAY_ADDRESS": "127.0.0.1:9"}
    found = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert "--on ray finds no Ray cluster at 127.0.0.1:9" in found.stderr.splitlines()[-1]


def test_the_local_executor_starts_a_killed_worker_again(tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    works = [work(tmp_path, 0), work(tmp_path, 1, lives=2)]
    fleet = start_fleet(ClusterOptions("local", 2), works, 0, 1, tmp_path / "logs")
    try:
        wait_for(lambda: len(begun(tmp_path, 1)) == 1)
        os.kill(begun(tmp_path, 1)[0], signal.SIGKILL)
        assert ended(fleet) == ["ended", "ended"]
    finally:
        fleet.stop()
    kept = [path for path in (tmp_path / "logs").rglob("*") if path.is_file()]
    assert kept
    assert [path for path in kept if b"pa55word" in path.read_bytes()] == []


def test_a_worker_that_ends_with_a_sentence_is_not_started_again(tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    command = (
        sys.executable,
        "-c",
        "import sys; print('error: the disk is full', file=sys.stderr); sys.exit(1)",
    )
    fleet = start_fleet(ClusterOptions("local"), [Work("lone", command)], 0, 1, tmp_path)
    assert ended(fleet) == ["failed"]
    assert fleet.statuses()[0].said == "the disk is full"


def test_workers_of_this_machine_have_gpus_of_their_own_and_end_together(tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    program = (
        "import os, pathlib, sys, time; pathlib.Path(sys.argv[1]).write_text(os.environ['CUDA_VISIBLE_DEVICES']);"
        "pathlib.Path(sys.argv[1] + '.pid').write_text(str(os.getpid())); time.sleep(600)"
    )
    works = [Work(str(n), (sys.executable, "-c", program, str(tmp_path / str(n)))) for n in range(2)]
    fleet = start_fleet(ClusterOptions("local", 2), works, 2, 1, tmp_path / "logs")
    pids = [tmp_path / f"{n}.pid" for n in range(2)]
    wait_for(lambda: all(path.exists() and path.read_text() for path in pids))
    fleet.stop()
    wait_for(lambda: not any(is_alive(int(path.read_text())) for path in pids), 30)
    assert [(tmp_path / str(n)).read_text() for n in range(2)] == ["0,1", "2,3"]
