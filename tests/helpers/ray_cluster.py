"""A real Ray cluster on this machine, which ends with the test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def ray_cluster(nodes: int = 3, on_the_head: int = 1) -> Iterator[Any]:
    """A cluster of nodes with one processor each, and so many on the first, at ``RAY_ADDRESS``."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    running = Cluster(
        initialize_head=True, head_node_args={"num_cpus": on_the_head, "include_dashboard": False}
    )
    before = os.environ.get("RAY_ADDRESS")
    try:
        for _ in range(nodes - 1):
            running.add_node(num_cpus=1)
        os.environ["RAY_ADDRESS"] = running.address
        yield running
    finally:
        os.environ.pop("RAY_ADDRESS", None) if before is None else os.environ.update(RAY_ADDRESS=before)
        running.shutdown()


def raylet_of(node: Any) -> int:
    """The process that is a node, whose children are actors."""
    return int(node.all_processes["raylet"][0].process.pid)
