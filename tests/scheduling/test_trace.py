"""The trace: the JSON object format of Chrome's trace events, so that Perfetto opens it."""

import json
from collections import defaultdict
from itertools import pairwise

from hypothesis import given, strategies as st

from specexp.scheduling.timeline import Span, TimeLine, chrome_trace, rows_of, served_by, waiting_drafts

PAUSE = 1234.5
LINE = TimeLine(
    [
        Span("target", "prefill", PAUSE, PAUSE + 0.004, "a", 9),
        Span("draft 1", "prefill", PAUSE, PAUSE + 0.001, "a"),
        Span("draft 1", "draft", PAUSE + 0.001, PAUSE + 0.003, "a", 4),
        Span("draft 2", "draft", PAUSE + 0.003, PAUSE + 0.005, "b", 4),
        Span("target", "target", PAUSE + 0.004, PAUSE + 0.010, "a", 5, 0),
        Span("target", "verify", PAUSE + 0.010, PAUSE + 0.011, "a", 4, 0),
        Span("draft 1", "learn", PAUSE + 0.011, PAUSE + 0.0115, "a"),
        Span("target", "target", PAUSE + 0.011, PAUSE + 0.017, "b", 5, 1),
        Span("target", "resample", PAUSE + 0.017, PAUSE + 0.018, "b", 1, 1),
    ]
)


def events_of(*lines, phase=None):
    trace = json.loads(chrome_trace({f"run {number}": line for number, line in enumerate(lines)}))
    return [event for event in trace["traceEvents"] if phase in (None, event["ph"])]


def test_the_target_and_every_drafter_have_a_row_with_a_name():
    names = [event for event in events_of(LINE, phase="M") if event["name"] == "thread_name"]
    assert [(event["tid"], event["args"]["name"]) for event in names] == [(1, "target"), (2, "draft 1"), (3, "draft 2")]
    line = TimeLine([Span(f"draft {n}", "draft", 0, 1, "a") for n in (10, 9)])
    assert rows_of(line) == ["target", "draft 9", "draft 10"]


def test_a_span_has_its_times_in_microseconds_from_the_start_its_sequence_and_its_round():
    passes = [event for event in events_of(LINE, phase="X") if event["name"] == "target"]
    assert [(one["ts"], one["dur"], one["tid"]) for one in passes] == [(4000, 6000, 1), (11000, 6000, 1)]
    assert passes[1]["args"] == {"sequence": "b", "tokens": 5, "round": 1}
    first = events_of(LINE, phase="X")[0]
    assert (first["name"], "round" in first["args"]) == ("prefill", False)


def test_a_draft_waits_from_its_end_until_a_pass_takes_it():
    changes = [(round(moment - PAUSE, 6), count) for moment, count in waiting_drafts(LINE)]
    assert changes == [(0.003, 1), (0.004, 0), (0.005, 1), (0.011, 0)]
    counters = [(event["ts"], event["args"]["drafts"]) for event in events_of(LINE, phase="C")]
    assert counters == [(3000, 1), (4000, 0), (5000, 1), (11000, 0)]


def test_one_pass_may_take_several_drafts():
    line = TimeLine(
        [
            Span("draft 1", "draft", 0, 1, "a"),
            Span("draft 2", "draft", 1, 2, "b"),
            Span("target", "target", 2, 3, "a", round=0),
            Span("target", "verify", 3, 4, "a", round=0),
            Span("target", "resample", 4, 5, "b", round=0),
        ]
    )
    assert waiting_drafts(line) == [(1, 1), (2, 0)]
    assert served_by(line) == {0: ["draft 1", "draft 2"]}


@given(st.floats(0, 1e6), st.lists(st.floats(1e-7, 0.5), min_size=1, max_size=30))
def test_neighbors_never_overlap(start, lengths):
    """A viewer nests or drops what begins before its neighbor has ended."""
    spans, at = [], start
    for length in lengths:
        spans.append(Span("target", "target", at, at + length, "a"))
        at += length
    rows = defaultdict(list)
    for event in events_of(TimeLine(spans), phase="X"):
        rows[event["tid"]].append(event)
    assert sum(map(len, rows.values())) == len(spans)
    for row in rows.values():
        for event, following in pairwise(row):
            assert event["dur"] >= 0
            assert event["ts"] + event["dur"] <= following["ts"]
