"""SEED's tables and time lines from records made by hand: every figure can be computed by hand."""

import json

import pytest

from experiments.papers.seed.gsm8k import GSM8K
from experiments.papers.seed.speedups import ReasoningTable, Roles
from experiments.papers.seed.time_lines import TimeLines
from specexp.bench.record import PromptRecord, Role, SequenceGroup
from specexp.scheduling.timeline import TimeLine

pytestmark = pytest.mark.unit


def group_of(arm, item, wall, *, task="GSM8K", decode=None, roles=None, correct=None, unparsable=0, **given):
    """A search of 10 tokens in 5 steps that took so many seconds: a tenth of them prefills, eight tenths decoding; the
    target was busy for half of them."""
    values = {
        "token_ids": tuple(range(10)),
        "turn_tokens": (10,),
        "finish_reasons": ("stop",),
        "steps": 5,
        "accepted_drafts": 5,
        "bonus_tokens": 5,
        "drafted_nodes": 20,
        "prefill_seconds": 0.1 * wall,
        "decode_seconds": 0.8 * wall if decode is None else decode,
        "decode_tokens": 10,
        "dtype": "float32",
        "device": "cpu",
        "verifier": "Greedy",
        **given,
    }
    group = SequenceGroup(3, wall, 0.5 * wall, roles or {}, correct, unparsable, {})
    return PromptRecord(arm, f"{task}/{item}", task, group=group, **values)


def role_of(decode, *, steps=5, accepted=5, drafted=20, prefill=0.0):
    return Role(3, 10, steps, accepted, 2 * drafted, 0, prefill, decode, drafted)


def overlapping(start=100.0):
    """One second: a prefill of 0.1, a pass of 0.5 and one of 0.2, decisions of 0.05 behind them; drafts of 0.3 and 0.2
    of which the first lies in the first pass."""
    line = TimeLine()
    line.start, line.end = start, start + 1.0
    line.add("target", "prefill", start, start + 0.1, "a", 9)
    line.add("target", "target", start + 0.1, start + 0.6, "a", 5, 0)
    line.add("draft 2", "draft", start + 0.2, start + 0.5, "b", 4)
    line.add("target", "verify", start + 0.6, start + 0.65, "a", 4, 0)
    line.add("target", "target", start + 0.65, start + 0.85, "b", 5, 1)
    line.add("target", "resample", start + 0.85, start + 0.9, "b", 1, 1)
    line.add("draft 1", "draft", start + 0.8, start + 1.0, "a", 4)
    return line


def rows_in(analysis, table, records, **wanted):
    """The rows of an analysis' table that have these values."""
    analysis.begin({"plain": None, "seed": None})
    rows = analysis.report(records).tables[table].records()
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


# --- Table 1 ------------------------------------------------------------------------------------------------------

SEARCHES = [
    group_of("plain", 0, 4.0, correct=True),
    group_of("seed", 0, 2.0, decode=0.8, correct=True, unparsable=2),
    group_of("plain", 1, 9.0, correct=False),
    group_of("seed", 1, 1.125, decode=0.9, correct=False),
    group_of("plain", 0, 1.0, task="Creative Writing"),
    group_of("seed", 0, 1.0, task="Creative Writing", error="it broke"),
]


def reasoning(table="reasoning_table", records=SEARCHES, published=None, **wanted):
    return rows_in(ReasoningTable(published=published), table, records, **wanted)


def test_a_search_has_a_speedup_end_to_end_and_one_of_decoding():
    """Ratios 2 and 8 end to end; 3.2 / 0.8 and 7.2 / 0.9 in decoding."""
    (row,) = reasoning(arm="seed", task="GSM8K")
    assert [row[key].split()[0] for key in ("end to end", "decoding")] == ["4.00x", "5.66x"]
    assert (row["tree depth"], row["tokens/step"], row["equal outputs"]) == (GSM8K.depth, 2, "2/2")
    assert (row["tokens/s"], row["target busy"]) == (pytest.approx(20 / 3.125), pytest.approx(0.5))
    (row,) = reasoning(arm="plain", task="GSM8K")
    assert (row["end to end"], row["decoding"], row["equal outputs"]) == (None, None, "reference")


def test_other_answers_refuse_a_speedup():
    changed = [*SEARCHES[:3], group_of("seed", 1, 1.0, token_ids=(9,) * 10)]
    (row,) = reasoning(records=changed, arm="seed")
    assert row["end to end"].startswith("refused")
    assert row["equal outputs"] == "1/2, 1 DIFFER"


def test_answers_are_counted_and_failed_searches_have_no_speedup():
    (row,) = reasoning("reasoning_table_answers", arm="seed", task="GSM8K")
    assert (row["items"], row["failed"], row["correct"], row["accuracy"]) == (2, 0, 1, 0.5)
    assert (row["sequences/item"], row["unparsable"]) == (3, 2)
    assert reasoning(arm="seed", task="Creative Writing") == []
    (row,) = reasoning("reasoning_table_answers", arm="seed", task="Creative Writing")
    assert (row["items"], row["failed"], row["correct"]) == (1, 1, None)


# --- Table 2: generator and evaluator apart -----------------------------------------------------------------------

ROLES = [
    group_of("plain", 0, 9.0, roles={"generator": role_of(4.0, drafted=0), "evaluator": role_of(3.0, prefill=1.0)}),
    group_of("seed", 0, 9.0, roles={"generator": role_of(2.0), "evaluator": role_of(1.5, prefill=0.5)}),
    group_of("plain", 1, 9.0, roles={"generator": role_of(8.0, drafted=0)}),
    group_of("seed", 1, 9.0, roles={"generator": role_of(1.0, accepted=15, steps=10)}),
]


def roles(published=None, **wanted):
    return rows_in(Roles(published=published), "roles", ROLES, **wanted)


def test_a_component_has_its_own_speedup_and_counts():
    """Ratios 2 and 8 of the generator; of the evaluator 3 / 1.5, with prefills 4 / 2."""
    (generator,) = roles(component="generator", arm="seed")
    assert generator["decoding vs plain"].startswith("4.00x [")
    assert (generator["sequences"], generator["tokens"], generator["alpha"]) == (6, 20, 0.5)
    assert generator["tokens/step"] == generator["accepted/step"] == pytest.approx(20 / 15)
    (evaluator,) = roles(component="evaluator", arm="seed")
    assert evaluator["decoding vs plain"] == evaluator["with prefills"] == "2.00x (one prompt)"
    (plain,) = roles(component="generator", arm="plain")
    assert (plain["accepted/step"], plain["alpha"], plain["with prefills"]) == (None, None, None)


# --- Time lines ---------------------------------------------------------------------------------------------------


def test_an_arm_has_a_trace_of_the_first_prompt():
    analysis = TimeLines()
    analysis.begin(dict.fromkeys(["plain", "SEED, n=3"]))
    for prompt in ("p0", "p1"):
        for arm in ("plain", "SEED, n=3"):
            analysis.observe_run(arm, prompt, overlapping())
    report = analysis.report([])
    assert list(report.files) == ["time_lines_trace_plain.json", "time_lines_trace_seed_n_3.json"]
    events = json.loads(report.files["time_lines_trace_seed_n_3.json"])["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == ["SEED, n=3: p0"]
