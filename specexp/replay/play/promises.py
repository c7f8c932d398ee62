"""What static trees promise at an average position: the expectations that a yardstick's trees are chosen by."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np

from specexp.builders.acceptance_tree import best_trees
from specexp.builders.tree_search import most_hit_paths
from specexp.core.latency import LatencyProfile
from specexp.core.tree import RankPath
from specexp.replay.play.rank_paths import RankPathHits

Promise = tuple[list[RankPath], float, float]
"""Rank paths, tokens per step and goodput."""


def most_hit_by_size(
    found: RankPathHits, latency: LatencyProfile, max_nodes: int, max_depth: int, drafts: bool
) -> list[Promise]:
    """Of every size the most-hit tree whose depth limit promises most."""
    ordered = [tuple(path) for path in most_hit_paths(found.hits, len(found.hits), max_depth)]
    best: list[
        tuple[float, float, list[RankPath]]
    ] = []  # goodput, tokens per step, and the paths of the depth limit
    for depth in range(1, max(map(len, ordered)) + 1):
        paths = list(islice((path for path in ordered if len(path) <= depth), max_nodes))
        tree = _GrowingTree(found, latency, drafts)
        for size, path in enumerate(paths):
            tree.add(path)
            tokens = 1.0 + tree.hits / found.positions
            goodput = tokens / tree.seconds(tokens)
            if size == len(best):
                best.append((goodput, tokens, paths))
            elif goodput > best[size][0]:
                best[size] = (goodput, tokens, paths)
    return [(paths[: size + 1], tokens, goodput) for size, (goodput, tokens, paths) in enumerate(best)]


def sequoia_tree(
    found: RankPathHits, latency: LatencyProfile, max_nodes: int, max_depth: int, drafts: bool
) -> Promise:
    """The programme's tree whose nodes and depth promise most."""
    trees = best_trees(found.acceptance[:-1], max_nodes)
    prefix = round(found.prefix)
    pass_seconds = np.array([latency.target_seconds(rows + 1, prefix) for rows in range(max_nodes + 1)])
    passes = (latency.draft_seconds(rows + 1, prefix) for rows in range(max_nodes))
    cheapest = min(passes) if drafts else 0.0

    def promises() -> Iterator[tuple[float, int, int, float]]:
        """Nodes and depth, with at most how much they promise."""
        for depth in range(1, trees.useful_depth(max_depth) + 1):
            values = trees.values(depth)
            least = pass_seconds + depth * cheapest
            for nodes in range(1, max_nodes + 1):
                if values[nodes] > values[nodes - 1]:  # else the best tree has fewer nodes
                    yield float(values[nodes] / least[nodes]), nodes, depth, float(values[nodes])

    best: Promise = ([], 0.0, 0.0)
    for most, nodes, depth, tokens in sorted(promises(), key=lambda one: (-one[0], one[1], one[2])):
        if most <= best[2]:
            break
        tree = _GrowingTree(found, latency, drafts)
        paths = sorted(trees.paths(nodes, depth), key=len)
        for path in paths:
            tree.add(path)
        goodput = tokens / tree.seconds(tokens)
        if goodput > best[2]:
            best = (paths, tokens, goodput)
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
        """One node more."""
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
        """Of a step that gives so many tokens."""
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
