"""The phrase store against a slow one that keeps lists, and its bounds."""

import pytest
import torch
from helpers.examples import examples
from hypothesis import given, strategies as st

from specexp.drafters.phrases import PhraseStore


class SlowStore:
    """The rules of eviction in their plainest form: lists, searched from one end."""

    def __init__(self, phrase_length, max_keys, max_phrases):
        self.room = phrase_length, max_keys, max_phrases
        self.keys = []  # [key, uses], the one touched longest ago first
        self.phrases = {}  # oldest first

    def insert(self, key, phrase):
        length, max_keys, max_phrases = self.room
        new = tuple(phrase[:length])
        if not new:
            return
        if key not in self.phrases:
            if len(self.keys) == max_keys:
                least = min(self.keys, key=lambda entry: entry[1])
                self.keys.remove(least)
                del self.phrases[least[0]]
            self.keys.append([key, 0])
        known = self.phrases.get(key, [])
        longer = [phrase for phrase in known if phrase[: len(new)] == new]
        new = longer[0] if longer else new
        kept = [phrase for phrase in known if phrase != new[: len(phrase)]]
        self.phrases[key] = [*kept, new][-max_phrases:]

    def use(self, key):
        for entry in self.keys:
            if entry[0] == key:
                self.keys.remove(entry)
                self.keys.append([key, entry[1] + 1])
                return

    def lookup(self, key, count):
        return self.phrases.get(key, [])[::-1][:count]


SIZES = st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3))
KEYS = st.integers(0, 5)
ACTIONS = st.lists(
    st.one_of(KEYS, st.tuples(KEYS, st.lists(st.integers(0, 2), min_size=0, max_size=5))), max_size=80
)


def act(store, actions):
    for action in actions:
        if isinstance(action, tuple):
            store.insert(*action)
        else:
            store.use(action)


def content(store):
    return {key: store.lookup(key, 100) for key in range(6)}


@examples(300)
@given(SIZES, ACTIONS)
def test_it_holds_what_a_slow_store_holds(sizes, actions):
    store, slow = PhraseStore(*sizes), SlowStore(*sizes)
    for action in actions:
        act(store, [action])
        act(slow, [action])
        assert content(store) == content(slow)
    assert len(store) == len(slow.keys)
    assert len(store.state_dict()["phrases"]) == sum(map(len, slow.phrases.values()))


@examples(100)
@given(SIZES, ACTIONS, ACTIONS)
def test_a_saved_store_goes_on_as_if_never_interrupted(sizes, before, after):
    store, restored = PhraseStore(*sizes), PhraseStore(*sizes)
    act(store, before)
    restored.load_state_dict(store.state_dict())
    for one in (store, restored):
        act(one, after)
    assert content(restored) == content(store)
    state, again = store.state_dict(), restored.state_dict()
    assert all(torch.equal(state[name], again[name]) for name in state)


@examples(100)
@given(SIZES, ACTIONS)
def test_no_phrase_is_the_beginning_of_another_of_its_key(sizes, actions):
    store = PhraseStore(*sizes)
    act(store, actions)
    for phrases in content(store).values():
        assert not any(a is not b and b[: len(a)] == a for a in phrases for b in phrases)


def test_100000_insertions_stay_within_the_bounds():
    store = PhraseStore(5, 1000, 20)
    number = 1
    for _ in range(100_000):
        number = number * 48_271 % 2_147_483_647  # a small generator of Lehmer's kind
        store.insert(number % 5_000, (number % 7, number % 11, number % 13, number % 3, number % 2, 1))
        store.use(number % 1_999)
    assert len(store) == 1000
    state = store.state_dict()
    assert state["keys"].shape == state["uses"].shape == (1000,)
    assert int(state["counts"].max()) <= 20
    assert tuple(state["phrases"].shape) == (int(state["counts"].sum()), 5)
    assert len(state["phrases"]) <= 20_000


def test_looking_up_changes_nothing():
    store = PhraseStore(3, 2, 2)
    store.insert(1, (5,))
    store.insert(2, (6,))
    for _ in range(3):
        store.lookup(1, 9)
    store.insert(3, (7,))
    assert store.lookup(1, 9) == []  # evicted all the same: as seldom used as 2, and older


def test_the_least_used_key_is_evicted():
    store = PhraseStore(3, 2, 2)
    store.insert(1, (5,))
    store.use(1)
    store.insert(2, (6,))
    store.insert(3, (7,))
    assert [key in store for key in (1, 2, 3)] == [True, False, True]


def test_an_empty_phrase_and_a_key_it_does_not_hold_change_nothing():
    store = PhraseStore(3, 2, 2)
    store.insert(1, ())
    store.use(1)
    assert len(store) == 0
    assert store.largest_token == -1


def test_the_largest_token_may_be_a_key_or_stand_in_a_phrase():
    store = PhraseStore(3, 2, 2)
    store.insert(9, (5, 3))
    assert store.largest_token == 9
    store.insert(1, (5, 30))
    assert store.largest_token == 30


def saved(**changes):
    store = PhraseStore(3, 4, 2)
    for key, phrase in ((1, (5, 6, 7)), (1, (4,)), (2, (8, 9))):
        store.insert(key, phrase)
    return {**store.state_dict(), **changes}


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((2, 4, 2), r"up to 3 tokens; there is room for 2: raise phrase_length"),
        ((3, 1, 2), r"2 keys with up to 2 phrases; there is room for 1 keys with 2"),
        ((3, 4, 1), r"room for 4 keys with 1"),
    ],
)
def test_phrases_that_do_not_fit_are_refused(sizes, expected):
    with pytest.raises(ValueError, match=expected):
        PhraseStore(*sizes).load_state_dict(saved())
    larger = PhraseStore(8, 9, 9)
    larger.load_state_dict(saved())
    assert larger.lookup(1, 9) == [(4,), (5, 6, 7)]


@pytest.mark.parametrize(
    "changes",
    [
        {"more": torch.zeros(1)},
        {"keys": torch.tensor([1.0, 2.0])},
        {"keys": torch.tensor([[1, 2]])},
        {"keys": torch.tensor([1])},
        {"keys": torch.tensor([1, 1])},
        {"keys": torch.tensor([-1, 2])},
        {"uses": torch.tensor([0, -2])},
        {"counts": torch.tensor([3, 0])},
        {"counts": torch.tensor([2, 2])},
        {"phrases": torch.tensor([[5, 6, 7], [-1, -1, -1], [8, 9, -1]])},
        {"phrases": torch.tensor([[5, 6, 7], [-1, 4, -1], [8, 9, -1]])},
        {"phrases": torch.tensor([[5, 6, 7], [4, -7, -1], [8, 9, -1]])},
    ],
    ids=str,
)
def test_a_damaged_state_is_refused_and_changes_nothing(changes):
    store = PhraseStore(3, 4, 2)
    store.insert(3, (1,))
    with pytest.raises(ValueError, match="saved"):
        store.load_state_dict(saved(**changes))
    assert content(store) == {key: [(1,)] if key == 3 else [] for key in range(6)}
