"""The best static trees that a recording shows without a search: what a searched tree is held against.

Two families, both from what the draft's candidates were worth at *all* positions of the output:

- *most hit*: the ``n`` rank paths that most often lead along the output. They form a tree, and of all trees of ``n``
  nodes it has most expected tokens at an average position.
- *Sequoia*: the dynamic programme of Chen et al. 2024 (section 3) for the share of positions at which the first,
  second, ... candidate is the output's token, as if these did not depend on what came before.

Nodes and depth of each are those with the highest goodput that its own expectation and the latency profile promise.
Then both are replayed. A run visits only its own roots, which are not average ones, so a searched tree may beat both.
"""

from __future__ import annotations

from dataclasses import dataclass

from specexp.core.latency import LatencyProfile
from specexp.core.messages import counted
from specexp.core.tree import TreeShape
from specexp.replay.play.expected_tokens import ExpectedTree, RankPathHits, most_hit_by_size, sequoia_tree
from specexp.replay.play.ranks import OutputRanks

STATIC = "DraftModel + StaticTree"
"""The composition whose overheads are charged."""

KNEE_SHARE = 0.99
"""Share of the curve's highest goodput that is enough for its knee."""


@dataclass(frozen=True)
class BudgetPoint:
    """The most-hit tree of one size, its depth limit the one with the highest expected goodput.

    Attributes:
        rank_paths: Paths sorted by length, then rank.
        expected_goodput: Tokens per second at an average position.
        tokens_per_step: Tokens per step, replayed.
        goodput: Tokens per second, replayed.
    """

    rank_paths: list[list[int]]
    expected_goodput: float
    tokens_per_step: float
    goodput: float

    @property
    def nodes(self) -> int:
        """Nodes of the tree, the root not counted."""
        return len(self.rank_paths)

    @property
    def depth(self) -> int:
        """Depth of the deepest node."""
        return max(map(len, self.rank_paths))


@dataclass(frozen=True)
class YardstickTree(BudgetPoint):
    """A tree chosen without a search.

    Attributes:
        family: ``most hit`` or ``Sequoia``.
        expected_tokens_per_step: What the tree was chosen for, at an average position; Sequoia's by its vector. The
            expected goodput follows from it.
    """

    family: str
    expected_tokens_per_step: float


@dataclass(frozen=True)
class Yardstick:
    """Both trees, and what the most-hit ones of every size are worth.

    Trees are chosen and replayed on the same prompts, so all figures are of prompts that were seen.

    Attributes:
        most_hit: The best most-hit tree.
        sequoia: The best tree of Sequoia's programme.
        curve: Most-hit trees of 1, 2, ... nodes, replayed.
        plain_goodput: Tokens per second of plain decoding, by the same profile.
        positions: Positions that hits were counted at.
        profile: The latency profile's label.
        approximate: Why hits and replayed figures are approximate; empty where they are exact.
    """

    most_hit: YardstickTree
    sequoia: YardstickTree
    curve: tuple[BudgetPoint, ...]
    plain_goodput: float
    positions: int
    profile: str
    approximate: str = ""

    @property
    def best(self) -> YardstickTree:
        """The better of the two, replayed."""
        return max(self.most_hit, self.sequoia, key=lambda tree: tree.goodput)

    @property
    def frontier(self) -> tuple[BudgetPoint, ...]:
        """The curve's best tree of at most 1, 2, ... nodes."""
        found: list[BudgetPoint] = []
        for point in self.curve:
            found.append(point if not found or point.goodput > found[-1].goodput else found[-1])
        return tuple(found)

    @property
    def knee(self) -> BudgetPoint:
        """The smallest tree of the curve within 1 % of its best."""
        enough = KNEE_SHARE * max(point.goodput for point in self.curve)
        return next(point for point in self.curve if point.goodput >= enough)

    def share(self, goodput: float) -> float:
        """A goodput, in tokens per second, as a share of :attr:`best`'s; above 1 where it is better."""
        return goodput / self.best.goodput

    def sentences(self, name: str, goodput: float) -> list[str]:
        """How a searched tree compares, for notes of a table.

        Args:
            name: What the searched tree is called.
            goodput: Its tokens per second, replayed on the same turns with the same profile.
        """
        best, share, knee = self.best, self.share(goodput), self.knee
        beats = (
            "; it may, for a run visits only its own roots and the yardstick is made for all positions"
            if share > 1
            else ""
        )
        found = [
            f"Yardstick: {name} reaches {100 * share:.1f} % of the best static tree known without a search "
            f"({best.family}, {counted(best.nodes, 'node')}, depth {best.depth}: {best.goodput:.1f} tokens/s "
            f"replayed){beats}.",
            f"Trees and yardstick are chosen and replayed on the same prompts ({counted(self.positions, 'position')}): "
            "other prompts may give less.",
            f"The knee of goodput against budget is at {counted(knee.nodes, 'node')}: {knee.goodput:.1f} tokens/s, "
            f"within {100 * (1 - KNEE_SHARE):.0f} % of the highest of {counted(len(self.curve), 'size')}.",
        ]
        if self.frontier[-1] is self.curve[-1] and len(self.curve) > 1:
            found.append("Goodput still rises at the largest size: allow more nodes to see where it ends.")
        if self.approximate:
            found.append(f"The yardstick is approximate: {self.approximate}.")
        if best.goodput < self.plain_goodput:
            found.append(
                f"No yardstick tree pays here: plain decoding gives {self.plain_goodput:.1f} tokens/s."
            )
        return found


def yardstick(
    ranks: OutputRanks,
    latency: LatencyProfile,
    *,
    max_nodes: int,
    max_depth: int,
    composition: str = STATIC,
) -> Yardstick:
    """The yardstick of a drafter on a recording.

    Args:
        ranks: The drafter's ranks along the output.
        latency: What steps cost, with the overheads of all compositions if it states them.
        max_nodes: Most nodes of a tree.
        max_depth: Deepest node.
        composition: Whose overheads are charged (:attr:`specexp.core.parts.Parts.label`).

    Raises:
        ValueError: No candidate is ever the output's token; the profile states no ``draft_ms`` and is asked for them.
    """
    priced = latency.of(composition)
    found = RankPathHits(ranks.paths(max_depth), float(ranks.prefixes.mean()))

    def replayed(tree: ExpectedTree) -> BudgetPoint:
        shape = TreeShape.from_rank_paths(tree.paths)
        counts = ranks.evaluate(shape, priced)
        listed = [list(path) for path in shape.rank_paths[1:]]
        return BudgetPoint(listed, tree.goodput, counts.tokens_per_step, counts.tokens_per_second)

    def chosen(family: str, tree: ExpectedTree) -> YardstickTree:
        return YardstickTree(
            **vars(replayed(tree)), family=family, expected_tokens_per_step=tree.tokens_per_step
        )

    limits = max_nodes, max_depth, ranks.drafts
    best_of_size = most_hit_by_size(found, priced, *limits)
    sizes = ranks.curve_sizes or range(1, len(best_of_size) + 1)
    return Yardstick(
        chosen("most hit", max(best_of_size, key=lambda tree: tree.goodput)),
        chosen("Sequoia", sequoia_tree(found, priced, *limits)),
        tuple(replayed(best_of_size[size - 1]) for size in sizes if size <= len(best_of_size)),
        ranks.positions / float(ranks.plain_seconds(latency).sum()),
        found.positions,
        priced.label,
        ranks.approximate,
    )
