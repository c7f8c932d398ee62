"""The contract of a search: it requests continuations and values of states, and decides which are expanded."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import cast

from specexp.core.checked import Checked


@dataclass(frozen=True)
class State:
    """A partial solution.

    Attributes:
        path: number of each thought among its siblings, from the root; randomness is keyed by it.
        thoughts: text of each thought.
    """

    path: tuple[int, ...] = ()
    thoughts: tuple[str, ...] = ()

    @property
    def depth(self) -> int:
        """Number of thoughts; 0 for the root."""
        return len(self.path)

    def child(self, number: int, thought: str) -> State:
        """Return the state one thought further."""
        return State((*self.path, number), (*self.thoughts, thought))


@dataclass(frozen=True)
class Continuations:
    """A request for ``n`` continuations of each of some different states; the answer is texts ``[states][n]``.

    Text i makes the state with the path ``(*state.path, i)``. After the last generation nothing is valued
    (Algorithm 1, line 9).
    """

    states: tuple[State, ...]
    n: int
    last: bool = False


@dataclass(frozen=True)
class Values:
    """A request for the values of some different states; the answer is finite numbers ``[states]``, higher is better.

    The root and the last generation are never valued.
    """

    states: tuple[State, ...]


Request = Continuations | Values
Answer = Sequence[Sequence[str]] | Sequence[float]


class ThoughtTree:
    """The states visited by one search, each with its value; the root and the last generation have none."""

    root = State()

    def __init__(self) -> None:
        self._values: dict[State, float | None] = {self.root: None}
        self._children: dict[State, tuple[State, ...]] = {}

    @property
    def states(self) -> tuple[State, ...]:
        """All states in the order of generation, the root first."""
        return tuple(self._values)

    def value(self, state: State) -> float | None:
        """Return the value of a visited state; None if it has none."""
        return self._values[state]

    def children(self, state: State) -> tuple[State, ...]:
        """Return the states that a state was expanded into, in order."""
        return self._children.get(state, ())

    def best(self) -> State:
        """Return the deepest state with the highest value, the first of equals."""
        return max(self._values, key=lambda state: (state.depth, self.sort_key(state)))

    def sort_key(self, state: State) -> float:
        """Return the value of a state, or minus infinity if it has none."""
        value = self._values[state]
        return -float("inf") if value is None else value

    def add(self, parent: State, thoughts: Sequence[str]) -> tuple[State, ...]:
        """Add the states below a visited one, which was not expanded before."""
        below = tuple(parent.child(number, thought) for number, thought in enumerate(thoughts))
        self._children[parent] = below
        self._values.update(dict.fromkeys(below))
        return below

    def set_value(self, state: State, value: float) -> None:
        """Set the value of a visited state."""
        self._values[state] = value


@dataclass(frozen=True)
class SearchResult:
    """The result of a search: the whole path ``final`` continues ``best``, and ``tree`` has every state visited."""

    final: State
    best: State
    tree: ThoughtTree


Exploration = Generator[Request, Answer, SearchResult]
"""Yields requests, is sent their answers, returns the result."""
Growth = Generator[Request, Answer, None]
"""An exploration before the last generation."""


class Search(metaclass=Checked):
    """Decides which states of a tree of thoughts are expanded; its driver answers its requests for texts and values.

    It is deterministic given the answers, prefers the first of equal states, and has no state between explorations.
    Every search ends with the last generation, which continues the best of the deepest states.

    Example::

        exploration = BreadthFirst(breadth=1, thoughts=3).explore(depth=4)
        request = next(exploration)         # Continuations((State(),), n=3)
        request = exploration.send([["a", "b", "c"]])   # Values of the three new states
        ...                                 # StopIteration.value is the SearchResult

    Attributes:
        thoughts: number of continuations of every expanded state.
    """

    thoughts: int

    def explore(self, depth: int) -> Exploration:
        """Search once, for paths of ``depth`` generations, the last included (see ``Task.depth``).

        Raises:
            ValueError: depth is below 1; or, while the search is driven, an answer has the wrong length or a value is
                not finite.
        """
        if depth < 1:
            raise ValueError(
                f"{type(self).__name__}: there are no paths of {depth} generations; at least 1 is needed"
            )
        return self._explore(depth)

    @abstractmethod
    def max_expansions(self, depth: int) -> int:
        """Return the maximal number of states it expands, without the last generation."""

    @abstractmethod
    def grow(self, tree: ThoughtTree, levels: int) -> Growth:
        """Expand states of a tree, at first only a root, with :meth:`expand`, each once, down to ``levels`` >= 1."""

    def expand(
        self, tree: ThoughtTree, states: Sequence[State]
    ) -> Generator[Request, Answer, tuple[State, ...]]:
        """Request ``thoughts`` continuations of each state and their values; returns the new states."""
        texts = yield from _continued(states, self.thoughts)
        new = tuple(
            child for state, below in zip(states, texts, strict=True) for child in tree.add(state, below)
        )
        values = cast("Sequence[float]", (yield Values(new)))
        _check_count("value(s)", len(values), len(new), new)
        for state, value in zip(new, values, strict=True):
            if not isfinite(value):
                raise ValueError(f"state {state.path} was given the value {value}; a finite number is needed")
            tree.set_value(state, float(value))
        return new

    def _explore(self, depth: int) -> Exploration:
        tree = ThoughtTree()
        if depth > 1:
            yield from self.grow(tree, depth - 1)
        best = tree.best()
        (texts,) = yield from _continued([best], 1, last=True)
        (final,) = tree.add(best, texts)
        return SearchResult(final, best, tree)


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
        raise ValueError(f"a search was sent {given} {what} for {paths}; {wanted} are needed")
