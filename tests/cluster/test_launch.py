"""Workers of this machine, on a real Ray cluster, and under a real SLURM: they end, fail, are killed or interrupted."""

import os
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from helpers.clusters import (
    begun,
    is_alive,
    parent,
    processes,
    queued,
    ray_cluster,
    raylet_of,
    slurm_cluster,
    start,
    work,
)
from helpers.waiting import wait_for

PASSWORD = "pa55word"
FULL = [sys.executable, "-c", "import sys; print('error: the disk is full', flush=True); sys.exit('bye')"]

timed = pytest.mark.timeout(300)
slow = pytest.mark.slow
everywhere = pytest.mark.parametrize(
    "cluster", ["local", pytest.param("ray", marks=slow), pytest.param("slurm", marks=slow)], indirect=True
)


@pytest.fixture(autouse=True)
def _password(monkeypatch):
    monkeypatch.setenv("PGPASSWORD", PASSWORD)


@pytest.fixture(scope="module")
def ray():
    pytest.importorskip("ray")
    with ray_cluster() as running:
        yield Path(running.head_node.get_session_dir_path())


@pytest.fixture(scope="module")
def slurm():
    pytest.importorskip("submitit")
    with tempfile.TemporaryDirectory(prefix="specexp-slurm-") as folder, slurm_cluster(Path(folder)) as state:
        yield state


@pytest.fixture
def cluster(request):
    if request.param != "local":
        request.getfixturevalue(request.param)
    return str(request.param)


@pytest.mark.slow
@timed
@everywhere
def test_workers_end_in_their_environment_and_no_file_holds_the_password(cluster, tmp_path, request):
    starter = start(tmp_path, cluster, work(tmp_path, 0), work(tmp_path, 1))
    text, errors = starter.communicate()
    assert starter.returncode == 0, errors
    assert {"w 0 ended", "w 1 ended"} <= {*text.splitlines()}
    for number in range(2):
        (life,) = begun(tmp_path, number)
        assert life[1:3] == [PASSWORD, str(os.nice(0))]
    kept = [path for path in (tmp_path / "logs").rglob("*") if path.is_file()]
    if cluster == "ray":
        kept += [path for path in request.getfixturevalue("ray").rglob("*.*") if path.is_file()]
    assert len(kept) >= 2
    assert [path for path in kept if PASSWORD.encode() in path.read_bytes()] == []


@timed
@everywhere
def test_a_failed_worker_is_reported_with_its_error_and_the_others_go_on(cluster, tmp_path):
    starter = start(tmp_path, cluster, FULL, work(tmp_path, 0), work(tmp_path, 1, lives=2))
    wait_for(lambda: processes(tmp_path, 1))
    os.kill(processes(tmp_path, 1)[0], signal.SIGKILL)
    text, errors = starter.communicate()
    assert starter.returncode == 1
    assert "w 1 ended" in text
    assert sorted(line for line in errors.splitlines() if line.startswith("error: ")) == [
        "error: w 0 failed: the disk is full; the same command continues",
        "error: w 2 failed: it was killed by SIGKILL; the same command continues",
    ]
    assert "the disk is full\nbye" in (tmp_path / "logs" / "w_0.log").read_text()


@pytest.mark.variants(1)
@timed
@everywhere
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_workers(cluster, number, tmp_path):
    starter = start(tmp_path, cluster, work(tmp_path, 0, lives=2), work(tmp_path, 1, lives=2))
    wait_for(lambda: processes(tmp_path, 0, 1))
    starter.send_signal(number)
    _, errors = starter.communicate(timeout=60)
    assert starter.returncode == 128 + number
    assert "error: interrupted" in errors
    wait_for(lambda: not any(map(is_alive, processes(tmp_path, 0, 1))), 60)
    assert cluster != "slurm" or wait_for(lambda: not queued(), 60) is None


@timed
@pytest.mark.parametrize("cluster", ["local", pytest.param("ray", marks=slow)], indirect=True)
def test_workers_end_when_their_starter_is_killed(cluster, tmp_path):
    starter = start(tmp_path, cluster, work(tmp_path, 0, lives=2))
    wait_for(lambda: processes(tmp_path, 0))
    starter.kill()
    starter.communicate()
    wait_for(lambda: not is_alive(processes(tmp_path, 0)[0]), 60)


@pytest.mark.slow
def test_workers_of_this_machine_have_gpus_of_their_own(tmp_path):
    assert start(tmp_path, "local", work(tmp_path, 0), work(tmp_path, 1), gpus=2).wait() == 0
    assert [begun(tmp_path, number)[0][3] for number in range(2)] == ["0,1", "2,3"]


@timed
@slow
def test_a_worker_on_ray_restarts_on_another_node_if_its_node_dies(tmp_path):
    pytest.importorskip("ray")
    with ray_cluster(on_the_head=0) as own:
        starter = start(tmp_path, "ray", work(tmp_path, 0, lives=2))
        wait_for(lambda: processes(tmp_path, 0))
        (process,) = processes(tmp_path, 0)
        (node,) = (one for one in own.worker_nodes if raylet_of(one) == parent(parent(process)))
        own.remove_node(node, allow_graceful=False)
        assert starter.wait() == 0
        assert not is_alive(process)
        assert len(begun(tmp_path, 0)) == 2


@timed
@slow
@pytest.mark.parametrize(("gpus", "threads"), [(0, 2), (1, 1)])
def test_a_worker_that_no_node_of_ray_has_room_for_is_refused(gpus, threads, ray, tmp_path):
    starter = start(tmp_path, "ray", work(tmp_path, 0), gpus=gpus, threads=threads)
    assert f"no node of the Ray cluster has {gpus} GPU" in starter.communicate()[1]
    assert starter.returncode == 2


@pytest.mark.slow
@timed
def test_a_missing_cluster_is_refused_with_a_remedy(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    pytest.importorskip("submitit")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    assert "finds no Ray cluster at 127.0.0.1:9" in start(tmp_path, "ray", FULL).communicate()[1]
    monkeypatch.setenv("PATH", "")
    assert "--on slurm needs sbatch" in start(tmp_path, "slurm", FULL).communicate()[1]


@timed
@slow
@pytest.mark.parametrize("how", ["requeue", "time", "preempted"])
def test_a_job_that_slurm_puts_back_goes_on(how, slurm, tmp_path):
    starter = start(tmp_path, "slurm", work(tmp_path, 0, lives=2))
    wait_for(lambda: processes(tmp_path, 0))
    job = queued()[0].split()[0]
    urgent = ("sbatch", "--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null")
    command = {
        "requeue": ("scontrol", "requeue", job),
        "time": ("scancel", "--signal=USR2", job),  # as SLURM does some time before the job's is over
        "preempted": (*urgent, "--wrap=sleep 3"),
    }
    subprocess.run(command[how], check=True)
    assert starter.wait() == 0
    assert len(begun(tmp_path, 0)) == 2


@timed
@slow
def test_a_job_has_the_requested_cores_and_setup(slurm, tmp_path):
    program = "import os; print(os.environ['SRUN_CPUS_PER_TASK'], os.environ['MODULE'])"
    more = {"slurm_setup": "export MODULE=cuda", "slurm_srun_args": "--quiet --kill-on-bad-exit=1"}
    assert start(tmp_path, "slurm", [sys.executable, "-c", program], threads=2, **more).wait() == 0
    assert (tmp_path / "logs" / "w_0.log").read_text() == "2 cuda\n"


@timed
@slow
@pytest.mark.parametrize(
    ("given", "gpus", "text"),
    [
        ({"slurm_partition": "nosuch"}, 0, "SLURM refuses the workers (invalid partition"),
        ({}, 3, "generic resource"),
        ({"slurm_color": "red"}, 0, "'color'"),
        ({"slurm_time": "8:00:00"}, 0, "--slurm-time must be whole minutes, got '8:00:00'"),
    ],
)
def test_a_refusal_of_slurm_is_one_sentence(given, gpus, text, slurm, tmp_path):
    starter = start(tmp_path, "slurm", FULL, gpus=gpus, **given)
    (error,) = starter.communicate()[1].splitlines()
    assert text in error
    assert starter.returncode == 2


@timed
@slow
def test_the_script_of_the_page_goes_on_when_its_time_is_over(slurm, tmp_path, monkeypatch):
    script = Path(__file__).parents[2] / "docs" / "cluster" / "study.sh"
    python = tmp_path / "python"
    first = shlex.join(work(tmp_path, 0, lives=2))
    python.write_text(f"#!/bin/bash\necho $SRUN_CPUS_PER_TASK $* >> {tmp_path}/typed\nexec {first}\n")
    python.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    given = ("--array=0", "--gpus-per-node=0", "--cpus-per-task=2", f"--output={tmp_path}/log")
    job = subprocess.run(("sbatch", "--parsable", *given, script), check=True, capture_output=True, text=True)
    wait_for(lambda: processes(tmp_path, 0))
    # As SLURM does two minutes before.
    subprocess.run(("scancel", "--batch", "--signal=TERM", f"{job.stdout.strip()}_0"), check=True)
    wait_for(lambda: (tmp_path / "0.ended").exists())
    command = script.read_text().partition("-m ")[2].partition(" &")[0]
    assert (tmp_path / "typed").read_text().splitlines() == [f"2 -m {command}"] * 2
