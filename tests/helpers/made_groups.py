"""Records of groups and time lines made by hand, so that every figure can be computed by hand."""

from specexp.bench.record import PromptRecord, Role, SequenceGroup
from specexp.scheduling.timeline import TimeLine


def group_of(
    arm,
    item,
    wall,
    *,
    task="GSM8K",
    decode=None,
    roles=None,
    correct=None,
    unparsable=0,
    **given,
):
    """A search of 10 tokens in 5 steps that took so many seconds: a tenth of them prefills, eight tenths decoding; the
    target was busy for half of them, and somebody drafted in a fifth."""
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
    group = SequenceGroup(3, wall, 0.5 * wall, 0.2 * wall, roles or {}, correct, unparsable, {})
    return PromptRecord(arm, f"{task}/{item}", task, group=group, **values)


def role_of(decode, *, tokens=10, steps=5, accepted=5, drafted=20, prefill=0.0, sequences=3):
    return Role(sequences, tokens, steps, accepted, 2 * drafted, 0, prefill, decode, drafted)


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
    analysis.begin({"engine": None, "seed": None})
    rows = analysis.report(records).tables[table].records()
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]
