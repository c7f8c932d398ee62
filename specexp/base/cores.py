"""The number of cores that this process may use: those of its affinity, within the quota of its control group."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class Cores(NamedTuple):
    """A number of cores, and a description of what limits it."""

    number: int
    limit: str


def usable_cores(root: Path = Path("/")) -> Cores:
    """Return the smallest limit on the cores of this process, at least one. ``root`` has the folders proc and sys.

    A quota of 1.5 cores counts as one: with two threads, one would be stopped while the other waits for it.
    """
    own = os.cpu_count() or 1
    found = [Cores(own, "the number of cores of this machine")]
    if hasattr(os, "sched_getaffinity"):
        here = len(os.sched_getaffinity(0))
        found.append(Cores(here, f"the number of cores in this process's affinity (taskset), of {own}"))
    for file, quota in _quotas(root):
        limit = f"the quota of this process's control group ({file}: {quota:g} of {own} cores)"
        found.append(Cores(max(int(quota), 1), limit))
    if (most := os.environ.get("OMP_THREAD_LIMIT", "")).isdecimal() and int(most):
        found.append(Cores(int(most), f"the value of OMP_THREAD_LIMIT, on {own} cores"))
    return min(found, key=lambda cores: cores.number)


def _quotas(root: Path) -> Iterator[tuple[Path, float]]:
    """Yield the files with quotas, in cores, of this process's control group and the groups around it."""
    groups = root / "sys/fs/cgroup"
    with suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, name = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            # Version 1 mounts each controller in a folder of its own. In a container, ``name`` may not exist.
            mount = groups / "cpu" if controllers else groups
            for group in (mount / name.lstrip("/"), *(mount / name.lstrip("/")).parents):
                if group.is_relative_to(mount):
                    yield from _quota_of(group, "cpu.cfs_quota_us" if controllers else "cpu.max")


def _quota_of(group: Path, name: str) -> Iterator[tuple[Path, float]]:
    with suppress(OSError, ValueError):  # no file, or no quota: "max" in version 2, -1 in version 1
        quota, *period = (group / name).read_text(encoding="utf-8").split()
        if not period:
            period = [(group / "cpu.cfs_period_us").read_text(encoding="utf-8")]
        if int(quota) > 0:
            yield group / name, int(quota) / int(period[0])
