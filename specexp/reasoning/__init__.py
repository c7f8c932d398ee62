"""Searches: which partial solutions are expanded, and which one the last generation comes from."""

from specexp.reasoning.best_first import BestFirst
from specexp.reasoning.breadth_first import BreadthFirst
from specexp.reasoning.monte_carlo import MonteCarlo
from specexp.reasoning.search import (
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
