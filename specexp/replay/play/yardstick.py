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

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from specexp.core.latency import LatencyProfile
from specexp.core.messages import counted
from specexp.core.tree import RankPath, TreeShape
from specexp.replay.format.turn import RecordedTurn
from specexp.replay.play.promises import most_hit_by_size, sequoia_tree
from specexp.replay.play.rank_paths import RankPathHits
from specexp.replay.play.ranks import RankTable

STATIC = "DraftModel + StaticTree"
"""The composition whose overheads are charged."""

KNEE_SHARE = 0.99
"""Share of the curve's highest goodput that is enough for its knee."""


class Replayed(Protocol):
    """What replaying a tree gave."""

    @property
    def tokens_per_step(self) -> float:
        """All tokens / all steps."""

    @property
    def tokens_per_second(self) -> float:
        """All tokens / all seconds."""


Replay = Callable[[TreeShape], Replayed]


@dataclass(frozen=True)
class BudgetPoint:
    """The most-hit tree of one size, its depth limit the one with the highest promised goodput.

    Attributes:
        rank_paths: sorted by length, then rank.
        promised_goodput: at an average position.
        tokens_per_step: replayed.
        goodput: replayed, tokens per second.
    """

    rank_paths: list[list[int]]
    promised_goodput: float
    tokens_per_step: float
    goodput: float

    @property
    def nodes(self) -> int:
        """The root not counted."""
        return len(self.rank_paths)

    @property
    def depth(self) -> int:
        """Of the deepest node."""
        return max(map(len, self.rank_paths))


@dataclass(frozen=True)
class YardstickTree(BudgetPoint):
    """A tree chosen without a search.

    Attributes:
        family: ``most hit`` or ``Sequoia``.
        promised_tokens_per_step: by what the tree was chosen for: at an average position; Sequoia's by its vector.
            The promised goodput follows from it.
    """

    family: str
    promised_tokens_per_step: float


@dataclass(frozen=True)
class Yardstick:
    """Both trees, and what the most-hit ones of every size are worth.

    Trees are chosen and replayed on the same prompts, so all figures are of prompts that were seen.

    Attributes:
        most_hit: the one of that family.
        sequoia: the other.
        curve: most-hit trees of 1, 2, ... nodes, replayed.
        plain_goodput: tokens per second of plain decoding, by the same profile.
        positions: that hits were counted at.
        profile: the latency profile's label.
        approximate: why hits and replayed figures are approximate; empty where they are exact.
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
            name: what the searched tree is called.
            goodput: its tokens per second, replayed on the same turns with the same profile.
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
    turns: Sequence[RecordedTurn],
    latency: LatencyProfile,
    *,
    max_nodes: int,
    max_depth: int,
    max_new_tokens: int,
    context_limit: int,
    table: RankTable | None = None,
    composition: str = STATIC,
) -> Yardstick:
    """The yardstick of a recording with a draft model.

    Args:
        turns: of the recording.
        latency: what steps cost, with the overheads of all compositions if it states them.
        max_nodes: most nodes of a tree.
        max_depth: deepest node.
        max_new_tokens: per turn, at most as many as were recorded.
        context_limit: of the target.
        table: of the same turns and limits, where there is one already.
        composition: whose overheads are charged (:func:`specexp.core.latency.composition_label`).

    Raises:
        NotRecordedError: a turn holds no candidates after one of its tokens.
        ValueError: no candidate of the draft is ever the output's token; the profile states no ``draft_ms``.
    """
    ranks = table if table is not None else RankTable(turns, max_new_tokens, context_limit)
    priced = latency.labelled(composition)
    plain_seconds = sum(
        latency.plain_seconds(turn.prompt.size, min(turn.answer.size, max_new_tokens)) for turn in turns
    )
    return measure(
        RankPathHits.of_table(ranks, max_depth),
        priced,
        lambda shape: ranks.evaluate(shape, priced),
        max_nodes=max_nodes,
        max_depth=max_depth,
        plain_goodput=ranks.positions / plain_seconds,
    )


def measure(
    found: RankPathHits,
    latency: LatencyProfile,
    replay: Replay,
    *,
    max_nodes: int,
    max_depth: int,
    plain_goodput: float,
    drafts: bool = True,
    sizes: Sequence[int] | None = None,
    approximate: str = "",
) -> Yardstick:
    """The yardstick from hits counted elsewhere.

    Args:
        found: at all positions.
        latency: of the composition.
        replay: a tree.
        max_nodes: most nodes of a tree.
        max_depth: deepest node.
        plain_goodput: tokens per second of plain decoding.
        drafts: whether every depth of a tree costs a pass of a draft model.
        sizes: of the trees that are replayed for the curve; all if None.
        approximate: why hits and replayed figures are approximate, if they are.

    Raises:
        ValueError: no candidate is ever the output's token; the profile states no ``draft_ms`` and is asked for them.
    """
    best_of_size = most_hit_by_size(found, latency, max_nodes, max_depth, drafts)
    curve = []
    for nodes in sizes if sizes is not None else range(1, len(best_of_size) + 1):
        if nodes <= len(best_of_size):
            paths, _, goodput = best_of_size[nodes - 1]
            shape = TreeShape.from_rank_paths(paths)
            replayed = replay(shape)
            listed = [list(path) for path in shape.rank_paths[1:]]
            curve.append(BudgetPoint(listed, goodput, replayed.tokens_per_step, replayed.tokens_per_second))
    most_hit = max(best_of_size, key=lambda one: one[2])
    return Yardstick(
        _replayed("most hit", *most_hit, replay),
        _replayed("Sequoia", *sequoia_tree(found, latency, max_nodes, max_depth, drafts), replay),
        tuple(curve),
        plain_goodput,
        found.positions,
        latency.label,
        approximate,
    )


def _replayed(
    family: str, paths: list[RankPath], tokens_per_step: float, goodput: float, replay: Replay
) -> YardstickTree:
    shape = TreeShape.from_rank_paths(paths)
    replayed = replay(shape)
    return YardstickTree(
        rank_paths=[list(path) for path in shape.rank_paths[1:]],
        promised_goodput=goodput,
        tokens_per_step=replayed.tokens_per_step,
        goodput=replayed.tokens_per_second,
        family=family,
        promised_tokens_per_step=tokens_per_step,
    )
