"""Tree builders choose the candidates that become nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specexp.base.checked import classes_in

if TYPE_CHECKING:
    from specexp.builders.all_candidates import AllCandidates as AllCandidates
    from specexp.builders.choice import Choice as Choice
    from specexp.builders.dyspec import (
        BeamRerank as BeamRerank,
        DySpecGreedy as DySpecGreedy,
        DySpecThreshold as DySpecThreshold,
    )
    from specexp.builders.graft import Graft as Graft
    from specexp.builders.regular_trees import (
        Chain as Chain,
        KConfig as KConfig,
        TokenRecyclingTree as TokenRecyclingTree,
    )
    from specexp.builders.sequoia import Sequoia as Sequoia
    from specexp.builders.spec_infer import SpecInfer as SpecInfer
    from specexp.builders.static_tree import StaticTree as StaticTree
    from specexp.builders.tree_search import FittedTree as FittedTree, ParametricTree as ParametricTree

__getattr__ = classes_in(__name__)
