"""One recording, many devices: which static tree is best on each, and what it is worth on the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from specexp.core.latency import LatencyProfile
from specexp.core.tree import RankPath, TreeShape
from specexp.replay.play.ranks import RankTable, StaticCounts

if TYPE_CHECKING:
    from specexp.bench.statistics import Speedup
    from specexp.replay.format.recording import Recording


@dataclass(frozen=True)
class NamedTree:
    """A candidate, with the name of the first family that it belongs to, and its size."""

    name: str
    shape: TreeShape


@dataclass(frozen=True)
class Device:
    """A latency profile with its best tree.

    Attributes:
        profile: Costs of the composition.
        best: The candidate with the highest goodput.
        counts: Counts of the best.
        plain_seconds: ``[turns]`` seconds of plain decoding.
    """

    profile: LatencyProfile
    best: NamedTree
    counts: StaticCounts
    plain_seconds: NDArray[np.float64]

    @property
    def plain_goodput(self) -> float:
        """Tokens per second of plain decoding."""
        return float(self.counts.tokens.sum() / self.plain_seconds.sum())


@dataclass(frozen=True)
class Comparison:
    """The same candidates on every device.

    Attributes:
        devices: Devices in the order given.
        trees: Candidates.
        goodput: ``[trees, devices]`` tokens per second.
        hit_rates: Share of all positions, by rank path.
    """

    devices: tuple[Device, ...]
    trees: tuple[NamedTree, ...]
    goodput: NDArray[np.float64]
    hit_rates: Mapping[RankPath, float]

    def shares(self, tree: NamedTree) -> list[float]:
        """Goodput of a candidate on every device, as a share of the best one's there."""
        row = next(number for number, one in enumerate(self.trees) if one is tree)
        found: list[float] = (self.goodput[row] / self.goodput.max(axis=0)).tolist()
        return found

    def budgets(self) -> dict[int, NDArray[np.float64]]:
        """By number of nodes ``[devices]`` tokens per second of the best candidate of this size."""
        sizes = np.array([tree.shape.num_nodes for tree in self.trees])
        return {int(size): self.goodput[sizes == size].max(axis=0) for size in np.unique(sizes)}

    def plain_shares(self) -> list[float]:
        """Goodput of plain decoding on every device, as a share of the best candidate's there."""
        best = self.goodput.max(axis=0).tolist()
        return [device.plain_goodput / most for device, most in zip(self.devices, best, strict=True)]


@dataclass(frozen=True)
class Answer:
    """The best trees of several devices.

    Attributes:
        comparison: The goodput of each tree on each device.
        speedups: Speedups of the best trees over plain decoding, device by device.
        recording: The recording that was replayed.
    """

    comparison: Comparison
    speedups: tuple[Speedup, ...]
    recording: Recording


def compare(
    table: RankTable,
    profiles: Sequence[LatencyProfile],
    *,
    composition: str,
    max_nodes: int,
    max_depth: int,
    others: Mapping[str, TreeShape] | None = None,
) -> Comparison:
    """Replay chains of every length, the most-hit trees of every size and depth, and others on every device.

    Args:
        table: Ranks of a recording with a draft model.
        profiles: Costs on each device.
        composition: Label of the composition with the charged overheads (:attr:`specexp.core.parts.Parts.label`).
        max_nodes: Most nodes of a tree.
        max_depth: Deepest node.
        others: More candidates, by name.

    Raises:
        ValueError: A profile states no ``draft_ms``.
    """
    hits = table.hits(max_depth)
    trees = _candidates(hits, max_nodes, max_depth, others or {})
    priced = [profile.of(composition) for profile in profiles]
    goodput = np.array(
        [[table.evaluate(tree.shape, profile).tokens_per_second for profile in priced] for tree in trees]
    )
    devices = []
    for profile, given, worth in zip(priced, profiles, goodput.T, strict=True):
        best = trees[int(worth.argmax())]
        devices.append(Device(profile, best, table.evaluate(best.shape, profile), table.plain_seconds(given)))
    rates = {path: count / table.positions for path, count in hits.items()}
    return Comparison(tuple(devices), tuple(trees), goodput, rates)


def _candidates(
    hits: Mapping[RankPath, int], max_nodes: int, max_depth: int, others: Mapping[str, TreeShape]
) -> list[NamedTree]:
    """Each tree once, under the first name it has."""
    found: dict[tuple[RankPath, ...], NamedTree] = {}

    def add(name: str, paths: Iterable[RankPath]) -> None:
        shape = TreeShape.from_rank_paths(paths)
        found.setdefault(shape.rank_paths, NamedTree(name, shape))

    for name, shape in others.items():
        add(name, shape.rank_paths[1:])
    for length in range(1, min(max_nodes, max_depth) + 1):
        add(f"chain of {length}", [(0,) * depth for depth in range(1, length + 1)])
    ordered = sorted(hits, key=lambda path: (-hits[path], len(path), path))
    for depth in range(1, max_depth + 1):
        paths = [path for path in ordered if len(path) <= depth][:max_nodes]
        for nodes in range(1, len(paths) + 1):
            add(f"most hit, {nodes}", paths[:nodes])
    return list(found.values())
