"""Workers as processes of this machine by submitit's local executor, which end with whoever started them."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import submitit
from typing_extensions import override

from specexp.cluster import process
from specexp.cluster.fleet import Work
from specexp.cluster.submitit_fleet import JOBS, MINUTES, Seen, SubmititFleet


class LocalFleet(SubmititFleet):
    """Workers on this machine, each with GPUs of its own.

    Args:
        works: What each runs.
        gpus: Of each worker; the first has the machine's first.
        folder: Where jobs and logs are kept.
    """

    def __init__(self, works: Sequence[Work], gpus: int, folder: Path) -> None:
        self._gpus = gpus
        executor = submitit.LocalExecutor(folder / JOBS)
        executor.update_parameters(timeout_min=MINUTES, gpus_per_node=gpus)
        super().__init__(works, executor, folder)

    @override
    def _submit(self, works: Sequence[Work]) -> list[Any]:
        jobs = []
        for work in works:
            first = self._gpus * self._works.index(work)
            self._executor.update_parameters(visible_gpus=tuple(range(first, first + self._gpus)))
            jobs += super()._submit([work])
        return jobs

    @override
    def _seen(self) -> Mapping[str, Seen]:
        return {job.job_id: Seen("running") for job in self._running() if not job.done()}

    @override
    def stop(self) -> None:
        running = self._running()
        for job in running:
            job.cancel()
        for job in running:
            with suppress(subprocess.TimeoutExpired):
                job._process.wait(process.SECONDS)
