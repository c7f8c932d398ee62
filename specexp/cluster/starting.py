"""The one place that knows which fleet runs where."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from specexp.cluster.fleet import Fleet, Work
from specexp.cluster.options import ClusterOptions


def start_fleet(
    options: ClusterOptions, works: Sequence[Work], gpus: int, threads: int | None, folder: Path
) -> Fleet:
    """Start workers.

    Args:
        options: Where.
        works: What each runs.
        gpus: Of each worker.
        threads: Of each worker; None where the experiment leaves it open.
        folder: Where logs go; every machine sees it.

    Raises:
        ConfigError: There is no such cluster, or it is too small.
    """
    if options.on == "ray":
        from specexp.cluster.ray_fleet import RayFleet

        return RayFleet(works, gpus, threads or 1, folder)
    if options.on == "slurm":
        from specexp.cluster.slurm_fleet import SlurmFleet

        return SlurmFleet(works, gpus, threads or 1, folder, options.slurm)
    from specexp.cluster.local_fleet import LocalFleet

    return LocalFleet(works, gpus, folder)
