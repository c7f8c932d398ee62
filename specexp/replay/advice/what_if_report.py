"""The best trees of several devices, as tables, pictures and files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, cycle, islice
from string import ascii_uppercase
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from specexp.bench.drawings import draw_edges, draw_nodes, lay_out
from specexp.bench.pictures import BLUE, GREEN, INK, ORANGE, SAND, VIOLET, bare_figure, new_figure, plain
from specexp.bench.publish import Report
from specexp.bench.table import Column, Table, columns
from specexp.core.latency import LatencyProfile
from specexp.core.messages import counted
from specexp.core.tree import RankPath, TreeShape
from specexp.replay.play.ranks import RankTable, StaticCounts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from specexp.bench.statistics import Speedup
    from specexp.replay.format.recording import Recording


COLOURS = (BLUE, SAND, GREEN, VIOLET, ORANGE, INK)
_ACROSS = 3
"""Trees side by side in a row."""


@dataclass(frozen=True)
class NamedTree:
    """A candidate, named after the first family that it belongs to."""

    name: str
    shape: TreeShape


@dataclass(frozen=True)
class Device:
    """A latency profile of the composition, the candidate with the highest goodput, and its counts.

    Attributes:
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
        goodput: ``[trees, devices]`` tokens per second.
        hit_rates: Share of all positions, by rank path.
    """

    devices: tuple[Device, ...]
    trees: tuple[NamedTree, ...]
    goodput: NDArray[np.float64]
    hit_rates: Mapping[RankPath, float]

    def shares(self, tree: NamedTree) -> list[float]:
        """Return the goodput of a candidate on every device, as a share of the best one's there."""
        row = next(number for number, one in enumerate(self.trees) if one is tree)
        found: list[float] = (self.goodput[row] / self.goodput.max(axis=0)).tolist()
        return found

    def budgets(self) -> dict[int, NDArray[np.float64]]:
        """Return ``[devices]`` tokens per second of the best candidate of each number of nodes."""
        sizes = np.array([tree.shape.num_nodes for tree in self.trees])
        return {int(size): self.goodput[sizes == size].max(axis=0) for size in np.unique(sizes)}

    def plain_shares(self) -> list[float]:
        """Return the goodput of plain decoding on every device, as a share of the best candidate's there."""
        best = self.goodput.max(axis=0).tolist()
        return [device.plain_goodput / most for device, most in zip(self.devices, best, strict=True)]


@dataclass(frozen=True)
class Answer:
    """The best trees of several devices, and their speedups over plain decoding, device by device."""

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
        profiles: Costs on each device, with ``draft_ms``.
        composition: Label of the composition with the charged overheads (:attr:`specexp.core.parts.Parts.label`).
        max_nodes: Maximal number of nodes of a tree.
        max_depth: Depth of the deepest node.
        others: More candidates, by name.
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
    """Return each tree once, under its first name."""
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


def report(found: Answer, title: str) -> Report:
    """Return the printed, written and tracked results."""
    devices = found.comparison.devices
    tables = {"what_if": best_table(found), "cross": cross_table(found)}
    trees = {
        device.profile.name: [list(path) for path in device.best.shape.rank_paths[1:]] for device in devices
    }
    panels, answers = [], []
    summary: dict[str, float] = {}
    for letter, device, speedup in zip(letters(len(devices)), devices, found.speedups, strict=True):
        name, shape, counts = device.profile.name, device.best.shape, device.counts
        nodes = counted(shape.num_nodes, "node")
        summary |= {
            f"{name}/nodes": shape.num_nodes,
            f"{name}/tokens_per_second": counts.tokens_per_second,
            f"{name}/speedup": speedup.ratio,
        }
        answers.append(f"{name}: {nodes} give {speedup} of plain decoding")
        facts = f"{nodes}, depth {shape.max_depth}\n{counts.tokens_per_step:.2f} tokens/step, "
        panels.append((shape, f"{letter}: {name}\n{facts}{speedup.ratio:.2f}x plain decoding"))
    return Report(
        tables,
        figures={
            "trees": draw_trees(panels, found.comparison.hit_rates, "The best tree for each device"),
            "budgets": draw_budgets(found.comparison),
        },
        files={"trees.json": json.dumps(trees, indent=1) + "\n"},
        data=tables,
        summary=summary,
        title=title,
        answer="; ".join(answers),
        page="what_if",
    )


def letters(many: int) -> list[str]:
    """Return short names of devices: A, B, ... Z, A1, B1, ..."""
    endless = (letter + (str(turn) if turn else "") for turn in count() for letter in ascii_uppercase)
    return list(islice(endless, many))


def best_table(found: Answer) -> Table:
    """Return the best tree of every device."""
    heads = "device | target pass of 1 token:.2 ms | of root and tree:.2 ms | draft pass:.2 ms | best tree | nodes"
    heads += " | depth | tokens/step | tokens/s:.1 | plain tokens/s:.1 | speedup (modelled):interval"
    table = Table("The best tree for each device", columns(heads))
    devices = found.comparison.devices
    for letter, device, speedup in zip(letters(len(devices)), devices, found.speedups, strict=True):
        profile, shape = device.profile, device.best.shape
        rows = shape.num_nodes + 1
        milliseconds = (profile.target_seconds(1), profile.target_seconds(rows), profile.draft_seconds(1))
        table.rows.append(
            [
                f"{letter}: {profile.name} ({profile.source})",
                *(1e3 * seconds for seconds in milliseconds),
                *(device.best.name, shape.num_nodes, shape.max_depth, device.counts.tokens_per_step),
                *(device.counts.tokens_per_second, device.plain_goodput, speedup),
            ]
        )
    table.notes += _notes(found)
    return table


def cross_table(found: Answer) -> Table:
    """Return the goodput of each device's best tree on all devices."""
    comparison, devices = found.comparison, found.comparison.devices
    names = letters(len(devices))
    table = Table(
        "Each best tree on every device: share of the goodput of that device's best",
        [Column("tree"), Column("nodes"), *(Column(f"on {letter}", 1, "%") for letter in names)],
    )
    for letter, device in zip(names, devices, strict=True):
        name = f"best for {letter} ({device.best.name})"
        table.rows.append([name, device.best.shape.num_nodes, *comparison.shares(device.best)])
    for tree in comparison.trees:
        if tree.name.startswith("configured") and all(tree is not device.best for device in devices):
            table.rows.append([tree.name, tree.shape.num_nodes, *comparison.shares(tree)])
    table.rows.append(["plain decoding", 0, *comparison.plain_shares()])
    elsewhere = [
        (share, name, names[place])
        for name, device in zip(names, devices, strict=True)
        for place, share in enumerate(comparison.shares(device.best))
        if names[place] != name
    ]
    if elsewhere:
        share, name, other = min(elsewhere)
        table.notes.append(
            f"One tree does not fit all: the best for {name} keeps {100 * share:.1f} % of {other}'s best goodput."
            if share < 0.995
            else "One tree fits all of these devices: each best one keeps more than 99.5 % everywhere."
        )
    return table


def _notes(found: Answer) -> list[str]:
    made_of = found.recording.manifest.made_of["pair"]
    comparison = found.comparison
    notes = [
        f"All counts come from one recording ({found.recording.folder}: target {made_of['target']}, "
        f"{counted(found.speedups[0].n, 'prompt')}); only the costs are the device's. Another pair of models would "
        "accept other tokens.",
        f"Best of {counted(len(comparison.trees), 'candidate')} (chains, most-hit trees of every size and depth), "
        "chosen and replayed on the same prompts; intervals are over prompts.",
    ]
    assumed = [device.profile.name for device in comparison.devices if device.profile.source != "measured"]
    if assumed:
        notes.append(f"Costs that were not measured: {'; '.join(assumed)}.")
    for device in comparison.devices:
        rows = device.best.shape.num_nodes + 1
        if device.profile.exceeded_by(rows):
            notes.append(
                f"{device.profile.name} has milliseconds of up to "
                f"{counted(device.profile.max_target_tokens, 'token')} and the tree feeds {rows}: its last slope is "
                "extrapolated."
            )
        if device.counts.tokens_per_second < device.plain_goodput:
            notes.append(f"No tree pays on {device.profile.name}: plain decoding is faster.")
    return notes


def draw_trees(
    panels: Sequence[tuple[TreeShape, str]], hit_rates: Mapping[RankPath, float], title: str
) -> Figure:
    """Draw trees with their headings at one scale; nodes are coloured by their hit rates, 0 to 1."""
    places = [lay_out(shape) for shape, _ in panels]
    width = max(float(x.max()) for x in places) + 1.8  # in node widths
    unit = float(np.clip(6.4 / width, 0.17, 0.46))  # inches of a node width
    row_height = max(0.8, 1.7 * unit)
    deepest = max(shape.max_depth for shape, _ in panels)
    across, down = min(_ACROSS, len(panels)), -(-len(panels) // _ACROSS)
    inches, tall = max(width * unit, 3.5), 0.5 + 0.6 * unit + row_height * deepest
    figure, grid = new_figure(across * inches + 0.4, down * (tall + 0.9) + 0.8, title, down, across, dpi=150)
    cells = [axes for row in grid for axes in row]
    for axes, (shape, heading), x in zip(cells, panels, places, strict=False):
        middle = float(x.max()) / 2
        axes.set_xlim(middle - inches / unit / 2, middle + inches / unit / 2)
        axes.set_ylim((0.25 - tall) / unit, 0.25 / unit)
        y = (-row_height / unit * shape.depths).astype(np.float64)
        draw_edges(axes, shape, x, y, hit_rates)
        draw_nodes(axes, shape, x, y, hit_rates, unit)
        axes.set_title(heading, fontsize=8.5, color=INK)
    for axes in cells:
        axes.axis("off")
    legend = (
        "number: rank of the candidate; percentage: share of the output's positions where the path is right"
    )
    figure.supxlabel(legend, fontsize=8, color=INK)
    for axes in cells[len(panels) :]:
        axes.remove()
    return figure


def draw_budgets(found: Comparison) -> Figure:
    """Draw the goodput of the best tree of every size on every device, as a share of the device's best tree."""
    figure = bare_figure(8.4, 4.6, dpi=150, layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08))
    axes = figure.subplots()
    budgets = found.budgets()
    for place, (device, colour) in enumerate(zip(found.devices, cycle(COLOURS), strict=False)):
        best, nodes = device.counts.tokens_per_second, device.best.shape.num_nodes
        axes.plot(
            list(budgets),
            [100 * float(worth[place]) / best for worth in budgets.values()],
            color=colour,
            lw=1.8,
            marker="o" if len(budgets) < 8 else None,
            ms=3.2,
            label=f"{device.profile.name} ({device.profile.source}): best tree {counted(nodes, 'node')}",
        )
        axes.plot(nodes, 100, marker="*", ms=13, lw=0, color=colour, mec="white", mew=0.8, zorder=4)
        axes.axhline(100 * device.plain_goodput / best, color=colour, lw=0.9, ls=":", zorder=1)
    axes.set_ylim(top=106)
    axes.set_xlim(0, 1.03 * max(axes.dataLim.x1, 4))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("nodes of the tree (budget)", fontsize=9, color=INK)
    axes.set_ylabel("% of the device's best tree, replayed", fontsize=9, color=INK)
    title = "Goodput against budget on every device"
    axes.set_title(title, fontsize=12, color=INK, loc="left", weight="bold")
    axes.grid(axis="y", lw=0.4, alpha=0.5)
    plain(axes)
    figure.legend(
        loc="outside lower left", fontsize=8, frameon=False, title="star: best tree; dotted: plain decoding there",
        title_fontsize=8, alignment="left",
    )  # fmt: skip
    return figure
