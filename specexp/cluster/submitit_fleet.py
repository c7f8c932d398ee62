"""Workers as jobs of submitit's, which are submitted again where they are killed."""

from __future__ import annotations

import io
import subprocess
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from submitit.core.utils import FailedJobError, FailedSubmissionError
from submitit.helpers import Checkpointable
from typing_extensions import override

from specexp.cluster import process
from specexp.cluster.fleet import MAX_RESTARTS, Fleet, Status, Work, last_line
from specexp.config.errors import ConfigError

JOBS = "jobs/%j"
"""Folder of a job, below the fleet's."""

MINUTES = 24 * 60
"""Of a job, where ``--slurm-time`` says nothing."""


class Typed(Checkpointable):  # type: ignore[misc]
    """Runs a command as it is typed; what SLURM preempts or times out is queued again, and goes on."""

    def __call__(self, command: Sequence[str], folder: str) -> None:
        """Run it.

        Raises:
            CalledProcessError: It did not end with 0.
        """
        worker = process.start(command, folder)
        try:
            code = worker.wait()
        except BaseException:  # the job is ended, or queued again
            process.end(worker)
            raise
        if code:
            raise subprocess.CalledProcessError(code, command)


@dataclass(frozen=True)
class Seen:
    """A job that is not over, or of which is known how it ended.

    Attributes:
        state: As a worker's.
        where: Its node.
        said: Why it waits, or ended.
    """

    state: str
    where: str = ""
    said: str = ""


class SubmititFleet(Fleet):
    """Workers that submitit starts.

    Args:
        works: What each runs.
        executor: Submits, with all parameters set.
        folder: Where jobs and logs are kept; every machine sees it.
    """

    patience: ClassVar[float] = 0.0
    """Seconds until a job that is over without having said how was killed."""

    def __init__(self, works: Sequence[Work], executor: Any, folder: Path) -> None:
        self._works, self._executor, self._folder = list(works), executor, folder
        self._ended: dict[str, Status] = {}
        self._silent_since: dict[str, float] = {}
        self._jobs: dict[str, list[Any]] = self._found()
        lacking = [work for work in self._works if work.name not in self._jobs]
        for work, job in zip(lacking, self._submit(lacking), strict=True):
            self._jobs[work.name] = [job]
        self._keep()

    @abstractmethod
    def _seen(self) -> Mapping[str, Seen]:
        """The jobs of which something is known, by their ids."""

    def _found(self) -> dict[str, list[Any]]:
        """The jobs of each worker that runs already, the present one last."""
        return {}

    def _keep(self) -> None:
        """Remember the jobs for who starts the same workers again."""

    def _submit(self, works: Sequence[Work]) -> list[Any]:
        """Submit jobs.

        Raises:
            ConfigError: They are refused.
        """
        if not works:
            return []
        folders = [str(Path.cwd())] * len(works)
        try:
            with redirect_stderr(io.StringIO()):  # which submitit tells besides
                jobs: list[Any] = self._executor.map_array(Typed(), [one.command for one in works], folders)
        except (FailedJobError, FailedSubmissionError) as error:
            said = "; ".join(line.removeprefix("sbatch: error: ") for line in str(error).splitlines())
            raise ConfigError(
                f"command line: sbatch refuses the workers ({said}): see --slurm-..., --workers and --gpus-per-worker"
            ) from error
        return jobs

    @override
    def statuses(self) -> list[Status]:
        seen = self._seen()
        found = [self._ended.get(work.name) or self._status(work, seen) for work in self._works]
        self._ended |= {one.name: one for one in found if one.state in ("ended", "failed")}
        return found

    def _status(self, work: Work, seen: Mapping[str, Seen]) -> Status:
        jobs = self._jobs[work.name]
        job = jobs[-1]
        where = f"job {job.job_id}"
        if job.job_id in seen:
            known = seen[job.job_id]
            return Status(work.name, known.state, f"{where} {known.where}".strip(), known.said)
        silent = not job.paths.result_pickle.exists()
        since = self._silent_since.setdefault(job.job_id, time.monotonic())
        if silent and time.monotonic() - since < self.patience:
            return Status(work.name, "running", where)
        error = None if silent else job.exception()
        if not silent and error is None:
            return Status(work.name, "ended", where)
        said = last_line(job.paths.stderr)
        if (not silent and "SIGKILL" not in str(error)) or len(jobs) > MAX_RESTARTS:
            return Status(work.name, "failed", where, said)
        try:
            jobs += self._submit([work])
        except ConfigError as refused:
            return Status(work.name, "failed", where, str(refused))
        self._keep()
        return Status(work.name, "waiting", f"job {jobs[-1].job_id}", said)

    def _running(self) -> list[Any]:
        return [jobs[-1] for name, jobs in self._jobs.items() if name not in self._ended]

    @override
    def close(self) -> None:
        """Nothing is held: the jobs are somebody else's."""
