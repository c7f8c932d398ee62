"""Tree builders: which candidates become nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specexp.core.lazy import classes_in

if TYPE_CHECKING:
    from specexp.builders.choice import Choice
    from specexp.builders.dyspec import BeamRerank, DySpecGreedy, DySpecThreshold
    from specexp.builders.graft import Graft
    from specexp.builders.sequoia import Sequoia
    from specexp.builders.static_tree import Chain, KConfig, SpecInfer, StaticTree, TokenRecyclingTree
    from specexp.builders.tree_search import FittedTree, ParametricTree

__getattr__ = classes_in(__name__, __path__[0])

__all__ = [
    "BeamRerank",
    "Chain",
    "Choice",
    "DySpecGreedy",
    "DySpecThreshold",
    "FittedTree",
    "Graft",
    "KConfig",
    "ParametricTree",
    "Sequoia",
    "SpecInfer",
    "StaticTree",
    "TokenRecyclingTree",
]
