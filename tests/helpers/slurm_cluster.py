"""A real SLURM on this machine, which ends with the test: Debian's ``slurm-wlm``, without accounting."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from helpers.waiting import wait_for
from specexp.engines.server import free_port

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
"""``cred_expire`` is how long a job that was put back waits, and ``KillWait`` what it has between SIGTERM and SIGKILL;
without ``config_overrides`` a node has no more processors than the machine."""


@contextmanager
def slurm_cluster(folder: Path, nodes: int = 2, cpus: int = 2) -> Iterator[Path]:
    """Nodes ``node0``, ``node1`` with so many processors each, without GPUs; ``SLURM_CONF`` names the cluster.

    Args:
        folder: An empty one for its settings, logs and state.
        nodes: How many.
        cpus: Of each.

    Yields:
        The folder of its state, which users of a cluster do not see.
    """
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
    before = os.environ.get("SLURM_CONF")
    os.environ["SLURM_CONF"] = str(written)
    try:
        with ExitStack() as daemons:
            for command in (["slurmctld", "-D"], *(["slurmd", "-D", "-N", name] for name in names)):
                daemons.enter_context(_running(command, folder))
            wait_for(lambda: _idle() == nodes, 60, f"the nodes did not answer: see {folder}")
            try:
                yield folder / "state"
            finally:
                subprocess.run(["scancel", "--user", getpass.getuser()], check=True)
                wait_for(lambda: not queued(), 60, "jobs did not end")
    finally:
        os.environ.pop("SLURM_CONF") if before is None else os.environ.update(SLURM_CONF=before)


def queued() -> list[str]:
    """The jobs that wait, run or are ending, as ``12_0 RUNNING``."""
    return _told("squeue", "-h", "-r", "-o", "%i %T")


def _idle() -> int:
    return len(_told("sinfo", "-h", "-N", "-p", "main", "-t", "idle", "-o", "%N"))


def _told(*command: str) -> list[str]:
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
