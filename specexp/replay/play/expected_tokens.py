"""What static trees are expected to take at an average position of the output, whether a run comes by it or not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from specexp.builders.acceptance_tree import best_trees
from specexp.builders.tree_search import most_accepted_paths
from specexp.core.latency import LatencyProfile
from specexp.core.tree import RankPath


class RankPathHits:
    """How often each rank path is a piece of the output, at all its positions.

    A path is hit at least as often as what continues it, so the most-hit paths always form a tree.

    Args:
        paths: The longest rank path along the output at every position; ``()`` where no candidate is its token, None
            where nothing is drafted.
        prefix: Mean number of tokens in the cache at a position.

    Attributes:
        hits: Positions below which a path holds the output's next tokens, by path.
        positions: Number of all positions.
        acceptance: Share of the positions drafted at where the first, second, ... candidate is the output's token, then
            the share where none is.
    """

    def __init__(self, paths: Sequence[RankPath | None], prefix: float) -> None:
        self.positions = len(paths)
        self.prefix = prefix
        drafted = [path for path in paths if path is not None]
        self.hits = Counter(path[:length] for path in drafted for length in range(1, len(path) + 1))
        width = 1 + max((path[0] for path in drafted if path), default=0)
        shares = [self.hits[(rank,)] / max(len(drafted), 1) for rank in range(width)]
        self.acceptance = (*shares, max(0.0, 1.0 - sum(shares)))

    def tokens_per_step(self, paths: Iterable[Sequence[int]]) -> float:
        """Expected tokens of a step with this tree, the bonus token included."""
        return 1.0 + sum(self.hits[tuple(path)] for path in paths) / self.positions


class ExpectedTree(NamedTuple):
    """A tree with its expectation at an average position.

    Attributes:
        paths: Rank paths, parents first.
        tokens_per_step: Expected tokens of a step.
        goodput: Expected tokens per second.
    """

    paths: list[RankPath]
    tokens_per_step: float
    goodput: float


def most_hit_by_size(
    found: RankPathHits, latency: LatencyProfile, max_nodes: int, max_depth: int, drafts: bool
) -> list[ExpectedTree]:
    """Of every size the most-hit tree whose depth limit has the highest expected goodput.

    Args:
        found: Hits at all positions.
        latency: Costs of the composition.
        max_nodes: Most nodes of a tree.
        max_depth: Deepest node.
        drafts: Whether every depth of a tree costs a pass of a draft model.
    """
    ordered = [tuple(path) for path in most_accepted_paths(found.hits, len(found.hits), max_depth)]
    best: list[ExpectedTree] = []  # with all paths of the depth limit
    for depth in range(1, max(map(len, ordered)) + 1):
        paths = list(islice((path for path in ordered if len(path) <= depth), max_nodes))
        tree = _GrowingTree(found, latency, drafts)
        for size, path in enumerate(paths):
            tree.add(path)
            tokens = 1.0 + tree.hits / found.positions
            expected = ExpectedTree(paths, tokens, tokens / tree.seconds(tokens))
            if size == len(best):
                best.append(expected)
            elif expected.goodput > best[size].goodput:
                best[size] = expected
    return [tree._replace(paths=tree.paths[: size + 1]) for size, tree in enumerate(best)]


def sequoia_tree(
    found: RankPathHits, latency: LatencyProfile, max_nodes: int, max_depth: int, drafts: bool
) -> ExpectedTree:
    """The tree of Sequoia's programme whose nodes and depth have the highest expected goodput.

    Its expectation is the programme's own, for acceptances at different depths that are independent of one another;
    arguments as of :func:`most_hit_by_size`.
    """
    trees = best_trees(found.acceptance[:-1], max_nodes)
    prefix = round(found.prefix)
    pass_seconds = np.array([latency.target_seconds(rows + 1, prefix) for rows in range(max_nodes + 1)])
    passes = (latency.draft_seconds(rows + 1, prefix) for rows in range(max_nodes))
    cheapest = min(passes) if drafts else 0.0

    def bounds() -> Iterator[tuple[float, int, int, float]]:
        """At most so much goodput, of so many nodes and this depth, with its tokens per step."""
        for depth in range(1, trees.useful_depth(max_depth) + 1):
            values = trees.values(depth)
            least = pass_seconds + depth * cheapest
            for nodes in range(1, max_nodes + 1):
                if values[nodes] > values[nodes - 1]:  # else the best tree has fewer nodes
                    yield float(values[nodes] / least[nodes]), nodes, depth, float(values[nodes])

    best = ExpectedTree([], 0.0, 0.0)
    for most, nodes, depth, tokens in sorted(bounds(), key=lambda one: (-one[0], one[1], one[2])):
        if most <= best.goodput:
            break
        tree = _GrowingTree(found, latency, drafts)
        paths = sorted(trees.paths(nodes, depth), key=len)
        for path in paths:
            tree.add(path)
        goodput = tokens / tree.seconds(tokens)
        if goodput > best.goodput:
            best = ExpectedTree(paths, tokens, goodput)
    return best


class _GrowingTree:
    """What a step with a tree costs at an average position, while nodes are added, parents first."""

    def __init__(self, found: RankPathHits, latency: LatencyProfile, drafts: bool) -> None:
        self.hits = 0
        self._found = found
        self._latency = latency
        self._drafts = drafts
        self._prefix = round(found.prefix)
        self._nodes = 0
        self._parents: set[RankPath] = set()
        self._fed: list[int] = []  # rows with children, by depth
        self._leaf_hits = 0
        self._pass_seconds: dict[int, float] = {}

    def add(self, path: RankPath) -> None:
        """Add the node at the end of a path."""
        hits, parent = self._found.hits[path], path[:-1]
        self.hits += hits
        self._nodes += 1
        self._leaf_hits += hits
        if parent not in self._parents:
            self._parents.add(parent)
            if parent:
                self._leaf_hits -= self._found.hits[parent]
            if len(path) > len(self._fed):
                self._fed.append(0)
            self._fed[len(path) - 1] += 1

    def seconds(self, tokens: float) -> float:
        """Seconds of a step that gives so many tokens."""
        latency = self._latency
        spent = latency.target_seconds(self._nodes + 1, self._prefix)
        spent += latency.beside_seconds(self._nodes + 1, len(self._fed) * self._drafts, 0)
        spent += latency.token_ms * tokens / 1e3
        if not self._drafts:
            return spent
        # an accepted leaf was never fed to the draft: its next pass feeds it with the new root
        leaf = min(1.0, self._leaf_hits / self._found.positions)
        spent += (1.0 - leaf) * self._pass(1) + leaf * self._pass(2)
        return spent + sum(self._pass(rows) for rows in self._fed[1:])

    def _pass(self, rows: int) -> float:
        if rows not in self._pass_seconds:
            self._pass_seconds[rows] = self._latency.draft_seconds(rows, self._prefix)
        return self._pass_seconds[rows]
