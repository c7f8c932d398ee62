"""Noise is a function of its place, and of nothing else."""

import numpy as np
import pytest
from scipy import stats

from specexp.core.context import Context
from specexp.core.noise import gumbel, place_key

FROZEN = [0.8802814483642578, 0.3544478118419647, -1.2606912851333618, -0.5041137933731079]
_KEY = place_key(0, "p#0", "target")


def test_the_numbers_of_a_place_never_change():
    # Written down once: replay of old runs depends on them.
    assert gumbel(_KEY, 5, 4).tolist() == pytest.approx(FROZEN, abs=0)


def test_the_order_of_calls_does_not_matter():
    forward = {position: gumbel(_KEY, position, 50) for position in range(20)}
    for position in reversed(range(20)):
        assert (gumbel(_KEY, position, 50) == forward[position]).all()


def test_it_is_gumbel_distributed():
    drawn = np.concatenate([gumbel(_KEY, position, 2000) for position in range(20)])
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
    mine = gumbel(_KEY, 7, 4000)
    theirs = gumbel(other, position, 4000)
    assert stats.spearmanr(mine, theirs).pvalue > 0.01
    # Dependence of any other form: the quadrants of the two medians are equally full.
    table = np.histogram2d(mine > np.median(mine), theirs > np.median(theirs), bins=2)[0]
    assert stats.chi2_contingency(table).pvalue > 0.01


def test_neighbouring_positions_share_no_number():
    seen = np.concatenate([gumbel(_KEY, position, 500) for position in range(50)])
    assert len(np.unique(seen)) > 0.999 * seen.size


def test_a_number_and_a_name_are_different_sequences():
    assert place_key(0, 1, "target") != place_key(0, "1", "target")
    assert place_key(0, np.int64(1), "target") == place_key(0, 1, "target")


def test_a_context_keys_the_targets_noise():
    assert Context([1], seed=3, sequence="a#0").target_noise_key == place_key(3, "a#0", "target")
