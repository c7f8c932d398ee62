"""Tree-of-thoughts searches, which select the partial solutions to expand and the one to finish."""

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
