"""Records survive a round trip through JSONL, and a kill."""

import dataclasses

import pytest
from helpers.made_records import record

from specexp.bench.record import Difference, RecordError, Role, SequenceGroup, read_records, write_records


def test_round_trip(tmp_path):
    records = [
        record("engine", 0, 0.1 + 0.2),
        record("tree", 0, difference=Difference(3, 0.0625, True), state="carry"),
        record("tree", 4, difference=Difference(3, float("inf"), False), drafted_at=(2, 1), accepted_at=(1,)),
        record("tree", 5, group=SequenceGroup(2, 1.0, 0.5, 0.0, {"generator": Role(tokens=3)}, True)),
        record("tree", 1, token_ids=(), error="ValueError: too long"),
        record("tree", 2, turn_tokens=(1, 3), finish_reasons=("eos", "length")),
    ]
    path = tmp_path / "records.jsonl"
    write_records(path, records[:2])
    write_records(path, records[2:])
    assert read_records(path) == records


def test_answers_are_split_by_turn():
    assert record("tree", 0, turn_tokens=(1, 3)).answers() == [(5,), (6, 7, 8)]


def test_the_later_of_two_records_counts(tmp_path):
    first = record("tree", 0)
    second = dataclasses.replace(first, difference=Difference(0, 0.01, True))
    write_records(tmp_path / "r.jsonl", [first, record("tree", 1), second])
    assert read_records(tmp_path / "r.jsonl") == [second, record("tree", 1)]


def test_a_line_cut_short_by_a_kill_is_left_out(tmp_path):
    path = tmp_path / "r.jsonl"
    write_records(path, [record("tree", 0), record("tree", 1)])
    path.write_text(path.read_text()[:-40])
    assert read_records(path) == [record("tree", 0)]


def test_another_broken_line_is_named(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text('{"arm": "tree"}\n')
    with pytest.raises(RecordError, match=r"r\.jsonl, line 1: not a prompt record"):
        read_records(path)


def test_no_time_per_token_without_tokens_or_after_a_failure():
    assert record("tree", 0, 2.0).seconds_per_token == 0.5
    assert record("tree", 0, decode_tokens=0).seconds_per_token is None
    assert record("tree", 0, error="ValueError").seconds_per_token is None
