"""What a search is: it asks for continuations and values of states, and decides which states are expanded."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import cast

from specexp.core.checked import Checked


@dataclass(frozen=True)
class State:
    """A partial solution: the thoughts on the way to it.

    Attributes:
        path: the number of each thought among its siblings, from the root. It names the state in its tree whatever the
            order or the company in which states are decoded, so randomness may be keyed by it.
        thoughts: the text of each thought; as many as the path has numbers.
    """

    path: tuple[int, ...] = ()
    thoughts: tuple[str, ...] = ()

    @property
    def depth(self) -> int:
        """Thoughts so far; 0 for the root."""
        return len(self.path)

    def child(self, number: int, thought: str) -> State:
        """The state one thought further."""
        return State((*self.path, number), (*self.thoughts, thought))


@dataclass(frozen=True)
class Continuations:
    """Asks for ``n`` continuations of each of some states.

    The answer is, in the order of ``states``, ``n`` texts for each: ``[states][n]``. Text number i makes the state
    with the path ``(*state.path, i)``.

    Attributes:
        states: at least one, all different.
        n: how many continuations each state gets.
        last: whether these are the last generation, after which nothing is valued (Algorithm 1, line 9).
    """

    states: tuple[State, ...]
    n: int
    last: bool = False


@dataclass(frozen=True)
class Values:
    """Asks what some states are worth; the answer is a finite number for each, higher is better: ``[states]``.

    Attributes:
        states: at least one, all different; never the root, never one of the last generation.
    """

    states: tuple[State, ...]


Request = Continuations | Values
Answer = Sequence[Sequence[str]] | Sequence[float]
"""``[states][n]`` texts for :class:`Continuations`, ``[states]`` numbers for :class:`Values`."""


class ThoughtTree:
    """The states visited by one search, each with its value.

    The root has no value, and neither has the last generation.
    """

    root = State()

    def __init__(self) -> None:
        self._values: dict[State, float | None] = {self.root: None}
        self._children: dict[State, tuple[State, ...]] = {}

    @property
    def states(self) -> tuple[State, ...]:
        """In the order of generation, the root first."""
        return tuple(self._values)

    def value(self, state: State) -> float | None:
        """What a visited state was valued at; None if it was not."""
        return self._values[state]

    def children(self, state: State) -> tuple[State, ...]:
        """The states it was expanded into, in order; none if it was not expanded."""
        return self._children.get(state, ())

    def best(self) -> State:
        """Of the deepest states the one with the highest value, the first of equals."""
        depth = max(state.depth for state in self._values)
        return max((state for state in self._values if state.depth == depth), key=self.sort_key)

    def sort_key(self, state: State) -> float:
        """The value of a state, the lowest there is where it has none, as the root."""
        value = self._values[state]
        return -float("inf") if value is None else value

    def add(self, parent: State, thoughts: Sequence[str]) -> tuple[State, ...]:
        """The new states below a visited one, which was not expanded before."""
        below = tuple(parent.child(number, thought) for number, thought in enumerate(thoughts))
        self._children[parent] = below
        self._values.update(dict.fromkeys(below))
        return below

    def set_value(self, state: State, value: float) -> None:
        """What a visited state is worth."""
        self._values[state] = value


@dataclass(frozen=True)
class SearchResult:
    """What a search found.

    Attributes:
        final: the whole path, which is ``best`` and the last generation.
        best: the state the last generation comes from.
        tree: every state visited, ``final`` among them.
    """

    final: State
    best: State
    tree: ThoughtTree


Exploration = Generator[Request, Answer, SearchResult]
"""Yields requests, is sent their answers, returns the result."""

Growth = Generator[Request, Answer, None]
"""The part of it that is a search's own: everything before the last generation."""


class Search(metaclass=Checked):
    """Decides which states become part of a tree of thought. It generates and values nothing itself: whoever drives
    it answers its requests, one sequence after the other or many at once.

    It is deterministic given the answers. Of states of equal worth the one generated first is preferred. It has no
    state of its own between explorations, so several may be under way side by side.

    Every search ends alike: of the deepest states the best is continued once more, which is the last generation.

    Example::

        exploration = BreadthFirst(breadth=1, thoughts=3).explore(depth=4)
        request = next(exploration)         # Continuations((State(),), n=3)
        request = exploration.send([["a", "b", "c"]])   # Values of the three new states
        ...                                 # StopIteration.value is the SearchResult

    Attributes:
        thoughts: how many continuations every state it expands gets.
    """

    thoughts: int

    def explore(self, depth: int) -> Exploration:
        """Search once.

        Args:
            depth: how many generations a whole path has, the last included, as ``Task.depth`` says: with 1
                there is nothing to search, the root is continued once.

        Raises:
            ValueError: depth is below 1; while driving: an answer has the wrong length, or a value is not finite.
        """
        if depth < 1:
            raise ValueError(
                f"{type(self).__name__} was asked for paths of {depth} generations; at least 1 is needed"
            )
        return self._explore(depth)

    @abstractmethod
    def max_expansions(self, depth: int) -> int:
        """Most states it expands, the last generation not counted.

        So it asks for at most ``thoughts`` continuations and as many values for each of these, and for one last
        continuation.
        """

    @abstractmethod
    def grow(self, tree: ThoughtTree, levels: int) -> Growth:
        """Expand states with :meth:`expand`, each once, until done.

        Args:
            tree: a tree of the root alone, which is filled.
            levels: the depth of the deepest states to make, at least 1.
        """

    def expand(
        self, tree: ThoughtTree, states: Sequence[State]
    ) -> Generator[Request, Answer, tuple[State, ...]]:
        """Ask for ``thoughts`` continuations of each of the states, and then for the values of all new ones.

        Returns:
            The new states, each with its value in the tree.
        """
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


def inner_states(thoughts: int, depth: int) -> int:
    """States of a whole tree above its deepest, where a path has ``depth`` generations with the last.

    Example:
        >>> inner_states(3, depth=4)  # 1 + 3 + 9
        13
    """
    total, level = 0, 1
    for _ in range(depth - 1):
        total += level
        level *= thoughts
    return total


def _continued(
    states: Sequence[State], n: int, last: bool = False
) -> Generator[Request, Answer, Sequence[Sequence[str]]]:
    request = Continuations(tuple(states), n, last)
    texts = cast("Sequence[Sequence[str]]", (yield request))
    _check_count("list(s) of continuations", len(texts), len(request.states), request.states)
    for state, below in zip(request.states, texts, strict=True):
        _check_count("continuation(s)", len(below), n, [state])
    return texts


def _check_count(what: str, given: int, wanted: int, states: Sequence[State]) -> None:
    if given != wanted:
        paths = ", ".join(str(state.path) for state in states)
        raise ValueError(f"a search was given {given} {what} where it asked for {wanted}, of {paths}")
