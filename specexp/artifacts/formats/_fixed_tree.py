"""What formats of trees have in common: they take a fixed tree, and name neither a drafter nor a controller."""

from __future__ import annotations

from specexp.artifacts.artifact import Artifact
from specexp.artifacts.error import ArtifactError
from specexp.artifacts.kinds.static_tree import StaticTreeArtifact


def rank_paths_of(artifact: Artifact, format_name: str) -> list[list[int]]:
    """Rank paths of the artifact's tree.

    Args:
        artifact: of any kind that has a builder.
        format_name: for the sentence.

    Raises:
        ArtifactError: its trees differ from step to step.
    """
    from specexp.builders import StaticTree

    if isinstance(artifact, StaticTreeArtifact):
        return artifact.rank_paths
    builder = artifact.builder
    if not isinstance(builder, StaticTree):
        raise ArtifactError(
            f"{artifact.folder}: the trees of {type(builder).__name__} differ from step to step, so that there is no "
            f"fixed one for {format_name}"
        )
    return builder.rank_paths


def drafter_of(artifact: Artifact) -> str:
    """Class name of the recorded drafter; empty where none is."""
    return _class_name(artifact, "drafter")


def controller_lost(artifact: Artifact) -> list[str]:
    """What is dropped with the recorded controller, if it does anything."""
    name = _class_name(artifact, "controller")
    return [f"the {name} controller"] if name not in ("", "Fixed") else []


def _class_name(artifact: Artifact, family: str) -> str:
    path: str = (artifact.part_specs.get(family) or {}).get("class_path", "")
    return path.rpartition(".")[2]
