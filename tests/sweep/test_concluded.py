"""What confirmations leave on disk, and which of it the next one is pooled with."""

from __future__ import annotations

from pathlib import Path

from helpers.made_records import record

from specexp.bench.record import read_records
from specexp.sweep.conclusion import CONFIRM, Concluded, earlier_records, keep_records


def kept(folder: Path, confirmations: int, measured_on: str = "these") -> Concluded:
    """A study that ended after so many confirmations of one sample each, whose records lie there."""
    records = [
        record("engine", prompt, sample=sample) for prompt in range(2) for sample in range(confirmations)
    ]
    found = Concluded("end", measured_on, confirmations, "said", True)
    keep_records(folder, None, measured_on, records)
    found.save(folder)
    return found


def test_what_a_confirmation_left_that_was_never_concluded_is_replaced(tmp_path: Path) -> None:
    keep_records(tmp_path, None, "these", [record("engine", 0), record("trial 3", 0)])
    assert earlier_records(tmp_path, None, "these", samples=1) == []
    again = [record("engine", 0), record("trial 7", 0)]
    keep_records(tmp_path, None, "these", again)
    assert read_records(tmp_path / CONFIRM) == again
    assert {path.name for path in tmp_path.iterdir()} == {CONFIRM}


def test_a_further_confirmation_is_pooled_with_those_that_were_concluded(tmp_path: Path) -> None:
    before = kept(tmp_path, 2)
    earlier = earlier_records(tmp_path, before, "these", samples=1)
    assert [one.key for one in earlier] == [("p0", 0), ("p0", 1), ("p1", 0), ("p1", 1)]
    killed = [*earlier, record("engine", 0, sample=2)]  # between its records and its conclusion
    keep_records(tmp_path, before, "these", killed)
    assert earlier_records(tmp_path, before, "these", samples=1) == earlier


def test_records_of_other_prompts_are_put_aside(tmp_path: Path) -> None:
    before = kept(tmp_path, 1, "other")
    aside = read_records(tmp_path / CONFIRM)
    assert earlier_records(tmp_path, before, "these", samples=1) == []
    keep_records(tmp_path, before, "these", [record("engine", 5)])
    assert read_records(tmp_path / "confirm.1.jsonl") == aside
    assert [one.prompt_id for one in read_records(tmp_path / CONFIRM)] == ["p5"]
