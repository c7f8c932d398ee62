"""How much of the time the target works (SEED, Fig. 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from pydantic import Field
from typing_extensions import override

from experiments.papers.published import NOT_RUN, Row, add_rows, check_rows
from specexp.bench.analysis import MultiSequenceAnalysis, over
from specexp.bench.pictures import BLUE, INK, new_figure, rule
from specexp.bench.publish import Report
from specexp.bench.record import PromptRecord
from specexp.bench.table import Cell, Table, columns
from specexp.core.parts import Parts
from specexp.scheduling.timeline import BUSY, TARGET, TimeLine
from specexp.scheduling.trace import start_of

MOST_BINS = 240
"""More than that are no curve but a carpet: bins are then put together."""


@dataclass
class _Seen:
    """Sums over the time lines of an arm, and when its target was busy.

    Attributes:
        prompts: Time lines.
        seconds: Seconds of all of them, one behind the other.
        prefill: Seconds the target read prompts.
        passes: Seconds of its passes.
        deciding: Seconds of verifying and resampling.
        drafting: Seconds in which somebody drafted.
        hidden: Those of them in which the target was busy.
        rounds: Target passes.
        served: Sequences in them.
        busy: Since when and until when the target was busy.
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
    def share(self) -> float | None:
        """Share of the time in which the target was busy."""
        return over(self.prefill + self.passes, self.seconds)

    def cells(self) -> list[Cell]:
        """The row of the table."""
        waiting = max(0.0, self.seconds - self.prefill - self.passes - self.deciding)
        parts = (self.passes, self.prefill, self.deciding, waiting, self.drafting or None)
        shares = [None if part is None else over(part, self.seconds) for part in parts]
        hidden = over(self.hidden, self.drafting)
        return [self.prompts, self.seconds, self.share, *shares, hidden, over(self.served, self.rounds)]


class TargetUtilisation(MultiSequenceAnalysis):
    """Share of the time in which the target runs a pass or a prefill, over time and in all; what else it did, and how
    much of the drafting it hid.

    The time of an arm is that of all its prompts, from the start of a prompt's first run to the end of its last: the
    search between runs is in it, other arms' turns are not.

    Args:
        bin_ms: Time between two points of a curve.
        published: Figures of a paper to show beside it: ``method`` and ``busy``, a share of the time.
    """

    name: ClassVar[str] = "target_utilisation"

    def __init__(
        self, bin_ms: Annotated[float, Field(gt=0)] = 100.0, published: list[Row] | None = None
    ) -> None:
        self.bin_ms = bin_ms
        self.published = check_rows(published, [], shares=["busy"])
        self._seen: dict[str, _Seen] = {}

    @override
    def begin(self, arms: Mapping[str, Parts]) -> None:
        self._seen = {arm: _Seen() for arm in arms}

    @override
    def observe_run(self, arm: str, prompt_id: str, timeline: TimeLine) -> None:
        if not len(timeline):
            return
        seen = self._seen[arm]
        moved = seen.seconds - start_of(timeline)  # behind the arm's earlier ones
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

    @override
    def report(self, records: Sequence[PromptRecord]) -> Report:
        table = Table(
            "What the target's time goes into",
            columns(
                "arm | prompts | seconds | target busy:.1% | in passes:.1% | in prefills:.1% | deciding:.1%"
                " | waiting:.1% | drafting:.1% | drafting hidden:.1% | sequences/pass"
            ),
            [[arm, *seen.cells()] for arm, seen in self._seen.items()],
            [
                "Shares of the time from the start of a prompt's first run to the end of its last. Target busy: in a "
                "pass or a prefill; deciding: verifying, resampling; waiting: the rest (for drafts, the search).",
                "Drafting: somebody drafts, learns or prefills a draft; hidden: the share of it while the target is "
                "busy.",
                *([NOT_RUN] if self.published else []),
            ],
        )
        add_rows(table, self.published, {"busy": "target busy"})
        shown = {arm: seen for arm, seen in self._seen.items() if seen.seconds}
        return Report({self.name: table}, {self.name: self._draw(shown)} if shown else {})

    def _draw(self, shown: Mapping[str, _Seen]) -> Figure:
        longest = max(seen.seconds for seen in shown.values())
        width = self.bin_ms / 1000
        width *= max(1, -(-longest // (MOST_BINS * width)))
        height, title = 1.3 + 0.85 * len(shown), "How busy the target is"
        figure, panels = new_figure(8.5, height, title, len(shown), 1, sharex=True, sharey=True)
        for [axes], (arm, seen) in zip(panels, shown.items(), strict=True):
            edges, shares = busy_shares(seen.busy, seen.seconds, width)
            mean = 100 * (seen.share or 0.0)
            axes.stairs(100 * shares, edges, fill=True, color=BLUE, alpha=0.3, lw=0)
            axes.stairs(100 * shares, edges, baseline=None, color=BLUE, lw=1)
            axes.plot([0, seen.seconds], [mean] * 2, color=INK, lw=0.8, ls=":")
            axes.set_title(arm, fontsize=9, loc="left", color=INK, pad=3)
            axes.set_title(f"{mean:.1f} % busy", fontsize=9, loc="right", color=INK, pad=3)
            axes.set_ylim(0, 103)
            axes.set_yticks([0, 50, 100])
            rule(axes)
        [last] = panels[-1]
        last.set_xlim(0, longest)
        last.set_xlabel(
            f"seconds of the arm, its prompts one behind the other (bins of {1000 * width:g} ms)", fontsize=9
        )
        figure.supylabel("% of the time", fontsize=9, color=INK)
        return figure


def busy_shares(
    busy: Sequence[tuple[float, float]], seconds: float, width: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """How busy somebody was in every bin of a time.

    Args:
        busy: Since when and until when, in any order, without overlaps.
        seconds: The whole time.
        width: Seconds of a bin; the last one ends with the time.

    Returns:
        ``[n + 1]`` edges of the bins, and ``[n]`` shares between 0 and 1.

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
