"""Who did what when: the time line of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

TARGET = "target"
What = Literal["prefill", "draft", "learn", "target", "verify", "resample"]
"""``target`` is a pass of the target; ``verify`` the decision after it where every draft on the path was accepted, and
``resample`` where one was rejected and the target's own token took its place."""
BUSY: tuple[What, ...] = ("prefill", "target")


class Span(NamedTuple):
    """Something that took time.

    Attributes:
        who: ``target``, or ``draft 1`` and so on.
        what: it was doing.
        start: seconds, of the clock ``time.perf_counter`` shares between the processes of a machine.
        end: seconds.
        sequence: the sequence it was done for; of a pass over several, the first.
        tokens: tokens fed in a prefill or pass, nodes drafted, tokens accepted.
        round: number of the target pass, from 0 within a run; -1 where none belongs to it.
    """

    who: str
    what: What
    start: float
    end: float
    sequence: str
    tokens: int = 0
    round: int = -1


class TimeLine:
    """Spans of one run, in the order they were told; those of one ``who`` do not overlap.

    Args:
        spans: what is known already.

    Attributes:
        spans: all of them.
        start: when the run began; None before that.
        end: when it ended; None before that.

    Example:
        >>> line = TimeLine([Span("target", "target", 0.0, 3.0, "a"), Span("draft 1", "draft", 1.0, 4.0, "b")])
        >>> line.busy("target"), line.utilisation(), line.overlap()
        (3.0, 0.75, 2.0)
    """

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self.spans = list(spans)
        self.start: float | None = None
        self.end: float | None = None

    def __iter__(self) -> Iterator[Span]:
        return iter(self.spans)

    def __len__(self) -> int:
        return len(self.spans)

    def add(
        self,
        who: str,
        what: What,
        start: float,
        end: float,
        sequence: object,
        tokens: int = 0,
        round: int = -1,
    ) -> None:
        """Note a span."""
        self.spans.append(Span(who, what, start, end, str(sequence), tokens, round))

    def extend(self, other: TimeLine) -> None:
        """Put a later run behind this one."""
        rounds = 1 + max((span.round for span in self.spans), default=-1)
        self.spans += (
            span._replace(round=span.round + rounds) if span.round >= 0 else span for span in other
        )
        self.start = other.start if self.start is None else self.start
        self.end = other.end

    @property
    def seconds(self) -> float:
        """From the beginning of the run to its end."""
        begin = min(span.start for span in self.spans) if self.start is None else self.start
        end = max(span.end for span in self.spans) if self.end is None else self.end
        return end - begin

    def busy(self, who: str = TARGET, what: Sequence[What] = (*BUSY, "draft", "learn")) -> float:
        """Seconds that somebody spent on something."""
        return sum(span.end - span.start for span in self.spans if span.who == who and span.what in what)

    def utilisation(self) -> float:
        """Share of the time in which the target runs a pass or a prefill; deciding and waiting are not busy."""
        return self.busy(TARGET, BUSY) / self.seconds

    def drafting(self) -> float:
        """Seconds in which somebody drafts, prefills a draft or learns; several at once count once."""
        return sum(end - start for start, end in self._drafting())

    def overlap(self) -> float:
        """Seconds in which somebody drafts, prefills a draft or learns while the target runs a pass or a prefill."""
        target = [(span.start, span.end) for span in self.spans if span.who == TARGET and span.what in BUSY]
        others = self._drafting()
        shared, at = 0.0, 0
        for start, end in sorted(target):
            while at < len(others) and others[at][1] <= start:
                at += 1
            here = at
            while here < len(others) and others[here][0] < end:
                shared += min(end, others[here][1]) - max(start, others[here][0])
                here += 1
        return shared

    def _drafting(self) -> list[tuple[float, float]]:
        return _union((span.start, span.end) for span in self.spans if span.who != TARGET)


def _union(intervals: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The same time without overlaps, in order."""
    merged: list[tuple[float, float]] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged
