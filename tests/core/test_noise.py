"""Noise is a function of its place, and of nothing else."""

from math import log

import numpy as np
import pytest
import torch
from scipy import stats

from specexp.core import noise
from specexp.core.noise import NOISE_VERSION, GumbelStream, gumbel, philox, place_key, uniforms

pytestmark = pytest.mark.unit

FROZEN = [-0.11035828292369843, -0.33552026748657227, 1.6705485582351685, 0.03983944281935692]
_KEY = place_key(0, "p#0", "target")

# Published with the generator (Random123, kat_vectors): counter, key, result.
_VECTORS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
_DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.mark.parametrize(("counter", "key", "result"), _VECTORS)
def test_the_generator_gives_the_published_words(counter, key, result):
    assert philox(*counter, key) == result
    arrays = philox(*(np.array([word], dtype=np.uint64) for word in counter), key)
    assert [int(word[0]) for word in arrays] == [*result]
    for device in _DEVICES:
        tensors = philox(*(torch.tensor([word], device=device) for word in counter), key)
        assert [int(word) for word in tensors] == [*result]


def test_the_numbers_of_a_place_never_change():
    # Written down once, with NOISE_VERSION: replay of old runs depends on them.
    assert NOISE_VERSION == 2
    assert _noise(5, 4).tolist() == pytest.approx(FROZEN, rel=1e-6)


@pytest.fixture(params=["compiled", "tensors"])
def made_by(request, monkeypatch):
    """Noise on a CPU is made in C++, and where there is no compiler by tensors."""
    if request.param == "tensors":
        monkeypatch.setattr("specexp.core.noise.noise_kernels", lambda: None)
    elif noise.noise_kernels() is None:
        pytest.skip("there is no C++ compiler on PATH")


@pytest.mark.usefixtures("made_by")
@pytest.mark.parametrize("device", _DEVICES)
def test_noise_is_that_of_its_words_to_the_last_place(device):
    drawn = gumbel(_KEY, 9, 2, 203, device).cpu().numpy()
    for row, position in enumerate((9, 10)):
        words = [word for block in range(51) for word in philox(block, position, 0, 0, _KEY)][:203]
        exact = np.array([-log(-log((word + 0.5) / 2**32)) for word in words], dtype=np.float32)
        assert (np.abs(drawn[row] - exact) <= np.spacing(np.abs(exact))).all()


def test_a_number_depends_neither_on_the_count_nor_on_the_vocabulary():
    whole = gumbel(_KEY, 100, 8, 40_000)  # made in several pieces
    assert torch.equal(gumbel(_KEY, 103, 2, 30_001), whole[3:5, :30_001])


def test_a_stream_gives_positions_in_any_order():
    stream, generator = GumbelStream(_KEY), np.random.default_rng(0)
    position = 50
    for _ in range(200):
        position = max(0, position + int(generator.integers(-20, 24)))
        count, size = int(generator.integers(1, 30)), int(generator.choice([5, 6]))
        assert torch.equal(stream.at(position, count, size), gumbel(_KEY, position, count, size))
        assert stream._rows.shape[0] <= 16 + 30 + 16 + 20  # kept behind, asked for, ahead, jumped over


def test_uniform_numbers_do_not_depend_on_their_count():
    paths = [(), (0, 1), (2,)]
    many = uniforms(_KEY, 7, paths * 8, 0, 30).reshape(8, 3, 30)
    assert (many == many[0]).all()
    assert ((many > 0) & (many < 1)).all()
    for index, path in enumerate(paths):
        assert (uniforms(_KEY, 7, [path], 3, 4)[0] == many[0, index, 3:7]).all()


def _noise(position, size):
    return gumbel(_KEY, position, 1, size)[0].numpy()


def test_it_is_gumbel_distributed():
    drawn = np.concatenate([_noise(position, 2000) for position in range(20)])
    assert drawn.dtype == np.float32
    assert np.isfinite(drawn).all()
    assert stats.kstest(drawn, "gumbel_r").pvalue > 0.01


@pytest.mark.parametrize(
    ("other", "position"),
    [
        (place_key(1, "p#0", "target"), 7),
        (place_key(0, "p#1", "target"), 7),
        (place_key(0, "p#0", "draft"), 7),
        (place_key(0, "p#0", "target", 1), 7),
        (_KEY, 8),
    ],
    ids=["seed", "sequence", "purpose", "detail", "position"],
)
def test_streams_of_other_places_are_independent(other, position):
    mine = _noise(7, 4000)
    theirs = gumbel(other, position, 1, 4000)[0].numpy()
    assert stats.spearmanr(mine, theirs).pvalue > 0.01
    # Dependence of any other form: the quadrants of the two medians are equally full.
    table = np.histogram2d(mine > np.median(mine), theirs > np.median(theirs), bins=2)[0]
    assert stats.chi2_contingency(table).pvalue > 0.01


def test_a_number_and_a_name_are_different_sequences():
    assert place_key(0, 1, "target") != place_key(0, "1", "target")
    assert place_key(0, np.int64(1), "target") == place_key(0, 1, "target")


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_token_is_chosen_by_logits_and_the_noise_of_its_depth(temperature):
    kernels = noise.noise_kernels()
    if kernels is None:
        pytest.skip("there is no C++ compiler")
    logits, depths = torch.randn((4, 300)).round(decimals=1), torch.tensor([0, 1, 1, 2])
    made = gumbel((1, 2), 5, 3, 300)
    logits[0, 299] = logits[0, 7] = 40.0  # the lower of equal logits is chosen
    logits[2, 123] = torch.nan
    copy, tokens, values = torch.empty_like(logits), torch.empty(4, dtype=torch.int64), torch.empty(4)
    places = [made.data_ptr() if temperature else 0, depths.data_ptr(), temperature]
    kernels.choose(logits.data_ptr(), 4, 300, *places, *(one.data_ptr() for one in (copy, tokens, values)))
    scores = logits / temperature + made[depths] if temperature else logits
    assert torch.equal(copy.view(torch.int32), logits.view(torch.int32))
    highest = scores.max(dim=-1)
    assert torch.equal(values.isnan(), torch.tensor([False, False, True, False]))
    for row in (0, 1, 3):
        assert (tokens[row], values[row]) == (highest.indices[row], highest.values[row])
    assert temperature or tokens[0] == 7
