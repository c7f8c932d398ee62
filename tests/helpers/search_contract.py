"""Conformance tests for searches over thoughts, to be inherited by the tests of any implementation."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable

import pytest

from specexp.data.searches.search import Answer, Continuations, Request, Search, SearchResult, State, Values
from specexp.testing.fakes import result_of
from specexp.testing.prompt_sets import unannotated

DEPTHS = (1, 2, 3, 5)
Worth = Callable[[State], float]


def text_of(state: State, number: int) -> str:
    """Return the text of a continuation, composed of the state's path and the continuation's number."""
    return "thought " + ".".join(map(str, (*state.path, number)))


def hashed(state: State) -> float:
    """Return a hash of the state between 1 and 10, so that some states have equal values."""
    return float(1 + zlib.crc32(repr(state.path).encode()) % 10)


def alike(state: State) -> float:
    """Return the same value for every state."""
    return 5.0


def deeper_is_worse(state: State) -> float:
    """Return a value that decreases with depth, which tempts a search to return to the root."""
    return -float(state.depth)


def drive(
    search: Search,
    depth: int,
    worth: Worth = hashed,
    *,
    requests: list[Request] | None = None,
    text: Callable[[State, int], str] = text_of,
) -> SearchResult:
    """Run a search with thoughts and values from functions instead of a model, and return its result.

    Args:
        depth: number of generations on a path.
        worth: function that returns the value of a state.
        text: function of a state and a continuation's index that returns the continuation's text.
    """

    def answered(request: Request) -> Answer:
        if requests is not None:
            requests.append(request)
        return answer(request, worth, text)

    return result_of(search.explore(depth), answered)


def answer(request: Request, worth: Worth = hashed, text: Callable[[State, int], str] = text_of) -> Answer:
    """Return the answer to a request."""
    if isinstance(request, Values):
        return [worth(state) for state in request.states]
    return [[text(state, number) for number in range(request.n)] for state in request.states]


class SearchContract(ABC):
    """Base class for search tests. Subclasses define :meth:`make_search`; pytest then collects the tests."""

    @abstractmethod
    def make_search(self) -> Search:
        """Return a new search, identical on every call."""

    @pytest.fixture
    def search(self) -> Search:
        return self.make_search()

    @pytest.fixture(params=[hashed, alike, deeper_is_worse], ids=lambda worth: str(worth.__name__))
    def worth(self, request: pytest.FixtureRequest) -> Worth:
        value: Worth = request.param
        return value

    @pytest.fixture(params=DEPTHS)
    def depth(self, request: pytest.FixtureRequest) -> int:
        return int(request.param)

    @pytest.fixture
    def driven(self, search: Search, depth: int, worth: Worth) -> tuple[list[Request], SearchResult]:
        """Run a search and return its requests and its result."""
        requests: list[Request] = []
        return requests, drive(search, depth, worth, requests=requests)

    def test_every_constructor_parameter_is_annotated(self, search: Search) -> None:
        assert unannotated(search) == []

    def test_each_request_is_for_the_stated_number_of_thoughts(
        self, search: Search, driven: tuple[list[Request], SearchResult]
    ) -> None:
        continued = [request for request in driven[0] if isinstance(request, Continuations)]
        assert all(request.n == search.thoughts for request in continued if not request.last)

    def test_requests_are_about_known_states(self, depth: int, driven: tuple[list[Request], SearchResult]) -> None:
        """Each state is expanded and evaluated at most once, after it is generated. The root is never evaluated."""
        known, valued = {State()}, {State()}
        expanded: set[State] = set()
        for request in driven[0]:
            assert request.states
            assert len(set(request.states)) == len(request.states)
            assert set(request.states) <= known
            if isinstance(request, Values):
                assert not valued & set(request.states)
                valued |= set(request.states)
                continue
            assert set(request.states) <= valued
            assert not expanded & set(request.states)
            expanded |= set(request.states)
            known |= {
                state.child(number, text_of(state, number)) for state in request.states for number in range(request.n)
            }
            assert all(state.depth < depth for state in request.states)

    def test_ends_with_one_generation_from_the_best_state(
        self, depth: int, worth: Worth, driven: tuple[list[Request], SearchResult]
    ) -> None:
        """Algorithm 1, line 9: the best state has the highest value among the deepest states. Ties go to the first."""
        requests, result = driven
        assert requests[-1] == Continuations((result.best,), 1, last=True)
        assert not any(isinstance(request, Continuations) and request.last for request in requests[:-1])
        others = [state for state in result.tree.values if state != result.final]  # max() returns the first maximum
        deepest = [state for state in others if state.depth == max(other.depth for other in others)]
        assert result.best == max(deepest, key=lambda state: worth(state) if state.depth else 0.0)
        assert result.final == result.best.child(0, text_of(result.best, 0))
        assert result.final.depth <= depth

    def test_the_tree_holds_every_state_with_its_path_and_value(
        self, worth: Worth, driven: tuple[list[Request], SearchResult]
    ) -> None:
        tree = driven[1].tree
        for state in tree.values:
            expected = [text_of(State(state.path[:place]), number) for place, number in enumerate(state.path)]
            assert list(state.thoughts) == expected
        *inner, final = tree.values
        assert inner[0] == State()
        assert [tree.values[state] for state in inner[1:]] == [worth(state) for state in inner[1:]]
        assert tree.values[State()] is None
        assert tree.values[final] is None

    def test_with_a_depth_of_one_there_is_nothing_to_search(self, search: Search) -> None:
        requests: list[Request] = []
        drive(search, 1, requests=requests)
        assert requests == [Continuations((State(),), 1, last=True)]

    def test_the_same_answers_give_the_same_result(self, search: Search, worth: Worth) -> None:
        """An unfinished search with the same object must have no effect."""
        first: list[Request] = []
        again: list[Request] = []
        expected = drive(self.make_search(), 4, worth, requests=first)
        other = search.explore(3)
        other.send(answer(next(other)))
        result = drive(search, 4, worth, requests=again)
        other.close()
        assert again == first
        assert list(result.tree.values) == list(expected.tree.values)

    def test_equal_texts_are_different_states(self, search: Search) -> None:
        result = drive(search, 4, text=lambda state, number: "again")
        assert len(set(result.tree.values)) == len(result.tree.values)
        assert set(result.final.thoughts) == {"again"}

    @pytest.mark.parametrize("depth", [0, -1])
    def test_a_path_has_at_least_one_generation(self, search: Search, depth: int) -> None:
        with pytest.raises(ValueError, match=f"depth must be an integer >= 1, got {depth}"):
            next(search.explore(depth))

    @pytest.mark.parametrize(
        ("place", "wrong", "message"),
        [
            (0, lambda count: [], "must have 1 list.*got 0"),
            (0, lambda count: [[]] * count, "continuation.*got 0"),
            (1, lambda count: [1.0] * (count - 1), "value"),
            (1, lambda count: [float("nan")] * count, "finite"),
        ],
    )
    def test_wrong_answers_are_refused(
        self, search: Search, place: int, wrong: Callable[[int], Answer], message: str
    ) -> None:
        exploration = search.explore(3)
        request = next(exploration)  # continuations of the root, then their values
        if place:
            request = exploration.send(answer(request))
        with pytest.raises(ValueError, match=message):
            exploration.send(wrong(len(request.states)))
