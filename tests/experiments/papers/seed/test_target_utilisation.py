"""How busy the target is: arithmetic on time lines."""

import numpy as np
import pytest
from helpers.made_groups import overlapping
from hypothesis import given, strategies as st

from experiments.papers.seed.time_lines import MOST_BINS, TargetUtilisation, busy_shares
from specexp.scheduling.timeline import TimeLine
from specexp.testing.analyses import AnalysisContract


class TestTargetUtilisation(AnalysisContract):
    def make_analysis(self):
        return TargetUtilisation()


def report_of(*lines, bin_ms=100.0):
    analysis = TargetUtilisation()
    analysis.bin_ms = bin_ms
    analysis.begin({"seed": None})
    for number, line in enumerate(lines):
        analysis.observe_run("seed", f"p{number}", line)
    return analysis.report([])


def test_shares_of_the_time_add_up():
    """Of 1 s: 0.1 prefill, 0.7 passes, 0.1 decisions; of 0.5 s drafting 0.35 lie under passes."""
    (row,) = report_of(overlapping()).tables["target_utilisation"].records()
    assert row == {
        "arm": "seed",
        "prompts": 1,
        "seconds": pytest.approx(1),
        "target busy": pytest.approx(0.8),
        "in passes": pytest.approx(0.7),
        "in prefills": pytest.approx(0.1),
        "deciding": pytest.approx(0.1),
        "waiting": pytest.approx(0.1),
        "drafting": pytest.approx(0.5),
        "drafting hidden": pytest.approx(0.35 / 0.5),
        "sequences/pass": 1,
    }


def test_prompts_stand_one_behind_the_other_whatever_ran_between_them():
    (row,) = report_of(overlapping(), overlapping(500.0)).tables["target_utilisation"].records()
    assert (row["prompts"], row["seconds"]) == (2, pytest.approx(2))
    assert row["target busy"] == pytest.approx(0.8)


def test_plain_decoding_drafts_nothing():
    line = TimeLine()
    line.add("target", "target", 0.0, 1.0, "a", 1, 0)
    (row,) = report_of(line).tables["target_utilisation"].records()
    assert (row["target busy"], row["drafting"], row["drafting hidden"]) == (1, None, None)


def test_a_curve_has_a_point_for_every_bin():
    (axes,) = report_of(overlapping(), bin_ms=250).figures["target_utilisation"].axes
    (shares,) = {tuple(np.round(patch.get_data().values, 6)) for patch in axes.patches}
    assert shares == pytest.approx((100, 100, 80, 40))


def test_a_long_run_has_wider_bins():
    (axes,) = report_of(overlapping(), bin_ms=0.1).figures["target_utilisation"].axes
    assert 100 <= len(axes.patches[0].get_data().values) <= MOST_BINS


@given(st.lists(st.floats(0.01, 5), min_size=2, max_size=20), st.floats(0.05, 3))
def test_bins_hold_all_of_the_busy_time(lengths, width):
    """Lengths are of busy and idle times in turn."""
    ends = np.cumsum(lengths)
    busy = [(end - length, end) for end, length in zip(ends[::2], lengths[::2], strict=True)]
    edges, shares = busy_shares(busy, ends[-1], width)
    assert edges[0] == 0
    assert edges[-1] == ends[-1]
    assert ((shares >= 0) & (shares <= 1)).all()
    assert (shares * np.diff(edges)).sum() == pytest.approx(sum(lengths[::2]))
