"""Speedup over the number of sequences that draft at a time, and over how many of them one target pass verifies."""

# No `from __future__ import annotations` here: jsonargparse then drops the bounds of the signature.

import re
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from specexp.bench.analysis import MultiSequenceAnalysis, check_baseline
from specexp.bench.publish import Report
from specexp.papers._groups import answered, busy_share, end_to_end, plain_name, tokens_per_second

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from specexp.bench.record import PromptRecord
    from specexp.bench.table import Cell, Table
    from specexp.core.parts import Parts

_SETTING = re.compile(r"[,\s]*\b(n|verify_batch)=(\d+)\b")
_COLOURS = ("#33658a", "#d1782f", "#6b9080", "#8d6a9f", "#b5404a", "#4f5d75")
_MARKERS = "os^Dvp"
_CACHES = "#71808d"
_DASHES = ((5, 2), (2, 2), (6, 2, 1, 2), (1, 2))
_ASIDE = 0.05
"""Of n, between two curves."""


class Setting(NamedTuple):
    """What an arm's title says of its execution.

    Attributes:
        group: the title without ``n`` and ``verify_batch``: arms of one group differ in these alone.
        n: sequences at a time; None where the title does not say.
        verify_batch: most drafts a target pass verifies; None where the title does not say.
    """

    group: str
    n: int | None
    verify_batch: int | None

    @classmethod
    def of(cls, title: str) -> "Setting":
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
        baseline: arm that speedups are over.
    """

    name: ClassVar[str] = "scaling"

    def __init__(self, baseline: str = "engine") -> None:
        self.baseline = baseline
        self._settings: dict[str, Setting] = {}

    def begin(self, arms: "Mapping[str, Parts]") -> None:
        """Read what the titles say.

        Raises:
            ValueError: ``baseline`` is none of the arms.
        """
        check_baseline(self, self.baseline, arms)
        self._settings = {arm: Setting.of(arm) for arm in arms}

    def report(self, records: "Sequence[PromptRecord]") -> Report:
        """A table, and the curves if anything has an ``n``."""
        records = list(records)
        decoded = {record.arm for record in records if not record.error}
        drawn = any(setting.n is not None for arm, setting in self._settings.items() if arm in decoded)
        figures = {self.name: self._draw(records, decoded)} if drawn else {}
        return Report({self.name: self._table(records)}, figures)

    def _table(self, records: "Sequence[PromptRecord]") -> "Table":
        from specexp.bench.statistics import paired_speedup, summarise
        from specexp.bench.table import Column, Table

        table = Table(
            "Sequences at a time",
            [
                Column("arm"),
                Column("n"),
                Column("verify_batch"),
                Column(f"end to end vs {self.baseline}", interval=True),
                Column("decoding", interval=True),
                Column("tokens/s", 0),
                Column("tokens/step"),
                Column("target busy", 1, "%"),
                Column("draft weights", 1, " MB"),
                Column("draft caches", 1, " MB"),
            ],
            notes=[
                "Seconds per token, paired prompt by prompt, geometric mean, 95 % bootstrap interval. Decoding: "
                "without prefills and search; tokens/s are end to end.",
                "MB (10^6 bytes) that the draft models' weights and KV caches take, at most.",
            ],
        )
        for arm, setting in self._settings.items():
            good = answered(records, arm)
            plain = arm == self.baseline
            row: list[Cell] = [setting.group, setting.n, setting.verify_batch]
            if not good:
                table.rows.append([*row, *[None] * 7])
                continue
            row += [None if plain else end_to_end(records, arm, self.baseline)]
            row += [None if plain else paired_speedup(records, arm, self.baseline)]
            row += [tokens_per_second(good), summarise(records, arm).tokens_per_step, busy_share(good)]
            table.rows.append([*row, *_megabytes(good)])
        return table

    def _draw(self, records: "Sequence[PromptRecord]", decoded: set[str]) -> "Figure":
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        from specexp.bench.pictures import INK

        figure = Figure(figsize=(8.5, 8.0), dpi=130, layout="constrained")
        FigureCanvasAgg(figure)
        figure.suptitle(
            f"Sequences at a time: speedup over {plain_name(self.baseline)}", fontsize=11, color=INK
        )
        top, middle, bottom = figure.subplots(3, 1, sharex=True, height_ratios=[3, 2, 1.4])
        settings = {arm: setting for arm, setting in self._settings.items() if arm in decoded}
        curves: dict[str, list[tuple[int, str]]] = {}
        for arm, setting in settings.items():
            if setting.n is not None:
                curves.setdefault(setting.curve, []).append((setting.n, arm))
        looks = zip(cycle(_COLOURS), cycle(_MARKERS), strict=False)
        for number, ((label, points), look) in enumerate(zip(curves.items(), looks, strict=False)):
            aside = _ASIDE * (number - (len(curves) - 1) / 2)  # intervals at the same n would hide each other
            self._curve(top, middle, records, sorted(points), label, look, aside)
        across = [arm for arm, setting in settings.items() if setting.n is None and arm != self.baseline]
        for arm, dashes in zip(across, cycle(_DASHES), strict=False):
            speedup = end_to_end(records, arm, self.baseline)
            if not speedup.refused:
                top.axhline(speedup.ratio, color=INK, lw=1.1, ls=(0, dashes), label=arm)
                share = busy_share(answered(records, arm))
                if share is not None:
                    middle.axhline(100 * share, color=INK, lw=1.1, ls=(0, dashes))
        ticks = sorted({n for points in curves.values() for n, _ in points})
        top.axhline(1, color=INK, lw=0.8, ls=":")
        _draw_memory(bottom, records, [point for points in curves.values() for point in points])
        top.set_ylabel("speedup, end to end", fontsize=9)
        middle.set_ylabel("target busy (%)", fontsize=9)
        middle.set_ylim(0, 103)
        bottom.set_xlabel("n: sequences that draft at a time", fontsize=9)
        bottom.set_xticks(ticks, [str(n) for n in ticks])
        for axes in (top, middle, bottom):
            axes.tick_params(labelsize=8, colors=INK)
            axes.grid(axis="y", color="#e3e8ec", lw=0.7)
            axes.set_axisbelow(True)
            axes.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside lower center", ncols=3, fontsize=8, frameon=False)
        return figure

    def _curve(
        self,
        speedup_axes: "Axes",
        busy_axes: "Axes",
        records: "Sequence[PromptRecord]",
        points: Sequence[tuple[int, str]],
        label: str,
        look: tuple[str, str],
        aside: float,
    ) -> None:
        speedups = [(n + aside, end_to_end(records, arm, self.baseline)) for n, arm in points]
        given = [(place, speedup) for place, speedup in speedups if not speedup.refused]
        colour, marker = look
        style = {"color": colour, "marker": marker, "ms": 5, "lw": 1.4}
        if given:
            ends = [(one.ratio - one.low, one.high - one.ratio) for _, one in given]
            speedup_axes.errorbar(
                [place for place, _ in given],
                [one.ratio for _, one in given],
                yerr=list(zip(*ends, strict=True)),
                capsize=2,
                label=label,
                **style,  # type: ignore[arg-type]
            )
        busy = [(n + aside, busy_share(answered(records, arm))) for n, arm in points]
        known = [(place, 100 * share) for place, share in busy if share is not None]
        if known:
            busy_axes.plot(*zip(*known, strict=True), **style)  # type: ignore[arg-type]


def _draw_memory(axes: "Axes", records: "Sequence[PromptRecord]", points: Sequence[tuple[int, str]]) -> None:
    """What drafting takes at every n: the most of its arms."""
    from specexp.bench.pictures import GREY

    known: dict[int, tuple[float, float]] = {}
    for n, arm in points:
        weights, caches = _megabytes(answered(records, arm))
        if weights is not None and caches is not None:
            known[n] = max(known.get(n, (0.0, 0.0)), (weights, caches), key=sum)
    weights_of = [weights for weights, _ in known.values()]
    axes.bar(list(known), weights_of, 0.3, color=GREY, label="draft weights" if known else None)
    caches_of = [caches for _, caches in known.values()]
    axes.bar(list(known), caches_of, 0.3, weights_of, color=_CACHES, label="draft caches" if known else None)
    axes.set_ylabel("draft MB", fontsize=9)


def _megabytes(good: "Sequence[PromptRecord]") -> tuple[float | None, float | None]:
    """The most that weights and caches of the draft models took; None where nobody said."""
    told = [record.group.draft_bytes for record in good if record.group is not None]
    weights = [found["weights"] / 1e6 for found in told if found.get("weights")]
    caches = [found["caches"] / 1e6 for found in told if found.get("caches")]
    return max(weights, default=None), max(caches, default=None)
