"""A tuned tree: rank paths, and the parts it was tuned with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, get_args

from pydantic import Field
from typing_extensions import override

from specexp.artifacts.artifact import Artifact
from specexp.artifacts.error import ArtifactError
from specexp.artifacts.files.static_tree import MOST_NODES
from specexp.artifacts.parts import PARTS, Spec, init_args_of
from specexp.artifacts.validated import validated
from specexp.core.dialogue import Selection
from specexp.core.tree import TreeShape

TREE = "tree.json"
_BUILDER = "specexp.builders.static_tree.StaticTree"
_RankPath = Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(min_length=1)]


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

    Its value is the paths, sorted by length, then rank. Its builder is the tree itself, whichever builder found it.

    Attributes:
        rank_paths: the paths.
    """

    kind = "static-tree"
    required = (TREE,)
    holds_state = True
    made_from: ClassVar[Mapping[str, str]] = {"builder": TREE}

    @classmethod
    @override
    def payloads_of(cls, parts: Mapping[str, Any], attributes: Mapping[str, Any]) -> dict[str, Any] | None:
        # of any builder whose shape is fixed, but those that draw with replacement: a path then names no node
        tree = fixed_tree(attributes)
        if tree is None:
            return None
        return {TREE: tree["init_args"]["rank_paths"], PARTS: {**parts, "builder": tree}}

    @override
    def read(self, payloads: Mapping[str, Any]) -> None:
        paths, where = payloads[TREE], self.where(TREE)
        if not isinstance(paths, list) or not paths:
            raise ArtifactError(
                f"{where} is no list of rank paths; one such as [[0], [1], [0, 0]] is expected"
            )
        if len(paths) > MOST_NODES:
            raise ArtifactError(f"{where} lists {len(paths)} nodes; at most {MOST_NODES} are allowed")
        try:
            shape = TreeShape.from_rank_paths(validated(list[_RankPath], paths, where))
        except ArtifactError:
            raise
        except ValueError as error:
            raise ArtifactError(f"{where}: {error}") from error
        self.value = self.rank_paths = [list(path) for path in shape.rank_paths[1:]]
        builder = self.recorded.get("builder")
        recorded = init_args_of(builder, _BUILDER) or {}
        if builder is not None and recorded.get("rank_paths") not in (paths, self.rank_paths):
            raise ArtifactError(  # whoever reads the one file and whoever reads the other must see one tree
                f"{self.where(PARTS)}: builder is not the tree of {TREE}; both files must hold the same one"
            )

    @override
    def specs(self) -> dict[str, Spec]:
        recorded = (self.recorded.get("builder") or {}).get("init_args") or {}
        chosen = {"candidates": recorded["candidates"]} if "candidates" in recorded else {}
        tree = {"class_path": _BUILDER, "init_args": {"rank_paths": self.rank_paths, **chosen}}
        return {**self.recorded, "builder": tree}
