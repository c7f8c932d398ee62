"""The list of rank paths that Medusa, EAGLE-1 and TensorRT-LLM read."""

from __future__ import annotations

from typing_extensions import override

from specexp.deploy.export.export_format import ExportedFile, ExportFormat, Tuned
from specexp.deploy.export.formats._fixed_tree import controller_lost, drafter_of, rank_paths_of


class RankPaths(ExportFormat):
    """``[[0], [1], [0, 0]]``: no root, prefix-closed, sorted by length, then rank."""

    kinds = ("static-tree", "composition")
    read_for = "Medusa, EAGLE-1 and TensorRT-LLM to 1.3 rc"
    deployment = "Medusa and EAGLE-1 take the list of {file} as their choices"

    @override
    def export(self, artifact: Tuned, **options: str) -> ExportedFile:
        drafter = drafter_of(artifact)
        lost = [f"the {drafter} drafter it was tuned with"] if drafter else []
        lost += controller_lost(artifact)
        dropped = f"rank-paths: {' and '.join(lost)}, for a list of paths names none" if lost else ""
        return ExportedFile(rank_paths_of(artifact, "rank-paths"), dropped)
