"""Tree-of-thoughts searches, which select the partial solutions to expand and the one to finish."""

from specexp.data.searches.search import (
    Answer,
    BreadthFirst,
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
    "BreadthFirst",
    "Continuations",
    "Exploration",
    "Request",
    "Search",
    "SearchResult",
    "State",
    "ThoughtTree",
    "Values",
]
