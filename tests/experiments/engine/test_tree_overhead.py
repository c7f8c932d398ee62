"""The cost of dynamic trees beside the models, in two tables."""

import torch

from experiments.engine.tree_overhead import bookkeeping_table, drawing_table
from specexp.models.pair import load_pair


def test_builders_run_again_on_the_kept_candidates():
    with torch.inference_mode():
        table = bookkeeping_table([6], load_pair("stdlib").draft, [[5, 6, 7], [5, 6]])
    assert [row[0] for row in table.rows] == [
        "DySpecGreedy, drawn", "DySpecGreedy, top-k", "DySpecThreshold, drawn",
    ]  # fmt: skip
    for _, nodes, depth, passes, ms, share in table.rows:
        assert 1 <= depth <= nodes <= 6
        assert passes >= 1
        assert share == ms / 20 > 0


def test_a_flatter_draft_gives_more_nodes_a_row():
    table = drawing_table([16], trees=3, vocabulary=500)
    rows = [row[2] for row in table.rows]
    assert rows == sorted(rows)
    assert rows[0] < rows[-1]
    assert all(ms > 0 for row in table.rows for ms in row[3:])
