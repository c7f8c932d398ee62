"""Acceptance by position and by category, from counts one can add up by hand."""

import pytest

from specexp.bench.record import PromptRecord, read_records, write_records
from specexp.bench.report import acceptance_tables


def record(arm, prompt, drafted=(), accepted=(), category="code"):
    return PromptRecord(
        arm, str(prompt), category, token_ids=(1, 2), steps=2, drafted_at=drafted, accepted_at=accepted
    )


RECORDS = [
    record("plain", 0),
    record("chain", 0, (4, 2), (3, 1)),
    record("chain", 1, (4,), (1,)),
    record("tree", 0, (2, 2, 2), (1,)),
]


def test_a_position_counts_in_the_steps_that_drafted_it():
    (table,) = acceptance_tables(RECORDS).values()
    chain, tree = table.records()
    assert (chain["arm"], chain["1"], chain["2"], chain["3"]) == ("chain", 4 / 8, 1 / 2, None)
    assert chain["alpha"] == pytest.approx(5 / 10)
    assert (tree["1"], tree["2"], tree["3"], tree["alpha"]) == (0.5, 0.0, 0.0, 1 / 6)


def test_categories_stand_beside_each_other():
    many = [record("chain", number, (2,), (1,)) for number in range(5)]
    many += [record("chain", 10 + number, (4,), (1,), "chat") for number in range(5)]
    (row,) = acceptance_tables(many)["acceptance"].records()
    assert (row["code"], row["chat"], row["all"]) == (0.5, 0.25, 10 / 30)


def test_nothing_is_told_where_nothing_was_drafted():
    assert acceptance_tables(RECORDS[:1]) == {}


def test_positions_are_kept_in_a_records_line(tmp_path):
    write_records(tmp_path / "records.jsonl", RECORDS)
    assert read_records(tmp_path / "records.jsonl") == RECORDS
