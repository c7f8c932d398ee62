"""Real Ray and SLURM clusters on this machine, and workers that wait to be killed."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from helpers.waiting import wait_for
from specexp.engines.server import free_port


@contextmanager
def ray_cluster(nodes: int = 3, on_the_head: int = 1) -> Iterator[Any]:
    """Start a cluster of nodes with one processor each, ``on_the_head`` on the first, at ``RAY_ADDRESS``."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    head = {"num_cpus": on_the_head, "include_dashboard": False}
    running = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(nodes - 1):
            running.add_node(num_cpus=1)
        with patch.dict(os.environ, RAY_ADDRESS=running.address):
            yield running
    finally:
        running.shutdown()


def raylet_of(node: Any) -> int:
    """Return the process of a node; its children are actors."""
    return int(node.all_processes["raylet"][0].process.pid)


SETTINGS = """\
ClusterName=specexp
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
AuthInfo=cred_expire=10
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=5
ReturnToService=2
PartitionName=main Nodes=ALL Default=YES PriorityTier=1
PartitionName=urgent Nodes=ALL PriorityTier=2
"""
"""``cred_expire``: seconds that a requeued job waits. ``KillWait``: seconds between SIGTERM and SIGKILL. Without
``config_overrides`` a node has no more processors than the machine."""


@contextmanager
def slurm_cluster(folder: Path, nodes: int = 2, cpus: int = 2) -> Iterator[Path]:
    """Start nodes with ``cpus`` processors each at ``SLURM_CONF``; yield the folder of the controller's state."""
    missing = [name for name in ("slurmctld", "slurmd", "sbatch", "srun") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"no {missing[0]} here: apt install slurm-wlm")
    host = socket.gethostname()
    settings = SETTINGS.format(folder=folder, host=host, port=free_port(), user=getpass.getuser())
    names = [f"node{number}" for number in range(nodes)]
    for name in names:
        settings += f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} CPUs={cpus}\n"
    for part in ("state", *(f"spool-{name}" for name in names)):
        (folder / part).mkdir()
    written = folder / "slurm.conf"
    written.write_text(settings)
    with patch.dict(os.environ, SLURM_CONF=str(written)), ExitStack() as daemons:
        for command in (["slurmctld", "-D"], *(["slurmd", "-D", "-N", name] for name in names)):
            daemons.enter_context(_running(command, folder))
        wait_for(lambda: _idle() == nodes, 60, f"the nodes did not answer: see {folder}")
        try:
            yield folder / "state"
        finally:
            subprocess.run(["scancel", "--user", getpass.getuser()], check=True)
            wait_for(lambda: not queued(), 60, "jobs did not end")


def queued() -> list[str]:
    """Return the jobs that wait, run or are ending, as ``12_0 RUNNING``."""
    return _lines_of("squeue", "-h", "-r", "-o", "%i %T")


def _idle() -> int:
    return len(_lines_of("sinfo", "-h", "-N", "-p", "main", "-t", "idle", "-o", "%N"))


def _lines_of(*command: str) -> list[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()


@contextmanager
def _running(command: list[str], folder: Path) -> Iterator[None]:
    with (folder / "daemons.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


PROGRAM = """
import os, sys, time
from pathlib import Path
folder, number, lives = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
begun = folder / f"{number}.begun"
with begun.open("a") as file:
    known = os.environ.get("PGPASSWORD"), os.nice(0), os.environ.get("CUDA_VISIBLE_DEVICES") or None
    print(os.getpid(), *known, file=file)
if len(begun.read_text().splitlines()) < lives:
    time.sleep(600)
(folder / f"{number}.ended").touch()
"""

STARTER = """
import json, signal, sys
from pathlib import Path
from specexp.cluster.launch import run_workers
from specexp.cluster.launch import ClusterOptions
from specexp.config.command import answered
from specexp.base.start import begin
signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background ignores it
begin()
folder, options, commands, gpus, threads = json.loads(sys.argv[1])
act = lambda: run_workers(ClusterOptions(**options), commands, Path(folder), gpus, threads)
sys.exit(answered(act))
"""


def work(folder: Path, number: int, lives: int = 1) -> list[str]:
    """Return the command of a worker that waits to be killed in all its lives but the last."""
    return [sys.executable, "-c", PROGRAM, str(folder), str(number), str(lives)]


def start(
    folder: Path, on: str, *commands: list[str], gpus: int = 0, threads: int = 1, **slurm: str | int
) -> subprocess.Popen[str]:
    """Start a process that starts workers ``w 0``, ``w 1``, ... and waits for them."""
    named = {f"w {number}": command for number, command in enumerate(commands)}
    given = json.dumps((str(folder / "logs"), {"on": on, "slurm": slurm}, named, gpus, threads))
    command, pipe = (sys.executable, "-c", STARTER, given), subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=folder)


def begun(folder: Path, number: int) -> list[list[str]]:
    """Return process, password, niceness and GPUs of each life of a worker."""
    path = folder / f"{number}.begun"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def processes(folder: Path, *numbers: int) -> list[int]:
    """Return the latest process of each worker, or nothing until all have begun."""
    lives = [begun(folder, number) for number in numbers]
    return [int(one[-1][0]) for one in lives] if all(lives) else []


def is_alive(process: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return _stat(process)[0] != "Z"
    except OSError:
        return False


def parent(process: int) -> int:
    """Return the parent of a process."""
    return int(_stat(process)[1])


def _stat(process: int) -> list[str]:
    """Return the state and further fields of a process; its name, in parentheses, may hold spaces."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
