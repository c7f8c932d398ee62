"""Tree-of-thoughts searches, which select the partial solutions to expand and the one to finish."""

from specexp.data.searches.search import (
    Answer as Answer,
    BreadthFirst as BreadthFirst,
    Continuations as Continuations,
    Exploration as Exploration,
    Request as Request,
    Search as Search,
    SearchResult as SearchResult,
    State as State,
    ThoughtTree as ThoughtTree,
    Values as Values,
)
