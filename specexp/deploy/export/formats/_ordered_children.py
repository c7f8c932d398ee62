"""Formats in which a node's children are its first candidates, because they list children and no ranks."""

from __future__ import annotations

import numpy as np

from specexp.artifacts.error import ArtifactError
from specexp.core.tree import TreeShape
from specexp.deploy.export.export_format import Tuned
from specexp.deploy.export.formats._fixed_tree import controller_lost, drafter_of, rank_paths_of


def without_gaps(artifact: Tuned, format_name: str) -> tuple[TreeShape, str]:
    """The part of a tree in which no node has a rank whose lower ones its siblings leave out.

    Args:
        artifact: one with a tree.
        format_name: the format, for the sentence.

    Returns:
        The part, its rows breadth first, and one sentence on what the format cannot say; empty where it says all.

    Raises:
        ArtifactError: nothing is left, or the trees of a composition differ from step to step.
    """
    whole = TreeShape.from_rank_paths(rank_paths_of(artifact, format_name))
    keep = np.zeros(whole.parents.size, dtype=np.bool_)
    kept_children = [0] * keep.size
    for row, parent in enumerate(whole.parents.tolist()):
        keep[row] = parent < 0 or (keep[parent] and whole.ranks[row] == kept_children[parent])
        if keep[row] and parent >= 0:
            kept_children[parent] += 1
    if keep.sum() == 1:
        raise ArtifactError(
            f"{artifact.folder}: cannot be exported to {format_name}, where a node's children are its first candidates "
            "and this tree leaves out the root's best one"
        )
    lost = []
    if missing := int((~keep).sum()):
        lost.append(
            f"{missing} of {whole.num_nodes} nodes at or below a rank that skips a lower one, for it lists no ranks"
        )
    if drafter := drafter_of(artifact):
        lost.append(f"the {drafter} drafter it was tuned with")
    lost += controller_lost(artifact)
    return whole.select(keep), f"{format_name}: dropped {' and '.join(lost)}" if lost else ""
