"""Speedup over the number of sequences that draft at a time, and over how many of them one target pass verifies."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any, ClassVar, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from typing_extensions import override

from experiments.papers.seed.groups import (
    answered,
    both_speedups,
    busy_share,
    end_to_end,
    plain_name,
    tokens_per_second,
)
from specexp.bench.analysis import MultiSequenceAnalysis
from specexp.bench.figures import draw_speedups
from specexp.bench.pictures import BLUE, GREEN, GREY, INK, ORANGE, VIOLET, legend_below, new_figure, rule
from specexp.bench.publish import Report
from specexp.bench.record import PromptRecord
from specexp.bench.statistics import summarise
from specexp.bench.table import Table, columns
from specexp.core.parts import Parts

_SETTING = re.compile(r"[,\s]*\b(n|verify_batch)=(\d+)\b")
_COLOURS = (BLUE, ORANGE, GREEN, VIOLET, "#b5404a", "#4f5d75")
_MARKERS = "os^Dvp"
_CACHES = "#71808d"
_DASHES = ((5, 2), (2, 2), (6, 2, 1, 2), (1, 2))
_ASIDE = 0.05
"""Of n, between two curves."""


class Setting(NamedTuple):
    """What an arm's title says of its execution.

    Attributes:
        group: Title without ``n`` and ``verify_batch``: arms of one group differ in these alone.
        n: Sequences at a time; None where the title does not say.
        verify_batch: Most drafts a target pass verifies; None where the title does not say.
    """

    group: str
    n: int | None
    verify_batch: int | None

    @classmethod
    def of(cls, title: str) -> Setting:
        """Read a title as grids write it.

        Example:
            >>> Setting.of("SEED, n=4, verify_batch=2")
            Setting(group='SEED', n=4, verify_batch=2)
        """
        told = {name: int(value) for name, value in _SETTING.findall(title)}
        return cls(_SETTING.sub("", title).strip(" ,"), told.get("n"), told.get("verify_batch"))

    @property
    def curve(self) -> str:
        """What is the same along ``n``."""
        told = [self.group] if self.group else []
        if self.verify_batch is not None:
            told.append(f"verify_batch={self.verify_batch}")
        return ", ".join(told) or "all arms with n"


class Scaling(MultiSequenceAnalysis):
    """Curves over ``n``, one for each ``verify_batch``, of arms that a grid over ``execution.init_args.n`` (and
    ``verify_batch``) unrolled, or whose titles say ``n=3`` themselves; arms that do not are drawn as lines across.

    Args:
        baseline: Arm that speedups are over.
    """

    name: ClassVar[str] = "scaling"

    def __init__(self, baseline: str = "engine") -> None:
        super().__init__(baseline)
        self._settings: dict[str, Setting] = {}

    @override
    def begin(self, arms: Mapping[str, Parts]) -> None:
        super().begin(arms)
        self._settings = {arm: Setting.of(arm) for arm in arms}

    @override
    def report(self, records: Sequence[PromptRecord]) -> Report:
        decoded = {record.arm for record in records if not record.error}
        shown = {arm: setting for arm, setting in self._settings.items() if arm in decoded}
        curves: dict[str, list[tuple[int, str]]] = {}
        for arm, setting in shown.items():
            if setting.n is not None:
                curves.setdefault(setting.curve, []).append((setting.n, arm))
        across = [arm for arm, setting in shown.items() if setting.n is None and arm != self.baseline]
        figures = {self.name: self._draw(records, curves, across)} if curves else {}
        return Report({self.name: self._table(records)}, figures)

    def _table(self, records: Sequence[PromptRecord]) -> Table:
        table = Table(
            "Sequences at a time",
            columns(
                f"arm | n | verify_batch | end to end vs {self.baseline}:interval | decoding:interval | tokens/s:.0"
                " | tokens/step | target busy:.1% | draft weights:.1 MB | draft caches:.1 MB"
            ),
            notes=[
                "Seconds per token, paired prompt by prompt, geometric mean, 95 % bootstrap interval. Decoding: "
                "without prefills and search; tokens/s are end to end.",
                "MB (10^6 bytes) that the draft models' weights and KV caches take, at most.",
            ],
        )
        for arm, setting in self._settings.items():
            good = answered(records, arm)
            if not good:
                table.rows.append([*setting, *[None] * 7])
                continue
            speedups = both_speedups(records, arm, self.baseline)
            paces = [tokens_per_second(good), summarise(good, arm).tokens_per_step, busy_share(good)]
            table.rows.append([*setting, *speedups, *paces, *_megabytes(good)])
        return table

    def _draw(
        self,
        records: Sequence[PromptRecord],
        curves: Mapping[str, list[tuple[int, str]]],
        across: Sequence[str],
    ) -> Figure:
        title = f"Sequences at a time: speedup over {plain_name(self.baseline)}"
        figure, grid = new_figure(8.5, 8.0, title, 3, 1, sharex=True, height_ratios=[3, 2, 1.4])
        top, middle, bottom = (row[0] for row in grid)
        looks = zip(cycle(_COLOURS), cycle(_MARKERS), strict=False)
        for number, ((label, points), (colour, marker)) in enumerate(
            zip(curves.items(), looks, strict=False)
        ):
            aside = _ASIDE * (number - (len(curves) - 1) / 2)  # intervals at the same n would hide each other
            style: dict[str, Any] = {"color": colour, "marker": marker, "ms": 5, "lw": 1.4}
            ordered = [(n + aside, arm) for n, arm in sorted(points)]
            speedups = [(place, end_to_end(records, arm, self.baseline)) for place, arm in ordered]
            given = [(place, speedup) for place, speedup in speedups if not speedup.refused]
            if given:
                places, known = map(list, zip(*given, strict=True))
                draw_speedups(top, places, known, capsize=2, label=label, **style)
            shares = [(place, busy_share(answered(records, arm))) for place, arm in ordered]
            busy = [(place, 100 * share) for place, share in shares if share is not None]
            if busy:
                middle.plot(*zip(*busy, strict=True), **style)
        for arm, dashes in zip(across, cycle(_DASHES), strict=False):
            speedup = end_to_end(records, arm, self.baseline)
            if not speedup.refused:
                top.axhline(speedup.ratio, color=INK, lw=1.1, ls=(0, dashes), label=arm)
                share = busy_share(answered(records, arm))
                if share is not None:
                    middle.axhline(100 * share, color=INK, lw=1.1, ls=(0, dashes))
        together = [point for points in curves.values() for point in points]
        top.axhline(1, color=INK, lw=0.8, ls=":")
        _draw_memory(bottom, records, together)
        top.set_ylabel("speedup, end to end", fontsize=9)
        middle.set_ylabel("target busy (%)", fontsize=9)
        middle.set_ylim(0, 103)
        bottom.set_xlabel("n: sequences that draft at a time", fontsize=9)
        ticks = sorted({n for n, _ in together})
        bottom.set_xticks(ticks, [str(n) for n in ticks])
        for axes in (top, middle, bottom):
            rule(axes)
        legend_below(figure, 3)
        return figure


def _draw_memory(axes: Axes, records: Sequence[PromptRecord], points: Sequence[tuple[int, str]]) -> None:
    """What drafting takes at every n: the most of its arms."""
    known: dict[int, tuple[float, float]] = {}
    for n, arm in points:
        weights, caches = _megabytes(answered(records, arm))
        if weights is not None and caches is not None:
            known[n] = max(known.get(n, (0.0, 0.0)), (weights, caches), key=sum)
    of_weights, of_caches = ([one[place] for one in known.values()] for place in range(2))
    axes.bar(list(known), of_weights, 0.3, color=GREY, label="draft weights" if known else None)
    axes.bar(list(known), of_caches, 0.3, of_weights, color=_CACHES, label="draft caches" if known else None)
    axes.set_ylabel("draft MB", fontsize=9)


def _megabytes(good: Sequence[PromptRecord]) -> tuple[float | None, float | None]:
    """The most that weights and caches of the draft models took; None where nobody said."""
    told = [record.group.draft_bytes for record in good if record.group is not None]
    weights = [found["weights"] / 1e6 for found in told if found.get("weights")]
    caches = [found["caches"] / 1e6 for found in told if found.get("caches")]
    return max(weights, default=None), max(caches, default=None)
