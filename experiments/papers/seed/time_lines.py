"""Utilisation of the target, and time lines of target and drafters (SEED, Figs. 1, 3 and 4)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from typing_extensions import override

from experiments.papers.shared import MultiSequenceAnalysis, label, report_of, table_of
from specexp.bench.record import PromptRecord
from specexp.core.parts import Parts
from specexp.report.analysis import over
from specexp.report.pictures import BLUE, INK, draw_time_line, new_figure
from specexp.report.publish import Report
from specexp.report.table import Cell
from specexp.scheduling.timeline import BUSY, TARGET, TimeLine, What, chrome_trace, start_of

DECISIONS: tuple[What, ...] = ("verify", "resample")
MOST_BINS = 240  # bins of a curve; a longer run has wider bins


class TargetUtilisation(MultiSequenceAnalysis):
    """The share of time in which the target runs a pass or a prefill, over time and in total.

    The table also has the shares of the target's other work, and of the drafting that ran while the target was busy.

    An arm's time is the sum over its prompts, each from the start of its first run to the end of its last. It includes
    the search between runs, but not the time in which other arms decode.
    """

    name: ClassVar[str] = "target_utilisation"
    bin_ms = 100.0  # time between two points of a curve

    def __init__(self) -> None:
        super().__init__()
        self._lines: dict[str, list[TimeLine]] = {}

    @override
    def begin(self, arms: Mapping[str, Parts]) -> None:
        self._lines = {arm: [] for arm in arms}

    @override
    def observe_run(self, arm: str, prompt_id: str, timeline: TimeLine) -> None:
        if len(timeline):
            self._lines[arm].append(timeline)

    @override
    def report(self, records: Sequence[PromptRecord]) -> Report:
        table = table_of(
            "What the target's time goes into",
            "arm | prompts | seconds | target busy:.1% | in passes:.1% | in prefills:.1% | deciding:.1%"
            " | waiting:.1% | drafting:.1% | drafting hidden:.1% | sequences/pass",
            "Shares of the time from the start of a prompt's first run to the end of its last. Target busy: in a "
            "pass or a prefill; deciding: verifying, resampling; waiting: the rest (for drafts, the search).",
            "Drafting: with learning and prefills of drafts; hidden: the share of it while the target is busy.",
            rows=[[arm, *_shares(lines)] for arm, lines in self._lines.items()],
        )
        seconds = {arm: _seconds(lines) for arm, lines in self._lines.items()}
        shown = {arm: lines for arm, lines in self._lines.items() if seconds[arm]}
        return report_of(self, table, self._draw(shown) if shown else None)

    def _draw(self, shown: Mapping[str, Sequence[TimeLine]]) -> Figure:
        longest = max(map(_seconds, shown.values()))
        width = self.bin_ms / 1000
        width *= max(1, -(-longest // (MOST_BINS * width)))
        height, title = 1.3 + 0.85 * len(shown), "How busy the target is"
        figure, panels = new_figure(8.5, height, title, len(shown), 1, sharex=True, sharey=True)
        for [axes], (arm, lines) in zip(panels, shown.items(), strict=True):
            busy, seconds = list[tuple[float, float]](), 0.0
            for line in lines:
                moved = seconds - start_of(line)  # after the arm's earlier prompts
                spans = (span for span in line if span.who == TARGET and span.what in BUSY)
                busy += ((span.start + moved, span.end + moved) for span in spans)
                seconds += line.seconds
            edges, shares = busy_shares(busy, seconds, width)
            mean = 100 * sum(line.busy(TARGET, BUSY) for line in lines) / seconds
            axes.stairs(100 * shares, edges, fill=True, color=BLUE, alpha=0.3, lw=0)
            axes.stairs(100 * shares, edges, baseline=None, color=BLUE, lw=1)
            axes.plot([0, seconds], [mean] * 2, color=INK, lw=0.8, ls=":")
            axes.set_title(f"{mean:.1f} % busy", fontsize=9, loc="right", color=INK)
            axes.set_yticks([0, 50, 100])
            label(axes, title=arm, low=0, high=103, grid="y")
        [last] = panels[-1]
        last.set_xlim(0, longest)
        bins = f"(bins of {1000 * width:g} ms)"
        label(last, f"seconds of the arm, its prompts one after the other {bins}")
        figure.supylabel("% of the time", fontsize=9, color=INK)
        return figure


def _seconds(lines: Sequence[TimeLine]) -> float:
    return sum((line.seconds for line in lines), 0.0)


def _shares(lines: Sequence[TimeLine]) -> list[Cell]:
    """Return the cells of a table row: number of prompts, seconds, and shares of the seconds."""
    seconds = _seconds(lines)
    kinds: tuple[tuple[What, ...], ...] = (("target",), ("prefill",), DECISIONS)
    passes, prefills, deciding = (sum(line.busy(TARGET, kind) for line in lines) for kind in kinds)
    # rounding of clocks could make it slightly negative
    waiting = max(0.0, seconds - prefills - passes - deciding)
    drafting, hidden = sum(line.drafting() for line in lines), sum(line.overlap() for line in lines)
    parts = (prefills + passes, passes, prefills, deciding, waiting, drafting or None)
    shares = [None if part is None else over(part, seconds) for part in parts]
    rounds, decisions = np.sum([_counts(line) for line in lines] or [(0, 0)], axis=0).tolist()
    return [len(lines), seconds, *shares, over(hidden, drafting), over(decisions, rounds)]


def _counts(line: TimeLine) -> tuple[int, int]:
    """Return the number of target passes, and of the sequences decided in them."""
    return sum(span.what == "target" for span in line), sum(span.what in DECISIONS for span in line)


def busy_shares(
    busy: Sequence[tuple[float, float]], seconds: float, width: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return ``[n + 1]`` edges of bins of ``width`` seconds (the last may be shorter), and their ``[n]`` busy shares.

    Example:
        >>> busy_shares([(0.0, 0.5), (1.0, 2.0)], 2.5, 1.0)
        (array([0. , 1. , 2. , 2.5]), array([0.5, 1. , 0. ]))
    """
    edges = np.append(np.arange(0.0, seconds - 1e-9 * seconds, width), seconds)
    ordered = np.array(sorted(busy)).reshape(-1, 2)
    done = np.cumsum(ordered[:, 1] - ordered[:, 0])
    # the busy time up to a moment grows with slope 1 within a span, and not at all between spans
    moments = np.append(0.0, ordered.ravel())
    grown = np.append(0.0, np.column_stack([np.append(0.0, done[:-1]), done]).ravel()) if done.size else [0.0]
    return edges, np.clip(np.diff(np.interp(edges, moments, grown)) / np.diff(edges), 0.0, 1.0)


class TimeLines(MultiSequenceAnalysis):
    """Time lines of the first prompt: the arms in one picture, and a trace of each arm for Perfetto (ui.perfetto.dev)
    or chrome://tracing.
    """

    name: ClassVar[str] = "time_lines"
    window_ms = 250.0
    """The picture shows only so many milliseconds of a time line, so that single passes are visible."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[str, TimeLine] = {}
        self._prompt: str | None = None

    @override
    def begin(self, arms: Mapping[str, Parts]) -> None:
        self._kept, self._prompt = {}, None

    @override
    def observe_run(self, arm: str, prompt_id: str, timeline: TimeLine) -> None:
        if len(timeline) and prompt_id == (self._prompt or prompt_id):
            self._prompt = prompt_id
            self._kept.setdefault(arm, timeline)  # the first of several samples of the prompt

    @override
    def report(self, records: Sequence[PromptRecord]) -> Report:
        table = table_of(
            "The time lines kept",
            "arm | prompt | ms:.0 | target passes | sequences/pass | target busy:.1%",
            "Target busy: share of the time in which it runs a pass or a prefill.",
        )
        files = {}
        for arm, line in self._kept.items():
            passes, decisions = _counts(line)
            facts = [1000 * line.seconds, passes, over(decisions, passes), line.utilisation()]
            table.rows.append([arm, self._prompt, *facts])
            plain = re.sub(r"[^a-z0-9]+", "_", arm.lower()).strip("_")
            files[f"{self.name}_trace_{plain}.json"] = chrome_trace({f"{arm}: {self._prompt}": line})
        if not self._kept:
            return Report({self.name: table})
        longest = 1000 * max(line.seconds for line in self._kept.values())
        title = f"{min(longest, self.window_ms):.0f} ms of {self._prompt}"
        figure = draw_time_line(
            self._kept, title, self.window_ms / 1000 if longest > self.window_ms else None
        )
        return Report({self.name: table}, {self.name: figure}, files)
