"""The time line of a run, and its export as a trace for Perfetto (ui.perfetto.dev) or chrome://tracing."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from math import floor
from typing import Any, Literal, NamedTuple

TARGET = "target"
What = Literal["prefill", "draft", "learn", "target", "verify", "resample"]
"""Kinds of spans. ``target`` is a pass of the target, followed by a phase of SEED. It is ``verify`` (E of Algorithm 2)
if all drafts on the path were accepted, and ``resample`` (R) if the target's token replaced a rejected one."""
QUEUE = "drafts waiting"
DECISIONS = ("verify", "resample")
BUSY: tuple[What, ...] = ("prefill", "target")


class Span(NamedTuple):
    """One action by ``who``: ``target``, ``draft 1``, ``draft 2`` and so on."""

    who: str
    what: What
    start: float  # start in seconds of ``time.perf_counter``, which all processes of a machine share; likewise ``end``
    end: float
    sequence: str  # the sequence, or the first one in a pass over several
    tokens: int = 0  # number of tokens fed in a prefill or pass, drafted, or accepted
    round: int = -1  # number of the target pass, from 0 within a run; -1 if the action belongs to none


class TimeLine:
    """The spans of one run, in the order of :meth:`add`. Spans with the same ``who`` do not overlap.

    Example:
        >>> line = TimeLine([Span("target", "target", 0.0, 3.0, "a"), Span("draft 1", "draft", 1.0, 4.0, "b")])
        >>> line.busy("target"), line.utilisation()
        (3.0, 0.75)
    """

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self.spans = list(spans)
        self.start: float | None = None  # of the run; None before it begins
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
        """Add a span."""
        self.spans.append(Span(who, what, start, end, str(sequence), tokens, round))

    def extend(self, other: TimeLine) -> None:
        """Append the time line of a later run. Its rounds are renumbered to follow those of this one."""
        rounds = 1 + max((span.round for span in self.spans), default=-1)
        self.spans += (span._replace(round=span.round + rounds) if span.round >= 0 else span for span in other)
        self.start = other.start if self.start is None else self.start
        self.end = other.end

    @property
    def seconds(self) -> float:
        """Seconds from the start of the run to its end."""
        begin = min(span.start for span in self.spans) if self.start is None else self.start
        end = max(span.end for span in self.spans) if self.end is None else self.end
        return end - begin

    def busy(self, who: str = TARGET, what: Sequence[What] = (*BUSY, "draft", "learn")) -> float:
        """Return the total seconds of all spans of ``who`` that are of a kind in ``what``."""
        return sum(span.end - span.start for span in self.spans if span.who == who and span.what in what)

    def utilisation(self) -> float:
        """Return the fraction of the run during which the target runs a pass or a prefill."""
        return self.busy(TARGET, BUSY) / self.seconds


def chrome_trace(timelines: Mapping[str, TimeLine]) -> str:
    """Return time lines in the JSON object format of Chrome's trace events, with one event per line.

    Each time line is shown as a process that starts at time 0. The target and each drafter are its threads. A span is a
    complete event (``ph: X``), and a counter shows the number of waiting drafts. Times are whole microseconds.
    """
    events = [
        json.dumps(event, ensure_ascii=False)
        for process, (name, timeline) in enumerate(timelines.items(), start=1)
        for event in _events(name, timeline, process)
    ]
    lines = ",\n".join(events)
    return f'{{"displayTimeUnit": "ms", "traceEvents": [\n{lines}\n]}}\n'


def rows_of(timeline: TimeLine) -> list[str]:
    """Return the names of a time line's rows: the target, then the drafters by number."""
    drafters = {span.who for span in timeline} - {TARGET}
    return [TARGET, *sorted(drafters, key=lambda who: (len(who), who))]


def waiting_drafts(timeline: TimeLine) -> list[tuple[float, int]]:
    """Return each time at which the number of waiting drafts changes, with the new number.

    A draft waits from the end of drafting to the start of the target pass that verifies it.
    """
    served = served_by(timeline)
    # at equal times, the end of a draft sorts before the start of the pass that verifies it
    changes = [(span.end, 0, 1) for span in timeline if span.what == "draft"]
    passes = [span for span in timeline if changes and span.what == "target"]
    changes += [(span.start, 1, -len(served.get(span.round, ()))) for span in passes]
    known, count = [], 0
    for moment, together in groupby(sorted(changes), key=lambda change: change[0]):
        count += sum(change for *_, change in together)
        known.append((moment, count))
    return known


def served_by(timeline: TimeLine) -> dict[int, list[str]]:
    """Return, for each numbered target pass, the drafters that produced the drafts it verified."""
    drafter: dict[str, str] = {}
    served: defaultdict[int, list[str]] = defaultdict(list)
    for span in _in_order(timeline):
        if span.what == "draft":
            drafter[span.sequence] = span.who
        elif span.what in DECISIONS and span.sequence in drafter:
            served[span.round].append(drafter[span.sequence])
    return dict(served)


def _events(name: str, timeline: TimeLine, process: int) -> Iterator[dict[str, Any]]:
    threads = {who: thread for thread, who in enumerate(rows_of(timeline), start=1)}
    start = start_of(timeline)
    yield {"ph": "M", "pid": process, "name": "process_name", "args": {"name": name}}
    yield {"ph": "M", "pid": process, "name": "process_sort_index", "args": {"sort_index": process}}
    for who, thread in threads.items():
        place = {"ph": "M", "pid": process, "tid": thread}
        yield {**place, "name": "thread_name", "args": {"name": who}}
        yield {**place, "name": "thread_sort_index", "args": {"sort_index": thread}}
    for moment, count in waiting_drafts(timeline):
        at = _microseconds(moment - start)
        yield {"ph": "C", "pid": process, "name": QUEUE, "ts": at, "args": {"drafts": count}}
    for span in _in_order(timeline):
        began = _microseconds(span.start - start)
        ended = _microseconds(span.end - start)
        what = {"name": span.what, "cat": "target" if span.who == TARGET else "draft"}
        when = {"ph": "X", "pid": process, "tid": threads[span.who], "ts": began, "dur": ended - began}
        facts = {"sequence": span.sequence, "tokens": span.tokens}
        yield {**what, **when, "args": facts if span.round < 0 else {**facts, "round": span.round}}


def start_of(timeline: TimeLine) -> float:
    """Return the start time of the run, or of its first span if that is earlier."""
    known = [] if timeline.start is None else [timeline.start]
    return min((*known, *(span.start for span in timeline)), default=0.0)


def _in_order(spans: Iterable[Span]) -> list[Span]:
    return sorted(spans, key=lambda span: (span.start, span.end, span.who))


def _microseconds(seconds: float) -> int:
    return floor(1e6 * seconds + 1e-3)  # 1e-3 absorbs rounding errors of floats
