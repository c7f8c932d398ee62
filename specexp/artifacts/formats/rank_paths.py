"""The list of rank paths that Medusa, EAGLE-1 and TensorRT-LLM read."""

from __future__ import annotations

from specexp.artifacts.artifact import Artifact
from specexp.artifacts.export_format import Export, ExportFormat
from specexp.artifacts.kinds.static_tree import StaticTreeArtifact


class RankPaths(ExportFormat):
    """``[[0], [1], [0, 0]]``: no root, prefix-closed, sorted by length, then rank."""

    kinds = ("static-tree",)

    def export(self, artifact: Artifact) -> Export:
        """The tree, whole."""
        assert isinstance(artifact, StaticTreeArtifact)
        drafter = (artifact.part_specs.get("drafter") or {}).get("class_path", "").rpartition(".")[2]
        dropped = (
            f"rank-paths: the {drafter} drafter it was tuned with, for a list of paths names none"
            if drafter
            else ""
        )
        return Export(artifact.rank_paths, dropped)
