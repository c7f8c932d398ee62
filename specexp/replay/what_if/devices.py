"""One recording, many devices: which static tree is best on each, and what it is worth on the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specexp.core.latency import LatencyProfile
from specexp.core.tree import RankPath, TreeShape
from specexp.replay.play.expected_tokens import RankPathHits
from specexp.replay.play.ranks import RankTable, StaticCounts
from specexp.replay.play.yardstick import Yardstick, yardstick


@dataclass(frozen=True)
class NamedTree:
    """A candidate.

    Attributes:
        name: The first family that it belongs to, and its size.
        shape: The tree.
    """

    name: str
    shape: TreeShape


@dataclass(frozen=True)
class Device:
    """A latency profile with its best tree.

    Attributes:
        profile: Costs of the composition.
        best: Of all candidates the one with the highest goodput.
        counts: What the best takes.
        plain_seconds: ``[turns]`` seconds of plain decoding.
        yardstick: Best trees known without a search, by this profile.
    """

    profile: LatencyProfile
    best: NamedTree
    counts: StaticCounts
    plain_seconds: NDArray[np.float64]
    yardstick: Yardstick

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

    def plain_shares(self) -> list[float]:
        """Goodput of plain decoding on every device, as a share of the best candidate's there."""
        best = self.goodput.max(axis=0).tolist()
        return [device.plain_goodput / most for device, most in zip(self.devices, best, strict=True)]


def compare(
    table: RankTable,
    profiles: Sequence[LatencyProfile],
    *,
    composition: str,
    max_nodes: int,
    max_depth: int,
    others: Mapping[str, TreeShape] | None = None,
) -> Comparison:
    """Replay every device's yardstick trees, chains of every length and others on every device.

    Args:
        table: Ranks of a recording with a draft model.
        profiles: Costs on each device.
        composition: Whose overheads are charged (:attr:`specexp.core.parts.Parts.label`).
        max_nodes: Most nodes of a tree.
        max_depth: Deepest node.
        others: More candidates, by name.

    Raises:
        ValueError: A profile states no ``draft_ms``; no candidate of the draft is ever the output's token.
    """
    limits = {"max_nodes": max_nodes, "max_depth": max_depth}
    yardsticks = [yardstick(table, profile, composition=composition, **limits) for profile in profiles]
    trees = _candidates(yardsticks, min(max_nodes, max_depth), others or {})
    priced = [profile.of(composition) for profile in profiles]
    goodput = np.array(
        [[table.evaluate(tree.shape, profile).tokens_per_second for profile in priced] for tree in trees]
    )
    devices = []
    for number, (profile, given, measured) in enumerate(zip(priced, profiles, yardsticks, strict=True)):
        best = trees[int(goodput[:, number].argmax())]
        plain = table.plain_seconds(given)
        devices.append(Device(profile, best, table.evaluate(best.shape, profile), plain, measured))
    deepest = max(tree.shape.max_depth for tree in trees)
    found = RankPathHits(table.paths(deepest), float(table.prefixes.mean()))
    rates = {path: hits / found.positions for path, hits in found.hits.items()}
    return Comparison(tuple(devices), tuple(trees), goodput, rates)


def _candidates(
    yardsticks: Sequence[Yardstick], longest: int, others: Mapping[str, TreeShape]
) -> list[NamedTree]:
    """Each tree once, under the first name it has."""
    found: dict[tuple[RankPath, ...], NamedTree] = {}

    def add(name: str, shape: TreeShape) -> None:
        found.setdefault(shape.rank_paths, NamedTree(name, shape))

    for name, shape in others.items():
        add(name, shape)
    for length in range(1, longest + 1):
        add(f"chain of {length}", TreeShape.from_rank_paths([[0] * depth for depth in range(1, length + 1)]))
    for measured in yardsticks:
        for tree in (measured.most_hit, measured.sequoia):
            add(f"{tree.family}, {tree.nodes}", TreeShape.from_rank_paths(tree.rank_paths))
        for point in measured.curve:
            add(f"most hit, {point.nodes}", TreeShape.from_rank_paths(point.rank_paths))
    return list(found.values())
