"""Time lines as a picture: who did what when, one panel an execution strategy (SEED, Figs. 1 and 3)."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import fill

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from specexp.bench.pictures import INK, bare_figure
from specexp.scheduling.timeline import TARGET, Span, TimeLine, What
from specexp.scheduling.trace import rows_of, served_by, start_of

LANE, END = "#f1f4f7", "#7d8b97"
COLOURS: Mapping[What, str] = {
    "prefill": "#a9b8c4",
    "target": "#33658a",
    "verify": "#6b9080",
    "resample": "#c1443c",
    "draft": "#d1782f",
    "learn": "#8d6a9f",
}
LABELS: Mapping[What, str] = {
    "prefill": "prefill",
    "target": "target pass",
    "verify": "verify, all accepted",
    "resample": "verify, resample after a rejection",
    "draft": "draft",
    "learn": "learn from the outcome",
}

_WIDTH, _LEFT, _RIGHT = 11.0, 0.85, 0.3
"""Inches: of the figure, and of its margins."""
_ROW, _HEAD, _TOP, _BOTTOM = 0.27, 0.42, 0.4, 0.85
_BAR = 0.78
_LEAD = 0.2
"""Of a window, how much lies before the first target pass at most."""
_DIGIT = 0.075
"""Inches that a digit on a bar takes."""


def draw_time_line(timelines: Mapping[str, TimeLine], title: str, seconds: float | None = None) -> Figure:
    """Draw time lines below each other over one axis, each from its own beginning.

    A panel has a row for the target and one for every drafter. Numbers on target passes say whose drafts they
    verify, where most have room. Beside a panel's name stand how long the run took and what share of that the target
    ran a pass or a prefill: of the whole run, also where only a part of it is drawn.

    Args:
        timelines: At least one, with at least a span, by the name of their panel.
        title: heading.
        seconds: Draw only so much, so that single passes can be seen: from the start of a run, or where its prompt
            takes long to read, from shortly before its first target pass. Everything if None.

    Returns:
        A figure of matplotlib's Agg canvas, apart from pyplot.

    Raises:
        ValueError: there is no time line, one is empty, or ``seconds`` is not above 0.

    Example:
        >>> line = TimeLine([Span("target", "target", 0.0, 0.003, "a"), Span("draft 1", "draft", 0.001, 0.004, "b")])
        >>> len(draw_time_line({"scheduled": line}, "One pass").axes)
        1
    """
    if not timelines or not all(map(len, timelines.values())):
        raise ValueError("there is no time line to draw, or one is without a span")
    if seconds is not None and seconds <= 0:
        raise ValueError(f"seconds was {seconds}; a window longer than 0 is needed")
    longest = max(timeline.seconds for timeline in timelines.values())
    shown = longest if seconds is None else min(seconds, longest)
    rows = {name: rows_of(timeline) for name, timeline in timelines.items()}
    height = _TOP + _BOTTOM + sum(_HEAD + _ROW * len(found) for found in rows.values())
    figure = bare_figure(_WIDTH, height, dpi=150)
    heading = fill(title, 100)
    begins = {name: _begin(timeline, seconds) for name, timeline in timelines.items()}
    figure.text(_LEFT / _WIDTH, 1 - 0.16 / height, heading, fontsize=12, color=INK, va="top")
    at = height - _TOP
    panels = []
    for name, timeline in timelines.items():
        at -= _HEAD + _ROW * len(rows[name])
        place = (_LEFT / _WIDTH, at / height, 1 - (_LEFT + _RIGHT) / _WIDTH, _ROW * len(rows[name]) / height)
        axes = figure.add_axes(place)
        _draw_panel(axes, timeline, rows[name], begins[name], shown)
        _name_panel(axes, name, timeline)
        panels.append(axes)
    for axes in panels[:-1]:
        axes.tick_params(labelbottom=False)
    from_start = all(begins[name] == start_of(timeline) for name, timeline in timelines.items())
    axis = (
        "ms since the start of the run" if from_start else "ms, from shortly before a run's first target pass"
    )
    panels[-1].set_xlabel(axis, fontsize=9, color=INK)
    drawn = {
        span.what for name, timeline in timelines.items() for span in _within(timeline, begins[name], shown)
    }
    handles = [Patch(color=COLOURS[what], label=LABELS[what]) for what in COLOURS if what in drawn]
    figure.legend(
        handles=handles,
        loc="lower center",
        ncols=len(handles),
        fontsize=8.5,
        frameon=False,
        handlelength=1.2,
        columnspacing=1.6,
        labelcolor=INK,
    )
    return figure


def _draw_panel(axes: Axes, timeline: TimeLine, rows: list[str], begin: float, seconds: float) -> None:
    spans = _within(timeline, begin, seconds)
    end = start_of(timeline) + timeline.seconds - begin
    lane = [(0.0, 1000 * min(end, seconds))]
    for place in range(len(rows)):
        axes.broken_barh(lane, (place - _BAR / 2, _BAR), facecolors=LANE, lw=0, zorder=0)
    for place, who in enumerate(rows):
        for what, colour in COLOURS.items():
            bars = [
                (1000 * (span.start - begin), 1000 * (span.end - span.start))
                for span in spans
                if span.who == who and span.what == what
            ]
            axes.broken_barh(bars, (place - _BAR / 2, _BAR), facecolors=colour, lw=0, zorder=2)
    _number_passes(axes, timeline, spans, begin, seconds)
    if end < 0.995 * seconds:
        axes.axvline(1000 * end, color=END, lw=0.9, ls=(0, (2, 2)), zorder=1)
        style = {"fontsize": 8, "color": END, "va": "center"}
        axes.text(1000 * end, (len(rows) - 1) / 2, " done", **style)  # type: ignore[arg-type]
    axes.set_xlim(0, 1000 * seconds)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks(range(len(rows)), [who.capitalize() for who in rows], fontsize=8.5, color=INK)
    axes.tick_params(axis="y", length=0, pad=5)
    axes.tick_params(axis="x", labelsize=8, colors=INK, length=2.5, color="#c3ccd4")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color("#c3ccd4")
    axes.grid(axis="x", color="white", lw=0.9, zorder=1)
    axes.set_axisbelow(True)


def _number_passes(axes: Axes, timeline: TimeLine, spans: list[Span], begin: float, seconds: float) -> None:
    """Write on every pass whose drafts it verifies, if most have room for it."""
    served = served_by(timeline)
    if len({who for drafters in served.values() for who in drafters}) < 2:
        return
    inches = (_WIDTH - _LEFT - _RIGHT) / seconds
    passes = [span for span in spans if span.what == TARGET and span.round in served]
    numbers = []
    for span in passes:
        text = "+".join(sorted(who.rpartition(" ")[2] for who in served[span.round]))
        began, ended = max(span.start - begin, 0.0), min(span.end - begin, seconds)
        if (ended - began) * inches >= _DIGIT * len(text) + 0.02:
            numbers.append((1000 * (began + ended) / 2, text))
    style = {"ha": "center", "va": "center_baseline", "fontsize": 7.5, "color": "white"}
    for middle, text in numbers if len(numbers) >= 0.8 * len(passes) else ():
        axes.text(middle, 0, text, zorder=3, **style)  # type: ignore[arg-type]


def _name_panel(axes: Axes, name: str, timeline: TimeLine) -> None:
    facts = f"target busy {100 * timeline.utilisation():.0f} %,  run {_duration(timeline.seconds)}"
    up = {"xycoords": "axes fraction", "textcoords": "offset points", "va": "bottom", "fontsize": 9.5}
    axes.annotate(name, (0, 1), (0, 3), color=INK, **up)  # type: ignore[arg-type]
    axes.annotate(facts, (1, 1), (0, 3), color=INK, ha="right", **up)  # type: ignore[arg-type]


def _duration(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms" if seconds < 2 else f"{seconds:.1f} s"


def _begin(timeline: TimeLine, seconds: float | None) -> float:
    """From when on a time line is drawn."""
    start = start_of(timeline)
    passes = [span.start for span in timeline if span.what == "target"]
    if seconds is None or not passes:
        return start
    return max(start, min(passes) - _LEAD * seconds)


def _within(timeline: TimeLine, begin: float, seconds: float) -> list[Span]:
    return [span for span in timeline if span.end > begin and span.start - begin < seconds]
