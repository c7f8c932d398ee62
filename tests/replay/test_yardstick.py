"""The yardstick: no tree of its size expects more at all positions, and replay alone may beat it."""

from functools import cache

import pytest
from helpers.examples import examples
from helpers.fake_turns import LIMIT, recorded_turn
from hypothesis import given, strategies as st

from specexp.builders import Sequoia
from specexp.builders.fixed_shape import FixedShape
from specexp.core.latency import LatencyProfile
from specexp.core.tree import TreeShape
from specexp.replay.play.expected_tokens import RankPathHits
from specexp.replay.play.ranks import MISSED, RankTable
from specexp.replay.play.yardstick import yardstick

PROFILE = LatencyProfile(
    "of a test",
    {1: 9.0, 4: 11.0, 16: 20.0},
    {1: 1.0, 2: 1.3, 8: 2.0},
    step_ms=0.7,
    node_ms=0.05,
    token_ms=0.11,
    prefix_tokens=8,
    target_prefix_ms=30.0,
    draft_prefix_token_ms=3.0,
)
STEPS = LatencyProfile("a step costs the same whatever it feeds", {1: 10.0}, {1: 0.0})
RANKS = st.lists(st.sampled_from([MISSED, 0, 0, 1, 1, 2]), min_size=4, max_size=20).filter(
    lambda ranks: max(ranks[:-1]) >= 0
)


@cache
def all_trees(nodes, width=3, depth=3):
    """Every tree of so many nodes, as a sorted tuple of rank paths."""
    if nodes == 0:
        return {()}
    grown = set()
    for tree in all_trees(nodes - 1, width, depth):
        for parent in [(), *tree]:
            if len(parent) < depth:
                grown |= {
                    tuple(sorted((*tree, (*parent, rank))))
                    for rank in range(width)
                    if (*parent, rank) not in tree
                }
    return grown


def measured(turns, profile=PROFILE, max_nodes=6, max_depth=3, limit=64):
    return yardstick(RankTable(turns, limit, LIMIT), profile, max_nodes=max_nodes, max_depth=max_depth)


def hits_of(table, max_depth):
    return RankPathHits(table.paths(max_depth), float(table.prefixes.mean()))


@given(RANKS)
@examples(25)
def test_no_tree_of_as_many_nodes_has_more_expected_tokens_at_all_positions(ranks):
    found = hits_of(RankTable([recorded_turn(ranks)], len(ranks), LIMIT), max_depth=3)
    ordered = sorted(found.hits.values(), reverse=True)
    for nodes in range(1, 5):
        best = max(found.tokens_per_step(tree) for tree in all_trees(nodes))
        assert best == pytest.approx(1 + sum(ordered[:nodes]) / found.positions)


def test_nor_has_any_tree_of_six_nodes():
    turn = recorded_turn([0, 1, 0, 2, 0, 1, MISSED, 0, 0, 1, 2, 0, 1, 0, 0, 2, MISSED, 1, 0, 1])
    found = hits_of(RankTable([turn], 20, LIMIT), max_depth=3)
    best = max(found.tokens_per_step(tree) for tree in all_trees(6))
    chosen = measured([turn], STEPS, limit=20).most_hit
    assert chosen.nodes == 6
    assert chosen.expected_tokens_per_step == pytest.approx(best)


@given(RANKS)
@examples(25)
def test_hits_are_what_a_tree_would_accept_below_every_root(ranks):
    table = RankTable([recorded_turn(ranks, ends_by="eos")], 64, LIMIT)
    found = hits_of(table, max_depth=4)
    every = sorted(found.hits, key=lambda path: (len(path), path))
    for tree in (every, [path for path in every if len(path) <= 2]):
        accepted, _ = table.matches(TreeShape.from_rank_paths(tree))
        below = accepted.clip(max=table.room).clip(max=table.left)
        assert found.tokens_per_step(tree) == pytest.approx(1 + below.mean())


def test_a_run_visits_only_its_own_roots_so_another_tree_may_beat_the_yardstick():
    turn = recorded_turn([0, 2, 0, 1, 0, 1], ends_by="eos")
    found = measured([turn], STEPS, max_nodes=3)
    assert found.best.rank_paths == [[0], [1], [0, 1]]  # the longest ends a step later, and is hit less often
    table = RankTable([turn], 64, LIMIT)
    searched = table.evaluate(TreeShape.from_rank_paths([[0], [0, 1], [0, 1, 0]]), STEPS)
    assert (searched.steps[0], round(6 / found.best.tokens_per_step)) == (2, 3)
    assert found.share(searched.tokens_per_second) == pytest.approx(1.5)
    assert "150.0 % of the best static tree" in found.sentences("the winner", searched.tokens_per_second)[0]
    assert "visits only its own roots" in found.sentences("the winner", searched.tokens_per_second)[0]


@given(RANKS, st.sampled_from([PROFILE, STEPS]))
@examples(20)
def test_the_promise_is_of_the_cost_of_a_mean_step(ranks, profile):
    """Chosen by hand among all sizes and depth limits of both families."""
    turn = recorded_turn(ranks)
    found = measured([turn], profile, limit=len(ranks))
    table = RankTable([turn], len(ranks), LIMIT)
    hits = hits_of(table, max_depth=3)
    for tree in (found.most_hit, found.sequoia):
        paths = [tuple(path) for path in tree.rank_paths]
        shape = FixedShape.from_rank_paths(paths)
        leaves = [path for path in paths if not any(other[:-1] == path for other in paths)]
        ends = sum(hits.hits[path] for path in leaves) / hits.positions
        tokens, prefix = tree.expected_tokens_per_step, round(hits.prefix)
        fed = [level.parents.size for level in shape.levels][1:]
        seconds = sum(
            share * profile.step_seconds(len(paths) + 1, [first, *fed], 1, prefix)
            for share, first in ((1 - ends, 1), (ends, 2))
        )
        seconds += profile.token_ms * (tokens - 1) / 1e3
        assert tree.expected_goodput == pytest.approx(tokens / seconds)
        replayed = table.evaluate(shape, profile)
        assert (tree.goodput, tree.tokens_per_step) == (replayed.tokens_per_second, replayed.tokens_per_step)
    assert found.most_hit.expected_tokens_per_step == pytest.approx(
        hits.tokens_per_step(tuple(path) for path in found.most_hit.rank_paths)
    )


def test_sequoias_tree_is_the_builders_for_the_same_vector_and_times():
    turn = recorded_turn([0, 1, 0, 0, MISSED, 0, 0, 1, 2, 0, 0, 0, MISSED, 0, 1, 0, 0, 0])
    flat = LatencyProfile("flat", {1: 9.0, 4: 11.0, 16: 20.0}, {1: 1.0})  # what the builder takes
    found = measured([turn], flat, max_nodes=8, max_depth=8, limit=18)
    shares = hits_of(RankTable([turn], 18, LIMIT), 8).acceptance
    assert shares == pytest.approx((11 / 17, 3 / 17, 1 / 17, 2 / 17))  # none is asked for the last
    built = Sequoia(8, list(shares), max_depth=8, target_ms=[[1, 9.0], [4, 11.0], [16, 20.0]], draft_ms=1.0)
    assert found.sequoia.rank_paths == built.rank_paths
    assert found.sequoia.expected_tokens_per_step == pytest.approx(built.expected_tokens_per_step)


def test_the_curve_has_a_knee_and_the_frontier_never_falls():
    turn = recorded_turn([0, 1, 0, 2, 0, 1, MISSED, 0, 0, 1, 2, 0, 1, 0, 0, 2, MISSED, 1, 0, 1])
    found = measured([turn], PROFILE, limit=20)
    assert [point.nodes for point in found.curve] == [1, 2, 3, 4, 5, 6]
    rates = [point.goodput for point in found.frontier]
    assert rates == sorted(rates)
    assert max(rates) == max(point.goodput for point in found.curve)
    assert found.knee.goodput >= 0.99 * max(rates)
    assert all(point.goodput < 0.99 * max(rates) for point in found.curve if point.nodes < found.knee.nodes)
    assert any("same prompts" in sentence for sentence in found.sentences("it", 1.0))


def test_plain_decoding_is_charged_what_the_profile_charges_it():
    turn = recorded_turn([MISSED, 0, MISSED, MISSED, MISSED])
    dear = LatencyProfile("dear drafts", {1: 10.0}, {1: 50.0})
    found = measured([turn], dear, limit=5)
    assert found.plain_goodput == pytest.approx(100)
    assert "plain decoding gives 100.0 tokens/s" in found.sentences("it", 50.0)[-1]


def test_a_draft_that_is_never_right_has_no_yardstick():
    with pytest.raises(ValueError, match="no accepted path"):
        measured([recorded_turn([MISSED, MISSED])], limit=2)


def test_a_profile_without_a_draft_pass_is_refused():
    with pytest.raises(ValueError, match="states no draft_ms"):
        measured([recorded_turn([0, 0])], LatencyProfile("target alone", {1: 1.0}), limit=2)
