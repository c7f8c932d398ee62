"""Searches: which partial solutions are expanded, and which one the last generation comes from."""

from specexp.reasoning.search._base import (
    Answer,
    Continuations,
    Exploration,
    Request,
    Search,
    SearchResult,
    State,
    ThoughtTree,
    Values,
)
from specexp.reasoning.search.best_first import BestFirst
from specexp.reasoning.search.breadth_first import BreadthFirst
from specexp.reasoning.search.monte_carlo import MonteCarlo

__all__ = [
    "Answer",
    "BestFirst",
    "BreadthFirst",
    "Continuations",
    "Exploration",
    "MonteCarlo",
    "Request",
    "Search",
    "SearchResult",
    "State",
    "ThoughtTree",
    "Values",
]
