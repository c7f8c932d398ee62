"""Time lines as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from math import floor
from typing import Any

from specexp.scheduling.timeline import TARGET, Span, TimeLine

QUEUE = "drafts waiting"
DECISIONS = ("verify", "resample")


def chrome_trace(timelines: Mapping[str, TimeLine]) -> str:
    """Write time lines in the JSON object format of Chrome's trace events.

    Every time line is a process of its own and starts at 0, so that runs can be compared below each other. In it the
    target and every drafter have a thread, a span is a complete event (``ph: X``) named by what was done, and where
    drafts wait for the target a counter tells how many. Times are whole microseconds: neighbours stay neighbours.

    Args:
        timelines: time lines by the name of their process.

    Returns:
        One event a line; the same text for the same time lines.

    Example:
        >>> line = TimeLine([Span("target", "prefill", 5.0, 5.002, "a", tokens=7)])
        >>> json.loads(chrome_trace({"serial": line}))["traceEvents"][-1]["dur"]
        2000
    """
    events = [
        event
        for process, (name, timeline) in enumerate(timelines.items(), start=1)
        for event in _events(name, timeline, process)
    ]
    lines = ",\n".join(json.dumps(event, ensure_ascii=False) for event in events)
    return f'{{"displayTimeUnit": "ms", "traceEvents": [\n{lines}\n]}}\n'


def rows_of(timeline: TimeLine) -> list[str]:
    """Who is on a time line: the target, then the drafters by their number."""
    found = {span.who for span in timeline}
    drafters = sorted(found - {TARGET}, key=lambda who: (len(who), who))
    return [TARGET, *drafters]


def waiting_drafts(timeline: TimeLine) -> list[tuple[float, int]]:
    """When the number of drafts that wait for the target changed, and to what; empty if nobody drafts.

    A draft waits from its end to the start of the target pass that verifies it.
    """
    drafts = [span for span in timeline if span.what == "draft"]
    if not drafts:
        return []
    drafted = {span.sequence for span in drafts}
    served: Counter[int] = Counter(
        span.round for span in timeline if span.what in DECISIONS and span.sequence in drafted
    )
    changes = [(span.end, 0, 1) for span in drafts]
    changes += [(span.start, 1, -served[span.round]) for span in timeline if span.what == "target"]
    known, count = [], 0
    for moment, together in groupby(sorted(changes), key=lambda change: change[0]):
        count += sum(change for *_, change in together)
        known.append((moment, count))
    return known


def served_by(timeline: TimeLine) -> dict[int, list[str]]:
    """By the number of a target pass, the drafters whose drafts it verified; none of plain decoding."""
    drafter: dict[str, str] = {}
    served: defaultdict[int, list[str]] = defaultdict(list)
    for span in _in_order(timeline):
        if span.what == "draft":
            drafter[span.sequence] = span.who
        elif span.what in DECISIONS and span.sequence in drafter:
            served[span.round].append(drafter[span.sequence])
    return dict(served)


def _events(name: str, timeline: TimeLine, process: int) -> Iterator[dict[str, Any]]:
    rows = rows_of(timeline)
    threads = {who: thread for thread, who in enumerate(rows, start=1)}
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
        began, ended = _microseconds(span.start - start), _microseconds(span.end - start)
        facts: dict[str, Any] = {"sequence": span.sequence, "tokens": span.tokens}
        if span.round >= 0:
            facts["round"] = span.round
        yield {
            "ph": "X",
            "pid": process,
            "tid": threads[span.who],
            "name": span.what,
            "cat": "target" if span.who == TARGET else "draft",
            "ts": began,
            "dur": ended - began,
            "args": facts,
        }


def start_of(timeline: TimeLine) -> float:
    """When a time line begins: with its run, or with its first span if that was earlier."""
    moments = [span.start for span in timeline]
    if timeline.start is not None:
        moments.append(timeline.start)
    return min(moments, default=0.0)


def _in_order(spans: Iterable[Span]) -> list[Span]:
    return sorted(spans, key=lambda span: (span.start, span.end, span.who))


def _microseconds(seconds: float) -> int:
    return floor(1e6 * seconds + 1e-3)  # a thousandth is more than floats lose, and less than a clock tells
