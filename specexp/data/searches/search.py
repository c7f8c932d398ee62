"""Searches, which choose the states to expand by requesting continuations and values."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Annotated, cast

from pydantic import Field
from typing_extensions import override

from specexp.base.checked import Checked


@dataclass(frozen=True)
class State:
    """A partial solution: a path in the tree of thoughts."""

    # for each thought, from the root down, its index among its siblings; part of the key for random numbers
    path: tuple[int, ...] = ()
    thoughts: tuple[str, ...] = ()  # text of each thought

    @property
    def depth(self) -> int:
        """Number of thoughts; 0 for the root."""
        return len(self.path)

    def child(self, number: int, thought: str) -> State:
        """Return the state with one more thought; ``number`` is its index among its siblings."""
        return State((*self.path, number), (*self.thoughts, thought))


@dataclass(frozen=True)
class Continuations:
    """A request for ``n`` continuations of each of several distinct states. The answer holds texts ``[states][n]``.

    Text i leads to the state with the path ``(*state.path, i)``. If ``last``, this is the last generation of the search
    (SEED's Algorithm 1, line 9).
    """

    states: tuple[State, ...]
    n: int
    last: bool = False


@dataclass(frozen=True)
class Values:
    """A request for the values of distinct states. The answer is one finite number per state; higher is better.

    The root and the final state are never evaluated.
    """

    states: tuple[State, ...]


Request = Continuations | Values
Answer = Sequence[Sequence[str]] | Sequence[float]


class ThoughtTree:
    """The states that a search has visited, in order, and their values; None for the root and the final state."""

    root = State()

    def __init__(self) -> None:
        self.values: dict[State, float | None] = {self.root: None}

    def best(self) -> State:
        """Return the state with the highest value among the deepest states. Ties go to the first one."""
        return max(self.values, key=lambda state: (state.depth, self.sort_key(state)))

    def sort_key(self, state: State) -> float:
        """Return the value of a visited state, or minus infinity if it was not evaluated."""
        value = self.values[state]
        return -float("inf") if value is None else value

    def add(self, parent: State, thoughts: Sequence[str]) -> tuple[State, ...]:
        """Add and return the children of ``parent``, a visited state that has not been expanded yet."""
        below = tuple(parent.child(number, thought) for number, thought in enumerate(thoughts))
        self.values.update(dict.fromkeys(below))
        return below


@dataclass(frozen=True)
class SearchResult:
    """The result of a search: the complete path ``final``, its parent ``best``, and the ``tree`` of visited states."""

    final: State
    best: State
    tree: ThoughtTree


Exploration = Generator[Request, Answer, SearchResult]
"""A generator that yields requests, receives their answers through ``send``, and returns the result."""
Growth = Generator[Request, Answer, None]
"""The part of an exploration before the last generation."""


class Search(metaclass=Checked):
    """A search over a tree of thoughts. It yields requests for texts and values, which the caller answers.

    A search is deterministic given the answers, and keeps no state between explorations. Ties go to the first state.
    Each search ends with the last generation, which continues the best of the deepest states.

    Example::

        exploration = BreadthFirst(breadth=1, thoughts=3).explore(depth=4)
        request = next(exploration)         # Continuations((State(),), n=3)
        request = exploration.send([["a", "b", "c"]])   # Values of the three new states
        ...                                 # StopIteration.value is the SearchResult
    """

    thoughts: int  # continuations requested for each expanded state

    def explore(self, depth: int) -> Exploration:
        """Search for paths of ``depth`` generations, including the last one (see ``Task.depth``).

        Once iterated, raises ValueError if ``depth`` is below 1, an answer has the wrong length, or a value
        is not finite.
        """
        if depth < 1:
            raise ValueError(f"{type(self).__name__}: depth must be an integer >= 1, got {depth}")
        tree = ThoughtTree()
        if depth > 1:
            yield from self.grow(tree, depth - 1)
        best = tree.best()
        (texts,) = yield from _continued([best], 1, last=True)
        (final,) = tree.add(best, texts)
        return SearchResult(final, best, tree)

    @abstractmethod
    def grow(self, tree: ThoughtTree, levels: int) -> Growth:
        """Grow a root-only tree to depth ``levels``, calling :meth:`expand` at most once per state."""

    def expand(self, tree: ThoughtTree, states: Sequence[State]) -> Generator[Request, Answer, tuple[State, ...]]:
        """Request ``thoughts`` continuations of each state and the values of the new states; return the new states."""
        texts = yield from _continued(states, self.thoughts)
        new = tuple(child for state, below in zip(states, texts, strict=True) for child in tree.add(state, below))
        values = cast("Sequence[float]", (yield Values(new)))
        _check_count("value(s)", len(values), len(new), new)
        for state, value in zip(new, values, strict=True):
            if not isfinite(value):
                raise ValueError(f"the value of state {state.path} must be a finite number, got {value}")
            tree.values[state] = float(value)
        return new


def _continued(
    states: Sequence[State], n: int, last: bool = False
) -> Generator[Request, Answer, Sequence[Sequence[str]]]:
    texts = cast("Sequence[Sequence[str]]", (yield Continuations(tuple(states), n, last)))
    _check_count("list(s) of continuations", len(texts), len(states), states)
    for state, below in zip(states, texts, strict=True):
        _check_count("continuation(s)", len(below), n, [state])
    return texts


def _check_count(what: str, given: int, wanted: int, states: Sequence[State]) -> None:
    if given != wanted:
        paths = ", ".join(str(state.path) for state in states)
        raise ValueError(f"the answer for the states {paths} must have {wanted} {what}, got {given}")


class BreadthFirst(Search):
    """Breadth-first (beam) search: expand the kept states of a level, evaluate all new states, and keep the best ones.

    Tree of Thoughts (Yao et al. 2023) and SEED (Algorithm 1) use this search. A request contains all states of a
    level, so ``breadth * thoughts`` sequences can be decoded together.

    Args:
        breadth: maximum number of states kept at each level (b in Algorithm 1).
        thoughts: number of continuations of each kept state (n in Algorithm 1; 3 in the paper).
    """

    def __init__(self, breadth: Annotated[int, Field(ge=1)] = 1, thoughts: Annotated[int, Field(ge=1)] = 3) -> None:
        self.breadth = breadth
        self.thoughts = thoughts

    @override
    def grow(self, tree: ThoughtTree, levels: int) -> Growth:
        kept: Sequence[State] = [tree.root]  # S_0 of SEED's Algorithm 1, line 2
        for _ in range(levels):  # line 3
            new = yield from self.expand(tree, kept)  # S'_i and its values E_i, lines 4 to 6
            # S_i, line 7: the b states with the highest sum of values are the b best states
            kept = sorted(new, key=tree.sort_key, reverse=True)[: self.breadth]
