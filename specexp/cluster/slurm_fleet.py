"""Workers as a SLURM array, which outlives whoever submitted it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import submitit
from typing_extensions import override

from specexp.artifacts.atomic_write import atomic_write
from specexp.cluster import process
from specexp.cluster.fleet import Work
from specexp.cluster.submitit_fleet import JOBS, MINUTES, Seen, SubmititFleet
from specexp.config.errors import ConfigError
from specexp.core.messages import first_line

KEPT = "jobs.json"
"""File with the ids of the jobs of each worker, so that the same command finds them again."""

RUNNING = ("RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "SIGNALING", "STAGE_OUT", "STOPPED")
WAITING = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT")
"""What squeue says of jobs that are not over; all else is how a job ended."""

QUEUE = ("squeue", "--noheader", "--array", "--states=all", "--format=%i|%T|%N|%r")
"""All jobs, for SLURM knows those that have ended for some minutes more; unlike sacct it needs no accounting."""

_CPUS_OF_THE_STEP = "export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}"
"""From SLURM 22.05 on srun does not pass on what sbatch was asked for: a worker would be bound to one processor."""


class SlurmFleet(SubmititFleet):
    """Workers that SLURM runs, with the environment of whoever submits them.

    Those of the same names that it runs already are taken over.

    Args:
        works: What each runs.
        gpus: Of each worker.
        cpus: Of each worker.
        folder: Where jobs and logs are kept; every machine sees it.
        given: Parameters of submitit's, such as ``slurm_partition``.

    Raises:
        ConfigError: There is no SLURM here, or it, or submitit, refuses what is asked for.
    """

    patience = 15.0

    def __init__(
        self, works: Sequence[Work], gpus: int, cpus: int, folder: Path, given: Mapping[str, str | int]
    ) -> None:
        if shutil.which("sbatch") is None:
            raise ConfigError(
                "command line: --on slurm finds no sbatch here: type the command on a login node of the cluster, or "
                "use --on local"
            )
        if not isinstance(given.get("slurm_time", 0), int):
            raise ConfigError(
                f"command line: --slurm-time is {given['slurm_time']!r}; minutes are expected, as a whole number"
            )
        asked: dict[str, Any] = {"slurm_array_parallelism": max(1, len(works)), **given}
        asked["slurm_setup"] = [
            _CPUS_OF_THE_STEP,
            *([given["slurm_setup"]] if "slurm_setup" in given else []),
        ]
        if "slurm_srun_args" in given:
            asked["slurm_srun_args"] = shlex.split(str(given["slurm_srun_args"]))
        executor = submitit.AutoExecutor(folder=folder / JOBS, cluster="slurm")
        try:
            executor.update_parameters(
                name="specexp", timeout_min=MINUTES, gpus_per_node=gpus, cpus_per_task=cpus, **asked
            )
        except (NameError, ValueError, TypeError) as error:
            raise ConfigError(f"command line: submitit refuses --slurm-...: {first_line(error)}") from error
        self._before: dict[str, Seen] = {}
        super().__init__(works, executor, folder)

    @override
    def _seen(self) -> Mapping[str, Seen]:
        """As :meth:`SubmititFleet._seen`; what was seen before where SLURM does not answer."""
        try:
            told = subprocess.run(
                (*QUEUE, f"--user={os.getuid()}"), check=True, capture_output=True, text=True, timeout=60
            )
        except (OSError, subprocess.SubprocessError):
            return self._before
        seen = {}
        for line in told.stdout.splitlines():
            job, state, node, why = line.split("|", 3)
            if state in WAITING:
                seen[job] = Seen("waiting", said=why)
            elif state in RUNNING:
                seen[job] = Seen("running", node)
            elif state == "CANCELLED":
                seen[job] = Seen("failed", said="it was cancelled")
        self._before = seen
        return seen

    @override
    def _found(self) -> dict[str, list[Any]]:
        try:
            kept = json.loads((self._folder / KEPT).read_text(encoding="utf-8"))
        except OSError:
            return {}
        alive = {job for job, seen in self._seen().items() if seen.state != "failed"}
        names = {work.name for work in self._works}
        return {
            name: [submitit.SlurmJob(self._folder / JOBS, job) for job in jobs]
            for name, jobs in kept.items()
            if name in names and jobs[-1] in alive
        }

    @override
    def _keep(self) -> None:
        ids = {name: [job.job_id for job in jobs] for name, jobs in self._jobs.items()}
        atomic_write(self._folder / KEPT, json.dumps(ids, indent=1))

    @override
    def stop(self) -> None:
        ids = {job.job_id for job in self._running()}
        if ids:
            subprocess.run(("scancel", *ids), check=False)
        deadline = time.monotonic() + 2 * process.SECONDS  # SLURM ends by force what does not end
        while ids & {job for job, seen in self._seen().items() if seen.state != "failed"}:
            if time.monotonic() > deadline:
                return
            time.sleep(0.2)
