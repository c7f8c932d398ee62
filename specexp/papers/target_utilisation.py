"""How much of the time the target works (SEED, Fig. 4)."""

# No `from __future__ import annotations` here: jsonargparse then drops the bounds of the signature.

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from specexp.bench.analysis import MultiSequenceAnalysis
from specexp.bench.publish import Report
from specexp.papers._groups import over

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from specexp.bench.record import PromptRecord
    from specexp.bench.table import Cell, Table
    from specexp.core.parts import Parts
    from specexp.scheduling.timeline import TimeLine

Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
MOST_BINS = 240
"""More than that are no curve but a carpet: bins are then put together."""


@dataclass(frozen=True)
class PublishedBusy:
    """A figure of a paper, not measured here.

    Attributes:
        method: what was measured, and on what.
        busy: share of the time.
    """

    method: str
    busy: Share


@dataclass
class _Seen:
    """Sums over the time lines of an arm, and when its target was busy.

    Attributes:
        prompts: time lines.
        seconds: of all of them, one behind the other.
        prefill: seconds the target read prompts.
        passes: seconds of its passes.
        deciding: seconds of verifying and resampling.
        drafting: seconds in which somebody drafted.
        hidden: of these, while the target was busy.
        rounds: target passes.
        served: sequences in them.
        busy: from when to when the target was busy.
    """

    prompts: int = 0
    seconds: float = 0.0
    prefill: float = 0.0
    passes: float = 0.0
    deciding: float = 0.0
    drafting: float = 0.0
    hidden: float = 0.0
    rounds: int = 0
    served: int = 0
    busy: list[tuple[float, float]] = field(default_factory=list)

    @property
    def share(self) -> float:
        """Of the time in which the target was busy."""
        return (self.prefill + self.passes) / self.seconds


class TargetUtilisation(MultiSequenceAnalysis):
    """Share of the time in which the target runs a pass or a prefill, over time and in all; what else it did, and how
    much of the drafting it hid.

    The time of an arm is that of all its prompts, from the start of a prompt's first run to the end of its last: the
    search between runs is in it, other arms' turns are not.

    Args:
        bin_ms: time between two points of a curve.
        published: figures of a paper to show beside it.
    """

    name: ClassVar[str] = "target_utilisation"

    def __init__(self, bin_ms: Positive = 100.0, published: list[PublishedBusy] | None = None) -> None:
        self.bin_ms = bin_ms
        self.published = published or []
        self._seen: dict[str, _Seen] = {}

    def begin(self, arms: "Mapping[str, Parts]") -> None:
        """Count from zero."""
        self._seen = {arm: _Seen() for arm in arms}

    def observe_run(self, arm: str, prompt_id: str, timeline: "TimeLine") -> None:
        """Add it behind the arm's earlier ones."""
        from specexp.scheduling.timeline import BUSY, TARGET
        from specexp.scheduling.trace import start_of

        if not len(timeline):
            return
        seen, start = self._seen[arm], start_of(timeline)
        moved = seen.seconds - start
        seen.busy += (
            (span.start + moved, span.end + moved)
            for span in timeline
            if span.who == TARGET and span.what in BUSY
        )
        seen.prompts += 1
        seen.seconds += timeline.seconds
        seen.prefill += timeline.busy(TARGET, ("prefill",))
        seen.passes += timeline.busy(TARGET, ("target",))
        seen.deciding += timeline.busy(TARGET, ("verify", "resample"))
        seen.drafting += timeline.drafting()
        seen.hidden += timeline.overlap()
        seen.rounds += sum(span.what == "target" for span in timeline)
        seen.served += sum(span.what in ("verify", "resample") for span in timeline)

    def report(self, records: "Sequence[PromptRecord]") -> Report:
        """A table, and the curves if there was a time line."""
        shown = {arm: seen for arm, seen in self._seen.items() if seen.seconds}
        figures = {self.name: self._draw(shown)} if shown else {}
        return Report({self.name: self._table()}, figures)

    def _table(self) -> "Table":
        from specexp.bench.table import Column, Table

        table = Table(
            "What the target's time goes into",
            [
                Column("arm"),
                Column("prompts"),
                Column("seconds"),
                Column("target busy", 1, "%"),
                Column("in passes", 1, "%"),
                Column("in prefills", 1, "%"),
                Column("deciding", 1, "%"),
                Column("waiting", 1, "%"),
                Column("drafting", 1, "%"),
                Column("drafting hidden", 1, "%"),
                Column("sequences/pass"),
            ],
            notes=[
                "Shares of the time from the start of a prompt's first run to the end of its last. Target busy: in a "
                "pass or a prefill; deciding: verifying, resampling; waiting: the rest (for drafts, the search).",
                "Drafting: somebody drafts, learns or prefills a draft; hidden: the share of it while the target is "
                "busy.",
            ],
        )
        for arm, seen in self._seen.items():
            table.rows.append([arm, *_cells(seen)])
        for row in self.published:
            cells: list[Cell] = [f"{row.method} (not run here)", None, None, row.busy]
            table.rows.append([*cells, *[None] * 7])
        if self.published:
            table.notes.append("Not run here: figures as published by the paper, on its models and device.")
        return table

    def _draw(self, shown: "Mapping[str, _Seen]") -> "Figure":
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        from specexp.bench.pictures import BLUE, INK

        longest = max(seen.seconds for seen in shown.values())
        width = self.bin_ms / 1000
        width *= max(1, -(-longest // (MOST_BINS * width)))
        figure = Figure(figsize=(8.5, 1.3 + 0.85 * len(shown)), dpi=130, layout="constrained")
        FigureCanvasAgg(figure)
        figure.suptitle("How busy the target is", fontsize=11, color=INK)
        panels = figure.subplots(len(shown), 1, squeeze=False, sharex=True, sharey=True)[:, 0]
        for axes, (arm, seen) in zip(panels, shown.items(), strict=True):
            edges, shares = busy_shares(seen.busy, seen.seconds, width)
            axes.stairs(100 * shares, edges, fill=True, color=BLUE, alpha=0.3, lw=0)
            axes.stairs(100 * shares, edges, baseline=None, color=BLUE, lw=1)
            axes.plot([0, seen.seconds], [100 * seen.share] * 2, color=INK, lw=0.8, ls=":")
            axes.set_title(arm, fontsize=9, loc="left", color=INK, pad=3)
            axes.set_title(f"{100 * seen.share:.1f} % busy", fontsize=9, loc="right", color=INK, pad=3)
            axes.set_ylim(0, 103)
            axes.set_yticks([0, 50, 100])
            axes.tick_params(labelsize=8, colors=INK)
            axes.grid(axis="y", color="#e3e8ec", lw=0.7)
            axes.set_axisbelow(True)
            axes.spines[["top", "right"]].set_visible(False)
        panels[-1].set_xlim(0, longest)
        panels[-1].set_xlabel(
            f"seconds of the arm, its prompts one behind the other (bins of {1000 * width:g} ms)", fontsize=9
        )
        figure.supylabel("% of the time", fontsize=9, color=INK)
        return figure


def busy_shares(
    busy: Sequence[tuple[float, float]], seconds: float, width: float
) -> "tuple[NDArray[np.float64], NDArray[np.float64]]":
    """How busy somebody was in every bin of a time.

    Args:
        busy: from when to when, in any order, without overlaps.
        seconds: the whole time.
        width: of a bin in seconds; the last one ends with the time.

    Returns:
        ``[n + 1]`` edges of the bins, and ``[n]`` shares between 0 and 1.

    Example:
        >>> busy_shares([(0.0, 0.5), (1.0, 2.0)], 2.5, 1.0)
        (array([0. , 1. , 2. , 2.5]), array([0.5, 1. , 0. ]))
    """
    import numpy as np

    edges = np.append(np.arange(0.0, seconds - 1e-9 * seconds, width), seconds)
    ordered = np.array(sorted(busy)).reshape(-1, 2)
    done = np.cumsum(ordered[:, 1] - ordered[:, 0])
    # the busy time up to a moment grows with slope 1 within a span, and not at all between spans
    moments = np.append(0.0, ordered.ravel())
    grown = np.append(0.0, np.column_stack([np.append(0.0, done[:-1]), done]).ravel()) if done.size else [0.0]
    return edges, np.clip(np.diff(np.interp(edges, moments, grown)) / np.diff(edges), 0.0, 1.0)


def _cells(seen: _Seen) -> "list[Cell]":
    waiting = max(0.0, seen.seconds - seen.prefill - seen.passes - seen.deciding)
    return [
        seen.prompts,
        seen.seconds,
        over(seen.prefill + seen.passes, seen.seconds),
        over(seen.passes, seen.seconds),
        over(seen.prefill, seen.seconds),
        over(seen.deciding, seen.seconds),
        over(waiting, seen.seconds),
        over(seen.drafting, seen.seconds) if seen.drafting else None,
        over(seen.hidden, seen.drafting),
        over(seen.served, seen.rounds),
    ]
