"""What formats of trees have in common: they take a fixed tree, and name neither a drafter nor a controller."""

from __future__ import annotations

from specexp.artifacts.error import ArtifactError
from specexp.deploy.export.export_format import Tuned


def rank_paths_of(artifact: Tuned, format_name: str) -> list[list[int]]:
    """Rank paths of the artifact's tree.

    Args:
        artifact: any that has a builder.
        format_name: the format, for the sentence.

    Raises:
        ArtifactError: its trees differ from step to step.
    """
    builder = artifact.builder
    if builder.rank_paths is None:
        raise ArtifactError(
            f"{artifact.folder}: the trees of {type(builder).__name__} differ from step to step, so that there is no "
            f"fixed one for {format_name}"
        )
    return builder.rank_paths


def drafter_of(artifact: Tuned) -> str:
    """Class name of the recorded drafter; empty where none is."""
    path: str = artifact.recorded.get("drafter", {}).get("class_path", "")
    return path.rpartition(".")[2]


def controller_lost(artifact: Tuned) -> list[str]:
    """What is dropped with the recorded controller, if it does anything."""
    controller = artifact.controller
    plain = controller is None or controller.same_plan
    return [] if plain else [f"the {type(controller).__name__} controller"]
