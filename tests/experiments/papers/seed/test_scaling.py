"""Curves over n, one for each verify_batch, from arms as grids name them."""

import pytest
from helpers.made_groups import group_of

from experiments.papers.seed.speedups import Scaling, setting_of
from specexp.testing.analyses import AnalysisContract


class TestScaling(AnalysisContract):
    def make_analysis(self):
        return Scaling()


ARMS = {
    "engine": 8.0,
    "Serial speculative": 4.0,
    "SEED, n=1": 8.0,
    "SEED, n=2": 4.0,
    "SEED, n=4, verify_batch=2": 1.0,
    "SEED, n=2, verify_batch=2": 2.0,
}


def memory_of(arm):
    """Weights once, and a cache for every sequence."""
    _, n, _ = setting_of(arm)
    return {"weights": 4_000_000, "caches": 1_000_000 * n} if n else {"weights": 0, "caches": 0}


def report():
    analysis = Scaling()
    analysis.begin(dict.fromkeys(ARMS))
    return analysis.report([group_of(arm, 0, wall, memory=memory_of(arm)) for arm, wall in ARMS.items()])


def lines_of(axes):
    """Curves stand a little aside of each other."""
    return {
        bars.get_label(): [(round(x), pytest.approx(y)) for x, y in bars.lines[0].get_xydata()]
        for bars in axes.containers
    }


def test_curves_go_over_n_in_its_order():
    top, middle, _ = report().figures["scaling"].axes
    assert lines_of(top) == {"SEED": [(1, 1), (2, 2)], "SEED, verify_batch=2": [(2, 4), (4, 8)]}
    curves = [line for line in middle.lines if line.get_marker() != "None"]
    assert [[round(x) for x in line.get_xdata()] for line in curves] == [[1, 2], [2, 4]]


def test_an_arm_without_n_is_a_line_across():
    top, *_ = report().figures["scaling"].axes
    (across,) = [line for line in top.lines if line.get_label() == "Serial speculative"]
    assert list(across.get_ydata()) == pytest.approx([2, 2])


def test_every_arm_has_a_row():
    rows = report().tables["scaling"].records()
    assert [(row["arm"], row["n"], row["verify_batch"]) for row in rows] == [
        ("engine", None, None),
        ("Serial speculative", None, None),
        ("SEED", 1, None),
        ("SEED", 2, None),
        ("SEED", 4, 2),
        ("SEED", 2, 2),
    ]
    assert rows[4]["end to end vs engine"] == "8.00x (one prompt)"


def test_memory_of_the_drafts_is_told_and_drawn():
    *_, bottom = report().figures["scaling"].axes
    weights, caches = ([round(bar.get_height(), 9) for bar in bars] for bars in bottom.containers)
    assert (weights, caches) == ([4, 4, 4], [1, 2, 4])
    rows = report().tables["scaling"].records()
    assert [row["draft caches"] for row in rows] == [None, None, 1, 2, 4, 2]


def test_without_n_there_is_no_curve():
    analysis = Scaling()
    analysis.begin({"engine": None, "chain": None})
    assert analysis.report([group_of("engine", 0, 1.0), group_of("chain", 0, 1.0)]).figures == {}


@pytest.mark.parametrize(
    ("title", "setting"),
    [
        ("SEED, n=3, verify_batch=2", ("SEED", 3, 2)),
        ("SEED, verify_batch=2, n=3", ("SEED", 3, 2)),
        ("Batched, widths=[2, 2, 1], n=3", ("Batched, widths=[2, 2, 1]", 3, None)),
        ("chain, budget_n=3, ngram=2", ("chain, budget_n=3, ngram=2", None, None)),
        ("n=8", ("", 8, None)),
    ],
)
def test_titles_are_read_as_grids_write_them(title, setting):
    assert setting_of(title) == setting
