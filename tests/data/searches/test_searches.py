"""Breadth-first search keeps the contract, and its choices can be worked out by hand."""

import pytest
from helpers.search_contract import SearchContract, drive, text_of
from hypothesis import given, strategies as st

from specexp.data.searches import BreadthFirst
from specexp.data.searches.search import Continuations, State, Values

pytestmark = pytest.mark.unit


class TestBreadthFirst(SearchContract):
    def make_search(self):
        return BreadthFirst(breadth=2, thoughts=3)


def values_of(table):
    """Worth by path; what is not in the table is worth nothing."""
    return lambda state: table.get(state.path, 0.0)


# A trap: the first step that looks best leads nowhere, the second best to the optimum, 9.
TRAP = {(0,): 8.0, (1,): 7.0, (2,): 1.0, (0, 0): 2.0, (0, 1): 3.0, (1, 0): 4.0, (1, 2): 9.0}


def test_algorithm_1_request_by_request():
    requests = []
    result = drive(BreadthFirst(breadth=1, thoughts=3), 3, values_of(TRAP), requests=requests)
    root, first = State(), State((0,), (text_of(State(), 0),))
    below = tuple(root.child(number, text_of(root, number)) for number in range(3))
    below_first = tuple(first.child(number, text_of(first, number)) for number in range(3))
    assert requests == [
        Continuations((root,), 3),
        Values(below),
        Continuations((first,), 3),
        Values(below_first),
        Continuations((below_first[1],), 1, last=True),
    ]
    assert result.best.path == (0, 1)
    assert result.final.path == (0, 1, 0)


def test_a_breadth_of_one_falls_into_the_trap_and_two_does_not():
    assert drive(BreadthFirst(1, 3), 3, values_of(TRAP)).best.path == (0, 1)
    assert drive(BreadthFirst(2, 3), 3, values_of(TRAP)).best.path == (1, 2)


worths = st.dictionaries(st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple), st.integers(1, 10).map(float))


@given(st.integers(1, 4), st.integers(2, 5), worths)
def test_with_room_for_every_state_the_search_finds_the_optimum(thoughts, depth, table):
    worth = values_of(table)
    result = drive(BreadthFirst(4**5, thoughts), depth, worth)
    complete = [state for state in result.tree.values if state.depth == depth - 1 and state.path]
    assert worth(result.best) == max(map(worth, complete))
