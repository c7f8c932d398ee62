"""Tree builders: which candidates become nodes."""

from specexp.builders._base import Build, TreeBuilder
from specexp.builders.static_tree import Chain, StaticTree, TokenRecyclingTree
from specexp.builders.tree_search import FittedTree, ParametricTree

__all__ = [
    "Build",
    "Chain",
    "FittedTree",
    "ParametricTree",
    "StaticTree",
    "TokenRecyclingTree",
    "TreeBuilder",
]
