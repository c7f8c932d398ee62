"""The room of the slot cache and the forms of its rows; what it keeps is tested by the contract of runtimes."""

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
