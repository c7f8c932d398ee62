"""Searches keep the contract, and choose what one can work out by hand."""

from hypothesis import given, strategies as st

from specexp.data.searches import BestFirst, BreadthFirst, MonteCarlo
from specexp.data.searches.search import Continuations, State, Values
from specexp.testing.searches import SearchContract, drive, text_of


class TestBreadthFirst(SearchContract):
    def make_search(self):
        return BreadthFirst(breadth=2, thoughts=3)


class TestBestFirst(SearchContract):
    def make_search(self):
        return BestFirst(expansions=7, thoughts=3)


class TestMonteCarlo(SearchContract):
    def make_search(self):
        return MonteCarlo(simulations=9, thoughts=3)


def values_of(table):
    """Worth by path; what is not in the table is worth nothing."""
    return lambda state: table.get(state.path, 0.0)


def expanded_by(search, depth, worth):
    """Paths in the order of expansion, the last generation's with them."""
    requests = []
    result = drive(search, depth, worth, requests=requests)
    order = [
        state.path for request in requests if isinstance(request, Continuations) for state in request.states
    ]
    return order, result


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


def test_best_first_turns_back_from_the_trap():
    order, result = expanded_by(BestFirst(expansions=10, thoughts=3, depth_weight=0), 3, values_of(TRAP))
    assert order == [(), (0,), (1,), (1, 2)]
    assert result.best.path == (1, 2)


def test_monte_carlo_leaves_the_trap_when_its_mean_has_fallen():
    order, result = expanded_by(MonteCarlo(simulations=3, thoughts=3, exploration=0), 3, values_of(TRAP))
    # After the second simulation (0,) has the mean (8 + 2 + 3 + 0) / 4, less than the 7 of (1,).
    assert order == [(), (0,), (1,), (1, 2)]
    assert result.best.path == (1, 2)


def test_exploration_visits_what_looks_worst():
    greedy, _ = expanded_by(MonteCarlo(simulations=12, thoughts=3, exploration=0), 4, values_of(TRAP))
    curious, _ = expanded_by(MonteCarlo(simulations=12, thoughts=3, exploration=10), 4, values_of(TRAP))
    assert (2,) not in greedy
    assert (2,) in curious


def test_a_simulation_at_the_end_of_a_path_asks_for_nothing():
    requests = []
    drive(MonteCarlo(simulations=50, thoughts=1), 2, requests=requests)
    assert [type(request) for request in requests] == [Continuations, Values, Continuations]


worths = st.dictionaries(
    st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple), st.integers(1, 10).map(float)
)


@given(st.integers(1, 4), st.integers(2, 5), worths)
def test_with_room_for_every_state_all_searches_find_the_optimum(thoughts, depth, table):
    worth, everything = values_of(table), 4**5
    whole = [BreadthFirst(everything, thoughts)]
    if thoughts**depth <= 300:
        whole.append(MonteCarlo(everything, thoughts, exploration=100.0))
    states = drive(whole[0], depth, worth).tree.states
    optimum = max(worth(state) for state in states if state.depth == depth - 1 and state.path)
    assert {worth(drive(search, depth, worth).best) for search in whole} == {optimum}
