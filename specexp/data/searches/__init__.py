"""Searches: which partial solutions are expanded, and which one the last generation comes from."""

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
from specexp.data.searches.strategies import BestFirst, BreadthFirst, MonteCarlo

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
