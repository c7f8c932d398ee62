"""Workers as a SLURM array by submitit, or as processes of this machine by its local executor."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import submitit
from submitit.helpers import Checkpointable
from typing_extensions import override

from specexp.cluster.fleet import MAX_RESTARTS, Fleet, Status, Work, last_line
from specexp.cluster.options import ClusterOptions
from specexp.config.errors import ConfigError
from specexp.core.messages import first_line

MINUTES = 24 * 60
"""Of a job, where ``--slurm-time`` says nothing."""


class Typed(Checkpointable):  # type: ignore[misc]
    """Runs a command as it is typed; what SLURM preempts or times out is queued again, and goes on."""

    def __call__(self, command: Sequence[str], folder: str) -> None:
        """Run it.

        Raises:
            CalledProcessError: It did not end with 0.
        """
        subprocess.run(command, cwd=folder, check=True, stdin=subprocess.DEVNULL)


class SlurmFleet(Fleet):
    """Workers that submitit starts; SLURM passes the environment.

    Args:
        works: What each runs.
        gpus: Of each worker.
        cpus: Of each worker.
        folder: Where submitit keeps jobs and logs; every machine sees it.
        options: Where, and further parameters of submitit's.

    Raises:
        ConfigError: There is no SLURM here, or submitit takes no such parameter.
    """

    def __init__(
        self, works: Sequence[Work], gpus: int, cpus: int, folder: Path, options: ClusterOptions
    ) -> None:
        if options.on == "slurm" and shutil.which("sbatch") is None:
            raise ConfigError(
                "command line: --on slurm finds no sbatch here: type the command on a login node of the cluster, or "
                "use --on local"
            )
        self._executor = submitit.AutoExecutor(folder=folder / "jobs" / "%j", cluster=options.on)
        settings: dict[str, Any] = {"timeout_min": MINUTES, "gpus_per_node": gpus, "cpus_per_task": cpus}
        if options.on == "slurm":
            settings["slurm_array_parallelism"] = len(works)
        try:
            self._executor.update_parameters(name="specexp", **settings, **options.slurm)
        except (NameError, ValueError, TypeError) as error:
            raise ConfigError(f"command line: submitit refuses --slurm-...: {first_line(error)}") from error
        self._works = list(works)
        self._restarts = [0] * len(works)
        folders = [str(Path.cwd())] * len(works)
        self._jobs: list[Any] = self._executor.map_array(Typed(), [work.command for work in works], folders)

    @override
    def statuses(self) -> list[Status]:
        return [self._status(number) for number in range(len(self._works))]

    def _status(self, number: int) -> Status:
        work, job = self._works[number], self._jobs[number]
        where = f"job {job.job_id}"
        if not job.done():
            return Status(work.name, "running" if job.state == "RUNNING" else "waiting", where)
        error = job.exception()
        if error is None:
            return Status(work.name, "ended", where)
        said = last_line(Path(job.paths.stderr)) or first_line(error)
        if _was_killed(error) and self._restarts[number] < MAX_RESTARTS:
            self._restarts[number] += 1
            self._jobs[number] = self._executor.submit(Typed(), work.command, str(Path.cwd()))
            return Status(work.name, "waiting", f"job {self._jobs[number].job_id}", said)
        return Status(work.name, "failed", where, said)

    @override
    def stop(self) -> None:
        for job in self._jobs:
            if not job.done():
                job.cancel(check=False)

    @override
    def close(self) -> None:
        """Nothing is held: SLURM has the jobs."""


def _was_killed(error: BaseException) -> bool:
    """Whether a worker, or the job around it, was killed, and did not end with a sentence."""
    utils = submitit.core.utils
    if isinstance(error, utils.FailedJobError):  # its program raised
        return "SIGKILL" in str(error)
    return isinstance(error, utils.UncompletedJobError)
