"""Which seconds stand where; what is timed on copies changes nothing of the run."""

from dataclasses import replace

import pytest
from helpers.made_records import outcome_of, strategy

from experiments.papers.post_use_pre_cut.component_times import (
    CACHE,
    DECISION,
    GRAFT,
    INSERTION,
    LEARNING,
    ComponentTimes,
)
from specexp.bench.record import PromptRecord
from specexp.builders import Chain, Graft
from specexp.controllers import ThresholdTracker
from specexp.core.parts import Parts
from specexp.drafters import PhraseCache
from specexp.verifiers import Greedy

PHASES = {"draft": 0.6, "build": 0.1, "target": 1.0, "verify": 0.1, "commit": 0.02, "update": 0.18}
REUSE = Parts(PhraseCache(), Graft(Chain(4), num_anchors=2), Greedy(), ThresholdTracker(budget=8))


def record(arm, clock="measured", **seconds):
    phases = {**PHASES, **seconds}
    return PromptRecord(
        arm, "p", "a", steps=10, draft_passes=40, seconds=phases, decode_seconds=2.0, clock=clock
    )


def table_of(analysis, *records):
    return analysis.report(records).tables["component_times"]


def test_passes_and_roll_back_are_the_runs_own_means():
    analysis = ComponentTimes()
    analysis.begin({"a": strategy(Greedy())})
    (row,) = table_of(analysis, record("a")).records()
    assert row["draft forward"] == pytest.approx(15)  # 0.6 s over 40 passes
    assert row["target forward"] == pytest.approx(100)
    assert row["roll back"] == pytest.approx(2)
    assert row["step"] == pytest.approx(200)
    assert all(row[operation] is None for operation in (CACHE, GRAFT, INSERTION, DECISION, LEARNING))


def test_reuse_and_decisions_are_timed_on_copies():
    """The arm's own cache and controller stay as they were."""
    analysis = ComponentTimes()
    analysis.begin({"a": REUSE})
    before = REUSE.controller.state_dict()
    step = outcome_of([-1, 0, 1, 2, 3], [1, 2], values=[1, 0.9, 0.8, 0.7, 0.6])
    for _ in range(3):
        analysis.observe("a", replace(step, pass_tokens=(1, 1)))
    assert len(REUSE.drafter.store) == 0
    assert REUSE.controller.state_dict() == before
    own = analysis.milliseconds("a")
    assert {operation: len(times) for operation, times in own.items()} == dict.fromkeys(own, 3)
    (row,) = table_of(analysis, record("a")).records()
    assert all(row[operation] > 0 for operation in (CACHE, GRAFT, INSERTION, DECISION, LEARNING))
    spent = sum(row[operation] for operation in (CACHE, GRAFT, INSERTION, DECISION, LEARNING))
    assert row["cache, graft and controller of a step"] == pytest.approx(spent / 200)
