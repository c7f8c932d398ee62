"""The slot cache by hand: rows are kept, moved, copied and dropped."""

import pytest
import torch
from helpers.small_models import FULL_ATTENTION, build

from specexp.core.cache import SlotCache

LAYERS = 2


@pytest.fixture(autouse=True)
def inference():
    """Passes write to tensors that only inference mode can modify."""
    with torch.inference_mode():
        yield


@pytest.fixture
def cache():
    config = build("Llama", FULL_ATTENTION["Llama"]).config
    made = SlotCache(config, torch.float64, torch.device("cpu"))
    made.reserve(10, slots=3)
    return made


def feed(cache, slots, values):
    """Write ``values`` ``[b, rows]`` into every layer, negated as values; return what layer 1 sees."""
    cache.open(slots)
    seen = None
    for layer in range(LAYERS):
        keys = torch.tensor(values, dtype=torch.float64)[:, None, :, None].expand(-1, 2, -1, 8) + layer
        seen = cache.update(keys, -keys, layer)
    return seen


def rows(cache, slot):
    """The committed keys of a slot, as numbers."""
    return (cache.storage[2, slot, 0, : cache.lengths[slot], 0] - 1).tolist()


def test_a_pass_sees_the_past_and_itself(cache):
    feed(cache, [0], [[1, 2]])
    cache.commit(0, [0, 1])
    keys, values = feed(cache, [0], [[3, 4, 5]])
    assert keys.shape == (1, 2, 5, 8)
    assert (keys[0, 0, :, 0] - 1).tolist() == [1, 2, 3, 4, 5]
    assert (values == -keys).all()


@pytest.mark.parametrize("kept", [[0], [0, 1], [0, 2], [0, 1, 3], [0, 2, 4], [1], [0, 1, 2, 3, 4]])
def test_only_the_committed_rows_stay_in_every_layer(cache, kept):
    feed(cache, [1], [[7, 8]])
    cache.commit(1, [0, 1])
    feed(cache, [1], [[10, 11, 12, 13, 14]])
    cache.commit(1, kept)
    assert rows(cache, 1) == [7, 8, *(10 + row for row in kept)]
    length = cache.lengths[1]
    first_layer = cache.storage[0, 1, :, :length]
    assert (cache.storage[1, 1, :, :length] == -first_layer).all()
    assert (cache.storage[2, 1, :, :length] == first_layer + 1).all()
    assert (cache.storage[3, 1, :, :length] == -first_layer - 1).all()


def test_slots_do_not_touch_each_other(cache):
    feed(cache, [0, 2], [[1, 2], [5, 6]])
    cache.commit(0, [0])
    cache.commit(2, [0, 1])
    feed(cache, [2, 0], [[7], [3]])
    cache.commit(0, [0])
    cache.commit(2, [0])
    assert (rows(cache, 0), rows(cache, 1), rows(cache, 2)) == ([1, 3], [], [5, 6, 7])


def test_reserve_keeps_committed_rows_and_never_shrinks(cache):
    feed(cache, [2], [[5, 6]])
    cache.commit(2, [0, 1])
    cache.reserve(50, 5)
    assert (cache.capacity, cache.slots, len(cache.lengths)) == (50, 5, 5)
    assert rows(cache, 2) == [5, 6]
    cache.reserve(3, 1)
    assert (cache.capacity, cache.slots) == (50, 5)
    cache.reserve(3, 6)
    assert (cache.capacity, cache.slots) == (50, 6)
    assert rows(cache, 2) == [5, 6]


def test_a_fork_goes_its_own_way(cache):
    feed(cache, [0], [[1, 2, 3, 7]])
    cache.commit(0, [0, 1, 2, 3])
    cache.fork(0, 2, 3)
    cache.truncate(0, 3)
    feed(cache, [2], [[9]])
    cache.commit(2, [0])
    assert (rows(cache, 0), rows(cache, 2)) == ([1, 2, 3], [1, 2, 3, 9])
    feed(cache, [0], [[4]])
    cache.commit(0, [0])
    assert (rows(cache, 0), rows(cache, 2)) == ([1, 2, 3, 4], [1, 2, 3, 9])


@pytest.mark.parametrize(("length", "left"), [(0, []), (2, [1, 2]), (3, [1, 2, 3]), (9, [1, 2, 3])])
def test_truncating_forgets_the_end(cache, length, left):
    feed(cache, [0], [[1, 2, 3]])
    cache.commit(0, [0, 1, 2])
    cache.truncate(0, length)
    assert rows(cache, 0) == left


def test_a_full_cache_raises(cache):
    with pytest.raises(ValueError, match="has 10 rows per slot; 11 must be reserved"):
        feed(cache, [0], [list(range(11))])


def test_the_first_pass_sets_heads_and_widths(cache):
    for layer in range(LAYERS):
        keys, values = torch.full((1, 1, 3, 12), 1.0 + layer), torch.full((1, 1, 3, 5), -1.0 - layer)
        seen_keys, seen_values = cache.update(keys.double(), values.double(), layer)
        assert torch.equal(seen_keys, keys.double())
        assert torch.equal(seen_values, values.double())
    cache.commit(0, [0, 2])
    cache.fork(0, 1, 2)
    cache.open([1])
    keys, values = cache.update(torch.zeros(1, 1, 1, 12).double(), torch.zeros(1, 1, 1, 5).double(), 1)
    assert (keys.shape, values.shape) == ((1, 1, 3, 12), (1, 1, 3, 5))
    assert keys[0, 0, :, 0].tolist() == [2, 2, 0]


def test_layers_of_different_forms_are_refused(cache):
    cache.update(torch.zeros(1, 2, 1, 8).double(), torch.zeros(1, 2, 1, 8).double(), 0)
    with pytest.raises(ValueError, match="all layers must have keys of the same shape, got 2 heads of 8 and 1 of 8"):
        cache.update(torch.zeros(1, 1, 1, 8).double(), torch.zeros(1, 1, 1, 8).double(), 1)
