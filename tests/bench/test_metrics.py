"""A metric is declared once: whatever shows, tracks, optimises or explains figures reads its one entry."""

import pytest
from helpers.made_records import record
from hypothesis import given, strategies as st

from specexp.bench import metrics
from specexp.bench.metrics import (
    METRICS,
    Counted,
    Share,
    constraints,
    figures_of,
    figures_of_counts,
    loops,
    metric,
    metric_named,
    objectives,
    violation,
)
from specexp.bench.record import SequenceGroup
from specexp.bench.report import long_table, metric_table, results_table
from specexp.bench.statistics import summarise
from specexp.commands.run_report import summary_of

TWO = [record("tree", 0, 1.0, steps=2, drafted_nodes=8), record("tree", 1, 3.0, steps=4, drafted_nodes=4)]


def test_a_new_metric_is_one_entry_and_is_shown_tracked_optimised_and_explained(monkeypatch) -> None:
    monkeypatch.setattr(metrics, "METRICS", [*METRICS])

    @metric("share", better="lower", heading="bonus")
    def bonus_share(record):
        """Output that the target added itself."""
        return Share(record.bonus_tokens, record.new_tokens)

    records = [record("engine", 0), record("tree", 0, bonus_tokens=1)]
    assert summarise(records, "tree").bonus_share == 0.25
    assert [row["bonus"] for row in results_table(records).records()] == [1.0, 0.25]
    assert long_table(records).records()[1]["bonus_share"] == 0.25
    assert summary_of(records, "engine")["tree/bonus_share"] == 0.25
    assert objectives()["bonus_share"] == "minimize"
    assert {"max_bonus_share", "min_bonus_share"} < set(constraints())
    assert violation("max_bonus_share", 0.2, figures_of(records[1:])) == pytest.approx(0.05)
    assert [metric_table().rows[-1][0], metric_table().rows[-1][1]] == ["bonus_share", "share"]


def test_prompts_are_put_together_as_the_metric_says() -> None:
    assert metric_named("tokens_per_step").over(TWO) == pytest.approx(8 / 6)
    assert metric_named("tokens_per_step_macro").over(TWO) == pytest.approx((2 + 1) / 2)
    assert metric_named("decode_seconds").over(TWO) == 4.0
    assert metric_named("utilisation").over(TWO) == 0.0
    assert metric_named("utilisation").over([record("engine", 0)]) is None
    with pytest.raises(KeyError):
        metric_named("speed")


def test_figures_of_a_profiles_seconds_are_called_modelled() -> None:
    modelled = [record("tree", 0, clock="modelled by A100")]
    assert "modelled_tokens_per_second" in figures_of(modelled)
    assert "tokens_per_second" not in figures_of(modelled)
    assert "prefill_seconds" not in figures_of(modelled)
    assert violation("min_tokens_per_second", 5.0, figures_of(modelled)) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="different clocks"):
        figures_of([*modelled, record("tree", 1)])


def test_counts_alone_give_the_figures_of_the_records_they_sum_up() -> None:
    total = Counted(6, 8, 0, 0, drafted_nodes=12, decode_seconds=4.0, decode_tokens=8)
    found = figures_of_counts(total, "measured")
    assert found == {name: figures_of(TWO)[name] for name in found}
    assert {"tokens_per_step", "nodes_per_step", "tokens_per_second", "draft_passes_per_step"} < found.keys()


def test_a_target_is_busy_only_where_several_sequences_are_decoded() -> None:
    group = SequenceGroup(sequences=2, wall_seconds=4.0, busy_seconds=3.0, overlap_seconds=0.0)
    assert figures_of([record("tree", 0, group=group)])["target_utilisation"] == 0.75
    assert "target_utilisation" not in figures_of(TWO)


def test_every_metric_is_explained_in_a_sentence() -> None:
    assert len({one.name for one in METRICS}) == len(METRICS)
    for one in METRICS:
        assert one.description.endswith("."), one.name
        assert one.description[0].isupper(), one.name
        assert one.unit, one.name


@pytest.mark.parametrize(
    ("token_ids", "expected"),
    [
        ([7] * 24, True),
        ([7] * 23, False),
        ([1, 2, 3] + [7] * 24, True),
        ([7] * 24 + [1], False),
        (list(range(32)) * 3, True),
        (list(range(33)) * 4, False),
        (list(range(10)) * 3, True),
        (list(range(10)) * 2 + list(range(9)), False),
        ([], False),
    ],
)
def test_a_long_repeated_end_is_a_loop(token_ids: list[int], expected: bool) -> None:
    assert loops(token_ids) is expected


@given(
    head=st.lists(st.integers(0, 5), max_size=20),
    piece=st.lists(st.integers(0, 5), min_size=1, max_size=32),
    more=st.integers(0, 40),
)
def test_a_long_repetition_loops_wherever_it_is_cut(head: list[int], piece: list[int], more: int) -> None:
    repeated = (piece * 60)[: max(24, 3 * len(piece)) + more]
    assert loops(head + repeated)
