"""Levels by draft length, from records made by hand."""

import pytest
from helpers.made_outcomes import strategy

from experiments.papers.post_use_pre_cut.draft_length import AblationGrid
from specexp.bench.record import PromptRecord
from specexp.testing.analyses import AnalysisContract
from specexp.verifiers import Greedy

SPEEDUPS = {
    "fixed": {3: 2.0, 6: 1.5, 12: 1.0},
    "+ reuse": {3: 2.0, 6: 2.5, 12: 2.0},
}


class TestAblationGrid(AnalysisContract):
    def make_analysis(self):
        return AblationGrid(published=[{"level": "theirs", "speedups": {3: 2.29, 6: 2.67}}])


def made(speedups=SPEEDUPS, clock="measured"):
    """Two prompts by every arm, and an analysis that has seen the arms."""
    seconds = {"engine": 1.0, "lookup": 0.8}
    for level, row in speedups.items():
        seconds |= {f"{level}, length={length}": 1 / speedup for length, speedup in row.items()}
    records = [
        PromptRecord(
            arm,
            f"p{prompt}",
            "c",
            token_ids=(5,) * 12,
            turn_tokens=(12,),
            steps=4,
            decode_seconds=taken,
            decode_tokens=12,
            clock=clock,
        )
        for prompt in range(2)
        for arm, taken in seconds.items()
    ]
    return records, seconds


def report(speedups=SPEEDUPS, clock="measured", **arguments):
    records, arms = made(speedups, clock)
    analysis = AblationGrid(**arguments)
    plain = strategy(Greedy())
    analysis.begin(
        dict.fromkeys(arms, plain) | {"engine": type(plain)(None, None, Greedy(), plain.controller)}
    )
    return analysis.report(records)


def test_a_row_a_level_and_a_column_a_length():
    table = report().tables["ablation_grid"]
    rows = table.records()
    assert [row["level"] for row in rows] == ["fixed", "+ reuse", "lookup"]
    assert rows[0]["length=3"] == "2.00x (3.00)"
    assert rows[1]["length=6"] == "2.50x (3.00)"
    assert (rows[2]["any length"], rows[2]["length=3"]) == ("1.25x (3.00)", None)
    assert rows[0]["slowest / fastest"] == pytest.approx(0.5)
    assert rows[1]["slowest / fastest"] == pytest.approx(0.8)


def test_short_lengths_may_be_left_out_of_the_sensitivity():
    rows = report(spread_from=6.0).tables["ablation_grid"].records()
    assert rows[0]["slowest / fastest from 6 on"] == pytest.approx(1 / 1.5)
    assert rows[1]["slowest / fastest from 6 on"] == pytest.approx(0.8)


def test_published_levels_stand_beside_and_have_their_own_panel():
    theirs = {"level": "+ reuse", "speedups": {3: 2.33, 12: 3.19, 24: 2.63}}
    found = report(published=[theirs], spread_from=6.0)
    row = found.tables["ablation_grid"].records()[-1]
    assert row["level"] == "+ reuse, published (not run here)"
    assert (row["length=3"], row["length=6"], row["length=12"]) == ("2.33x", None, "3.19x")
    assert row["slowest / fastest from 6 on"] == pytest.approx(2.63 / 3.19)
    here, theirs = found.figures["ablation_grid"].axes
    assert theirs.get_title() == "published (not run here)"
    (line,) = theirs.get_lines()
    assert list(line.get_ydata()) == [2.33, 3.19, 2.63]
    assert line.get_color() == here.get_legend_handles_labels()[0][1].lines[0].get_color()


def test_modelled_speedups_are_called_so():
    found = report(clock="modelled: made up (assumed)")
    table = found.tables["ablation_grid"]
    assert table.title.endswith("(modelled: made up (assumed))")
    assert table.notes[0].startswith("Modelled geometric mean")
    assert found.figures["ablation_grid"].axes[0].get_ylabel() == "modelled speedup over engine"


def test_arms_that_do_not_go_on_one_grid_are_refused():
    plain = strategy(Greedy())
    with pytest.raises(ValueError, match="over one argument, but they sweep \\['length', 'nodes'\\]"):
        AblationGrid().begin(dict.fromkeys(["engine", "a, length=3", "b, nodes=8"], plain))
