"""Figures on resamples of the prompts: sums over sums, geometric means, and intervals of paired ratios."""

import pytest
from helpers.made_records import record

from experiments.reproduce.resampled import Resampled, interval, widened
from specexp.bench.record import Role, SequenceGroup

pytestmark = pytest.mark.unit


def record_of(arm, prompt, tokens=8, steps=8, seconds=8.0, **more):
    return record(arm, prompt, seconds, token_ids=tuple(range(tokens)), steps=steps, **more)


@pytest.fixture
def found():
    """Three prompts of 2, 4 and 10 tokens; the tree takes half of the steps, and 2, 1 and 1 times less time."""
    records = []
    for prompt, (tokens, seconds) in enumerate(((2, 1.0), (4, 4.0), (10, 10.0))):
        records.append(record_of("plain", prompt, tokens, tokens, float(tokens)))
        records.append(record_of("tree", prompt, tokens, tokens // 2, seconds))
    return Resampled(records)


def test_counts_are_sums_over_sums_and_a_constant_ratio_has_no_width(found):
    assert found.figure("tokens_per_step", "plain") == [1.0, 1.0, 1.0]
    assert found.figure("tokens_per_step", "tree") == [2.0, 2.0, 2.0]


def test_throughput_is_of_all_tokens_and_speedup_the_geometric_mean_over_prompts(found):
    assert found.figure("throughput", "tree")[0] == pytest.approx(16 / 15)
    assert found.figure("speedup", "tree")[0] == pytest.approx(2 ** (1 / 3))
    low, high = found.figure("speedup", "tree")[1:]
    assert low == pytest.approx(1.0)
    assert high == pytest.approx(2.0)


def test_what_is_used_of_drafts_leaves_grafted_phrases_out():
    nodes = {"DraftModel": (6, 3), "grafted phrases": (4, 1)}
    found = Resampled([record_of("phrases", 0, drafted_nodes=10, accepted_drafts=4, nodes_by_source=nodes)])
    assert found.figure("utilisation", "phrases")[0] == 0.4
    assert found.figure("drafter_utilisation", "phrases")[0] == 0.5


def test_a_ratio_is_paired_by_prompt():
    # prompts differ much, arms by a tenth each
    records = [
        record_of(arm, prompt, tokens, 10)
        for prompt, tokens in enumerate((10, 20, 40))
        for arm, tokens in (("plain", tokens), ("tree", tokens + tokens // 10))
    ]
    found = Resampled(records)
    assert found.figure("tokens_per_step", "tree")[1] < found.figure("tokens_per_step", "plain")[2]
    ratio = interval(found.draws("tokens_per_step", "tree") / found.draws("tokens_per_step", "plain"))
    assert ratio == pytest.approx([1.1, 1.1, 1.1])


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        (4, [2.0, 2 * 2**-1.8747, 2 * 2**1.8747]),  # t 3.1824, normal 1.9600, sqrt(4 / 3)
        (8, [2.0, 2 * 2**-1.2898, 2 * 2**1.2898]),
        (1, [2.0, 1.0, 4.0]),  # no t quantile
    ],
)
def test_an_interval_is_widened_to_students_for_few_prompts(prompts, expected):
    assert widened([2.0, 1.0, 4.0], prompts) == pytest.approx(expected, rel=1e-3)


def test_a_figure_without_an_interval_or_logarithm_is_not_widened():
    assert widened([2.0], 4) == [2.0]
    assert widened([0.5, 0.0, 1.0], 4) == [0.5, 0.0, 1.0]


def test_only_prompts_that_every_arm_answered_count():
    records = [record_of("plain", 0), record_of("plain", 1, steps=4), record_of("tree", 0)]
    assert Resampled(records).figure("tokens_per_step", "plain")[0] == 1.0


def test_a_search_has_figures_of_its_roles():
    def group(seconds, accepted, correct):
        roles = {"generator": Role(1, 8, 4, accepted, 0, 0, 1.0, seconds - 1.0, 8)}
        return SequenceGroup(1, seconds, seconds, roles=roles, correct=correct)

    records = [
        record_of("plain", 0, group=group(8.0, 0, True)),
        record_of("plain", 1, group=group(8.0, 0, False)),
        record_of("SEED", 0, group=group(4.0, 4, True)),
        record_of("SEED", 1, group=group(4.0, 2, True)),
    ]
    found = Resampled(records)
    assert found.figure("generator_alpha", "SEED")[0] == 6 / 16
    assert found.figure("generator_throughput", "SEED")[0] == 2.0
    assert found.figure("end_to_end_throughput", "SEED")[0] == 2.0


@pytest.mark.parametrize("name", ["utilisation", "throughput", "share of draft"])
def test_a_figure_that_an_arm_lacks_is_a_lookup_error(found, name):
    with pytest.raises(LookupError):
        found.figure(name, "plain")


def test_a_group_of_records_has_the_baseline_of_the_whole_run():
    records = [record_of("tree", 0, seconds=4.0), record_of("plain", 0)]  # here the tree went first
    assert Resampled(records, ["plain", "tree"]).figure("throughput", "tree")[0] == 2.0
