"""Table 1 from records whose ratios are known."""

import pytest
from helpers.made_groups import group_of, rows_in

from experiments.papers.seed.speedups import ReasoningTable, depth_of
from specexp.testing.analyses import AnalysisContract

PUBLISHED = [
    {"task": "GSM8K", "method": "SEED, (4,2,1,1)", "speedup": 1.43},
    {"task": "GSM8K", "method": "SEED, (1,1,1)", "speedup": 1.13, "depth": 3},
    {"task": "Blocksworld", "method": "SEED, (8,2,1,1,1)", "speedup": 1.39},
]


class TestReasoningTable(AnalysisContract):
    def make_analysis(self):
        return ReasoningTable(published=PUBLISHED)


RECORDS = [
    group_of("engine", 0, 4.0, correct=True),
    group_of("seed", 0, 2.0, decode=0.8, correct=True, unparsable=2),
    group_of("engine", 1, 9.0, correct=False),
    group_of("seed", 1, 1.125, decode=0.9, correct=False),
    group_of("engine", 0, 1.0, task="Creative Writing"),
    group_of("seed", 0, 1.0, task="Creative Writing", error="it broke"),
]


def rows_of(table, records=RECORDS, published=None, **wanted):
    return rows_in(ReasoningTable(published=published), table, records, **wanted)


def test_speedups_are_of_the_whole_search_and_of_decoding_apart():
    """Ratios 2 and 8 end to end; 3.2 / 0.8 and 7.2 / 0.9 in decoding."""
    (row,) = rows_of("reasoning_table", arm="seed", task="GSM8K")
    assert row["end to end"] == "4.00x [2.00, 8.00]"
    assert row["decoding"] == "5.66x [4.00, 8.00]"
    assert row["tree depth"] == 4
    assert row["tokens/s"] == pytest.approx(20 / 3.125)
    assert row["tokens/step"] == 2
    assert row["target busy"] == pytest.approx(0.5)
    assert row["equal outputs"] == "2/2"


def test_plain_decoding_is_what_others_are_compared_with():
    (row,) = rows_of("reasoning_table", arm="engine", task="GSM8K")
    assert (row["end to end"], row["decoding"], row["equal outputs"]) == (None, None, "reference")


def test_other_answers_refuse_a_speedup():
    changed = [*RECORDS[:3], group_of("seed", 1, 1.0, token_ids=(9,) * 10)]
    (row,) = rows_of("reasoning_table", changed, arm="seed")
    assert row["end to end"].startswith("refused")
    assert row["equal outputs"] == "1/2, 1 DIFFER"


def test_answers_are_counted():
    (row,) = rows_of("reasoning_table_answers", arm="seed", task="GSM8K")
    assert (row["items"], row["failed"], row["correct"], row["accuracy"]) == (2, 0, 1, 0.5)
    assert (row["sequences/item"], row["evaluations unparsable"]) == (3, 2)


def test_what_failed_has_no_speed_and_is_counted():
    assert rows_of("reasoning_table", arm="seed", task="Creative Writing") == []
    (row,) = rows_of("reasoning_table_answers", arm="seed", task="Creative Writing")
    assert (row["items"], row["failed"], row["correct"]) == (1, 1, None)


def test_published_rows_stand_with_their_task():
    rows = rows_of("reasoning_table", published=PUBLISHED)
    theirs = [
        (row["task"], row["tree depth"], row["arm"], row["end to end"])
        for row in rows
        if "(not run here)" in row["arm"]
    ]
    assert theirs == [
        ("GSM8K", 4, "SEED, (4,2,1,1) (not run here)", "1.43x published"),
        ("GSM8K", 3, "SEED, (1,1,1) (not run here)", "1.13x published"),
        ("Blocksworld", 7, "SEED, (8,2,1,1,1) (not run here)", "1.39x published"),
    ]


def test_tasks_are_panels_and_arms_are_rows():
    analysis = ReasoningTable(published=PUBLISHED)
    panels = analysis.report(RECORDS).figures["reasoning_table"].axes
    assert [panel.get_title(loc="left") for panel in panels] == ["GSM8K", "Creative Writing", "Blocksworld"]
    assert [label.get_text() for label in panels[0].get_yticklabels()] == [
        "seed",
        "SEED, (4,2,1,1) (not run here)",
        "SEED, (1,1,1) (not run here)",
        "SEED, (8,2,1,1,1) (not run here)",
    ]
    told = [[(text.get_text().strip(), text.get_position()[1]) for text in panel.texts] for panel in panels]
    assert told == [[("4.00x", 0), ("1.43x", 1), ("1.13x", 2)], [], [("1.39x", 3)]]


def test_the_depth_is_known_of_tasks_alone():
    assert depth_of("Blocksworld") == 7
    assert depth_of("stdlib") is None
