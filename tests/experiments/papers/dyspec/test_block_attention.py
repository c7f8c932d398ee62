"""Table 5's times: three ways in turns, and how much the order saves."""

import pytest

from experiments.papers.dyspec.block_attention import BlockAttention
from specexp.testing.analyses import AnalysisContract


class TestBlockAttention(AnalysisContract):
    def make_analysis(self):
        return BlockAttention(rows=[32, 64], heads=1, head_dim=8, block=8, trees=1, repeats=1)

    @pytest.mark.skip("milliseconds are never the same twice")
    def test_the_same_run_gives_the_same_report(self): ...

    @pytest.mark.skip("milliseconds are never the same twice")
    def test_a_new_run_forgets_the_last(self): ...


def test_blocks_and_times_of_both_orders_stand_beside_the_whole_mask():
    analysis = BlockAttention(rows=[64], heads=1, head_dim=8, block=8, trees=2, repeats=3)
    analysis.begin({})
    (row,) = analysis.report([]).tables["block_attention"].records()
    assert row["blocks, depth-first"] < row["blocks, unordered"] <= 8 * 9 / 2
    assert row["unordered over depth-first"] == row["unordered"] / row["depth-first"]
    assert row["whole mask"] > 0
    assert row["published"] is None
