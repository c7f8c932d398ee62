"""The picture of a tree shows every node once, where it belongs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.patches import Circle
from PIL import Image

from specexp.bench.drawings import draw_tree, lay_out, percent
from specexp.builders import Chain, TokenRecyclingTree
from specexp.core.tree import ROOT_ONLY, TreeShape

BUSH = TreeShape.from_rank_paths([[rank] for rank in range(4)])


@pytest.mark.parametrize(
    "shape",
    [ROOT_ONLY, BUSH, Chain(length=8).shape, TokenRecyclingTree().shape],
    ids=["root", "bush", "chain", "80"],
)
def test_every_node_is_drawn_and_named_by_its_rank(shape: TreeShape, tmp_path: Path) -> None:
    figure = draw_tree(shape, title="A tree")
    (axes,) = figure.axes
    assert len([patch for patch in axes.patches if isinstance(patch, Circle)]) == shape.num_nodes + 1
    assert [text.get_text() for text in axes.texts] == ["root", *map(str, shape.ranks[1:])]

    figure.savefig(tmp_path / "tree.png")
    pixels = np.asarray(Image.open(tmp_path / "tree.png").convert("L"))
    assert pixels.std() > 0
    assert (pixels[:, [0, -1]] == 255).all(), "something is cut off at the side"


def test_hit_rates_are_written_below_their_nodes_and_add_up() -> None:
    shape = TreeShape.from_rank_paths([[0], [1], [0, 0]])
    figure = draw_tree(shape, {(0,): 0.613, (0, 0): 0.25})
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts == ["root", "0", "61%", "1", "0", "25%"]
    assert "3 nodes, depth 2, 1.86 tokens per step" in figure.texts[1].get_text()


def test_nodes_of_a_depth_stand_apart_and_parents_above_their_children() -> None:
    shape = TokenRecyclingTree().shape
    x = lay_out(shape)
    for depth in range(1, shape.max_depth + 1):
        row = np.sort(x[shape.depths == depth])
        assert (np.diff(row) >= 1 - 1e-9).all()
    for node, children in enumerate(shape.children):
        if children:
            assert x[list(children)].min() <= x[node] <= x[list(children)].max()


@pytest.mark.parametrize(
    ("rate", "text"), [(0.0, "0%"), (0.004, ".4%"), (0.0001, "0%"), (0.5, "50%"), (1.0, "100%")]
)
def test_percent(rate: float, text: str) -> None:
    assert percent(rate) == text
