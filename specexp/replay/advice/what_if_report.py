"""The report on the best tree for each device: tables, pictures and files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from string import ascii_uppercase

import numpy as np
from numpy.typing import NDArray

from specexp.base.messages import counted
from specexp.bench.statistics import Speedup, mean_by_prompt
from specexp.core.latency import LatencyProfile, experts_sentence
from specexp.core.tree import RankPath, TreeShape
from specexp.replay.format.recording import Recording
from specexp.replay.play.ranks import RankTable, StaticCounts
from specexp.report.pictures import draw_trees
from specexp.report.publish import Report
from specexp.report.table import Cell, Column, Table, columns


@dataclass(frozen=True)
class NamedTree:
    """A candidate tree, named after the first family of trees that contains it."""

    name: str
    shape: TreeShape


@dataclass(frozen=True)
class Device:
    """A device, with its latency profile, the tree that has the highest goodput on it, and that tree's counts."""

    letter: str  # short name: A, B, ... Z, A1, B1, ...
    profile: LatencyProfile
    best: NamedTree
    counts: StaticCounts
    plain_goodput: float  # tokens per second of plain decoding
    speedup: Speedup  # speedup of the best tree over plain decoding

    @property
    def nodes(self) -> int:
        """Number of nodes of the best tree."""
        return self.best.shape.num_nodes


@dataclass(frozen=True)
class Comparison:
    """The goodput of the same candidate trees on all devices."""

    devices: tuple[Device, ...]
    trees: tuple[NamedTree, ...]
    goodput: NDArray[np.float64]  # [trees, devices] tokens per second
    hit_rates: Mapping[RankPath, float]  # share of positions at which each rank path matches the output

    def shares(self, tree: NamedTree) -> list[float]:
        """Return a tree's goodput on each device, relative to that of the device's best tree."""
        row = next(number for number, one in enumerate(self.trees) if one is tree)
        found: list[float] = (self.goodput[row] / self.goodput.max(axis=0)).tolist()
        return found


def compare(
    table: RankTable,
    profiles: Sequence[LatencyProfile],
    *,
    composition: str,
    max_nodes: int,
    max_depth: int,
    others: Mapping[str, TreeShape] | None = None,
) -> Comparison:
    """Replay chains of every length, the most-hit trees of every size and depth, and ``others`` on every device.

    ``composition`` (:attr:`specexp.core.parts.Parts.label`) selects the overheads of each profile.
    """
    hits = table.hits(max_depth)
    trees = _candidates(hits, max_nodes, max_depth, others or {})
    priced = [profile.of(composition) for profile in profiles]
    goodput = np.array(
        [[table.evaluate(tree.shape, profile).tokens_per_second for profile in priced] for tree in trees]
    )
    letters = (letter + (str(turn) if turn else "") for turn in count() for letter in ascii_uppercase)
    devices = []
    for letter, profile, given, worth in zip(letters, priced, profiles, goodput.T, strict=False):
        best = trees[int(worth.argmax())]
        counts = table.evaluate(best.shape, profile)
        plain_seconds = table.plain_seconds(given)
        logs = np.log(plain_seconds / counts.seconds).tolist()
        by_prompt = mean_by_prompt(zip((turn.prompt_id for turn in table.turns), logs, strict=True))
        speedup = Speedup.of(best.name, "plain decoding", by_prompt, profile.label)
        plain_goodput = float(counts.tokens.sum() / plain_seconds.sum())
        devices.append(Device(letter, profile, best, counts, plain_goodput, speedup))
    rates = {path: count / table.positions for path, count in hits.items()}
    return Comparison(tuple(devices), tuple(trees), goodput, rates)


def _candidates(
    hits: Mapping[RankPath, int], max_nodes: int, max_depth: int, others: Mapping[str, TreeShape]
) -> list[NamedTree]:
    """Return the candidate trees without duplicates. A tree keeps the first name it is given."""
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


def report(found: Comparison, recording: Recording, title: str) -> Report:
    """Return the report to print, write and track."""
    tables = {"what_if": best_table(found, recording), "cross": cross_table(found)}
    trees, panels, answers = {}, [], []
    summary: dict[str, float] = {}
    for device in found.devices:
        name, shape, counts = device.profile.name, device.best.shape, device.counts
        trees[name] = [list(path) for path in shape.rank_paths[1:]]
        nodes, speedup = counted(device.nodes, "node"), device.speedup
        figures = {
            "nodes": device.nodes,
            "tokens_per_second": counts.tokens_per_second,
            "speedup": speedup.ratio,
        }
        summary |= {f"{name}/{key}": value for key, value in figures.items()}
        answers.append(f"{name}: the best tree has {nodes} and decodes {speedup} as fast as plain decoding")
        facts = f"{nodes}, depth {shape.max_depth}\n{counts.tokens_per_step:.2f} tokens/step, "
        panels.append(
            (
                shape,
                f"{device.letter}: {name} ({device.profile.source})\n{facts}{speedup.ratio:.2f}x plain decoding",
            )
        )
    experts = experts_sentence(recording.manifest.fingerprint.get("model", {}))
    meaning = "share of output positions at which the path is right"
    return Report(
        tables,
        figures={"trees": draw_trees(panels, "The best tree for each device", found.hit_rates, meaning)},
        files={"trees.json": json.dumps(trees, indent=1) + "\n"},
        data=tables,
        sentences=[f"{experts}."] if experts else [],
        summary=summary,
        title=title,
        answer="; ".join(answers),
        page="what_if",
    )


def best_table(found: Comparison, recording: Recording) -> Table:
    """Return a table of the best tree for each device."""
    heads = "device | target pass of 1 token:.2 ms | of root and tree:.2 ms | draft pass:.2 ms | best tree | nodes"
    heads += " | depth | tokens/step | tokens/s:.1 | plain tokens/s:.1 | speedup (modelled):interval"
    table = Table("The best tree for each device", columns(heads))
    table.notes = [
        f"All counts come from one recording ({recording.folder}: target "
        f"{recording.manifest.made_of['pair']['target']}, {counted(found.devices[0].speedup.n, 'prompt')}); only the "
        "costs are the device's. Another pair of models would accept other tokens.",
        f"Each tree is the best of {counted(len(found.trees), 'candidate')} (chains, most-hit trees of every size and "
        "depth), chosen and replayed on the same prompts. Intervals are over prompts.",
    ]
    assumed = [device.profile.name for device in found.devices if device.profile.source != "measured"]
    if assumed:
        table.notes.append(f"Profiles that were not measured: {'; '.join(assumed)}.")
    for device in found.devices:
        profile, counts, rows = device.profile, device.counts, device.nodes + 1
        seconds = (profile.target_seconds(1), profile.target_seconds(rows), profile.draft_seconds(1))
        costs: list[Cell] = [
            f"{device.letter}: {profile.name} ({profile.source})",
            *(1e3 * one for one in seconds),
        ]
        tree: list[Cell] = [
            device.best.name,
            device.nodes,
            device.best.shape.max_depth,
            counts.tokens_per_step,
        ]
        table.rows.append([*costs, *tree, counts.tokens_per_second, device.plain_goodput, device.speedup])
        if profile.exceeded_by(rows):
            table.notes.append(
                f"{profile.name} has pass times for up to {counted(profile.max_target_tokens, 'token')}, but the tree "
                f"feeds {rows}: the time is extrapolated with the last slope."
            )
        if counts.tokens_per_second < device.plain_goodput:
            table.notes.append(f"No tree pays on {profile.name}: plain decoding is faster.")
    return table


def cross_table(found: Comparison) -> Table:
    """Return a table of the goodput that each device's best tree reaches on all devices."""
    devices, highest = found.devices, found.goodput.max(axis=0).tolist()
    heads = [Column("tree"), Column("nodes"), *(Column(f"on {one.letter}", 1, "%") for one in devices)]
    table = Table("Goodput of each best tree on every device, relative to the device's own best tree", heads)
    elsewhere = []
    for device in devices:
        name = f"best for {device.letter} ({device.best.name})"
        shares = found.shares(device.best)
        table.rows.append([name, device.nodes, *shares])
        others = zip(shares, devices, strict=True)
        elsewhere += [(share, device.letter, one.letter) for share, one in others if one is not device]
    for tree in found.trees:
        if tree.name.startswith("configured") and all(tree is not device.best for device in devices):
            table.rows.append([tree.name, tree.shape.num_nodes, *found.shares(tree)])
    plain_shares = (one.plain_goodput / best for one, best in zip(devices, highest, strict=True))
    table.rows.append(["plain decoding", 0, *plain_shares])
    if elsewhere:
        share, name, other = min(elsewhere)
        table.notes.append(
            f"One tree does not fit all: the best for {name} reaches {100 * share:.1f} % of {other}'s best goodput."
            if share < 0.995
            else "One tree fits all of these devices: each device's best tree reaches at least 99.5 % of every other "
            "device's best goodput."
        )
    return table
