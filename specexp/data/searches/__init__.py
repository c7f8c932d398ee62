"""Searches: which partial solutions are expanded, and which one the last generation comes from."""

from specexp.data.searches.best_first import BestFirst
from specexp.data.searches.breadth_first import BreadthFirst
from specexp.data.searches.monte_carlo import MonteCarlo
from specexp.data.searches.search import (
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
