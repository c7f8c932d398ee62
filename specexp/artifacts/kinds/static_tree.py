"""A tuned tree: rank paths, and the parts it was tuned with."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, get_args

from specexp.artifacts.artifact import Artifact
from specexp.artifacts.error import ArtifactError
from specexp.artifacts.parts import PARTS
from specexp.core.parts import Selection
from specexp.core.tree import TreeShape

if TYPE_CHECKING:
    from specexp.core.parts import TreeBuilder

TREE = "tree.json"


def fixed_tree(attributes: Mapping[str, Any]) -> dict[str, Any] | None:
    """A candidate's fixed shape as a ``StaticTree``; None where it has none, or no rank paths that name its nodes.

    Args:
        attributes: see :class:`~specexp.sweep.candidates.Candidate`.
    """
    paths, candidates = attributes.get("rank_paths"), attributes.get("candidates")
    if paths is None or candidates not in get_args(Selection):
        return None
    return {"class_path": "StaticTree", "init_args": {"rank_paths": paths, "candidates": candidates}}


class StaticTreeArtifact(Artifact):
    """``tree.json``: rank paths as Medusa and EAGLE list them, e.g. ``[[0], [1], [0, 0]]``, without the root.

    Attributes:
        rank_paths: the paths, sorted by length, then rank.
    """

    kind = "static-tree"
    required = (TREE,)

    @classmethod
    def payloads_of(cls, parts: Mapping[str, Any], attributes: Mapping[str, Any]) -> dict[str, Any] | None:
        """Of any builder whose shape is fixed, but those that draw with replacement: a path then names no node."""
        tree = fixed_tree(attributes)
        if tree is None:
            return None
        return {TREE: tree["init_args"]["rank_paths"], PARTS: {**parts, "builder": tree}}

    def read(self, payloads: Mapping[str, Any]) -> None:
        """The paths must be lists of ranks, each with its prefixes."""
        paths = payloads[TREE]
        where = self._where(TREE)
        if not isinstance(paths, list) or not paths:
            raise ArtifactError(
                f"{where} is no list of rank paths; one such as [[0], [1], [0, 0]] is expected"
            )
        for index, path in enumerate(paths):
            if not isinstance(path, list) or not all(
                type(rank) is int and 0 <= rank < 2**31 for rank in path
            ):
                raise ArtifactError(
                    f"{where}: entry {index} is no rank path; a list of integers from 0 is expected"
                )
        try:
            shape = TreeShape.from_rank_paths(paths)
        except ValueError as error:
            raise ArtifactError(f"{where}: {error}") from error
        self.rank_paths = [list(path) for path in shape.rank_paths[1:]]

    @property
    def value(self) -> list[list[int]]:
        """The rank paths."""
        return self.rank_paths

    @cached_property
    def builder(self) -> TreeBuilder:
        """The tree itself, whichever builder found it."""
        from specexp.builders import StaticTree

        recorded = (self.part_specs.get("builder") or {}).get("init_args", {})
        candidates = recorded.get("candidates", "top-k")
        if candidates not in get_args(Selection):
            raise ArtifactError(
                f"{self._where(PARTS)}: builder.init_args.candidates is {candidates!r}; allowed are "
                f"{', '.join(get_args(Selection))}"
            )
        return StaticTree(self.rank_paths, candidates=candidates)
