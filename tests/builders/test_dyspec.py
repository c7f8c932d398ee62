"""DySpec's trees against a textbook heap and against all trees; the threshold's and the beam's by hand."""

import heapq
from functools import cache
from math import prod

import numpy as np
import pytest
from helpers.contracts import contract_of
from helpers.examples import examples
from hypothesis import given, strategies as st

from specexp.builders import BeamRerank, DySpecGreedy, DySpecThreshold
from specexp.core.context import Context
from specexp.core.dialogue import Plan, Request
from specexp.core.tree import NodeKind
from specexp.testing.builders import DrawingTreeBuilderContract, TreeBuilderContract
from specexp.testing.fakes import DistributionDrafter, result_of

SELECTIONS = ("drawn", "top-k")


TestGreedyDrawn = contract_of(DrawingTreeBuilderContract, lambda: DySpecGreedy(budget=12))
TestGreedyTopK = contract_of(TreeBuilderContract, lambda: DySpecGreedy(20, prefetch=1, max_depth=4, candidates="top-k"))
TestGreedyCalibrated = contract_of(DrawingTreeBuilderContract, lambda: DySpecGreedy(budget=12, acceptance_power=0.5))
TestThresholdDrawn = contract_of(DrawingTreeBuilderContract, lambda: DySpecThreshold(threshold=0.1, max_nodes=20))
TestThresholdInLayers = contract_of(DrawingTreeBuilderContract, lambda: DySpecThreshold(0.02, 9, cap="layers"))
TestThresholdTopK = contract_of(TreeBuilderContract, lambda: DySpecThreshold(0.05, 9, max_depth=3, candidates="top-k"))
TestBeam = contract_of(TreeBuilderContract, lambda: BeamRerank(budget=12, depth=4, beam=5))


def random_draft(vocabulary, concentration, seed):
    """Distributions that depend on the whole path; nothing between 0 and 1e-4, so that "used up" is clear."""

    @cache
    def distribution(tokens):
        generator = np.random.default_rng([seed, *tokens])
        shares = generator.dirichlet([concentration] * vocabulary)
        shares[shares < 1e-4] = 0.0
        return tuple((shares / shares.sum()).tolist())

    return DistributionDrafter(distribution, max_candidates=vocabulary)


def fixed_draft(*probabilities):
    return DistributionDrafter(lambda tokens: probabilities)


def build(builder, drafter, context=None, plan=None):
    """Return the tree of one step, and its number of draft passes."""
    context = Context([0]) if context is None else context
    drafter.begin(context, None)
    passes = []

    def answer(request):
        candidates = drafter.propose(context, request)
        passes.extend(candidates.pass_tokens)
        return candidates

    return result_of(builder.build(context.root, plan or Plan()), answer), len(passes)


class Draft:
    """The drafter's answer below any rank path: tokens in order and their probabilities."""

    def __init__(self, drafter, context, selection):
        self.drafter, self.context = drafter, context
        self.kind = NodeKind.DRAWN if selection == "drawn" else NodeKind.POINT_MASS
        self.known = {}

    def below(self, path):
        if path not in self.known:
            tokens, parents, ranks = [self.context.root], [-1], [-1]
            for depth, rank in enumerate(path):
                tokens.append(self.below(path[:depth])[0][rank])
                parents.append(depth)
                ranks.append(rank)
            row = np.array([len(path)])
            k = len(self.drafter.distribution((*self.context.token_ids.tolist(), *tokens[1:])))
            request = Request(np.array(tokens), np.array(parents), np.array(ranks), row, k, self.kind)
            answer = self.drafter.propose(self.context, request)
            there = answer.tokens[0] >= 0
            probabilities = np.exp(answer.log_probs[0][there].astype(np.float64))
            self.known[path] = answer.tokens[0][there].tolist(), probabilities.tolist()
        return self.known[path]


def textbook_tree(draft, budget, max_depth=None, power=1.0):
    """Algorithm 1, read correctly: one heap entry for each sampling that may come next, one node at a time.

    With a power other than 1 a candidate is taken to be accepted with the probability it is drawn with to that power.
    """
    tree, weights, heap = {}, {(): 1.0}, []

    def acceptance(probabilities, rank):
        return min(probabilities[rank] / (1.0 - sum(probabilities[:rank])), 1.0) ** power

    def push(parent, rank):
        tokens, probabilities = draft.below(parent)
        if rank == len(tokens) or len(parent) == max_depth:
            return
        left = max(1.0 - sum(probabilities[:rank]), 0.0)
        if power != 1:
            left = prod(1.0 - acceptance(probabilities, elder) for elder in range(rank))
        share = left if draft.kind is NodeKind.DRAWN else probabilities[rank]
        heapq.heappush(heap, (-weights[parent] * share, len(parent) + 1, (*parent, rank)))

    push((), 0)
    while heap and len(tree) < budget:
        value, _, path = heapq.heappop(heap)
        parent, rank = path[:-1], path[-1]
        tokens, probabilities = draft.below(parent)
        tree[path] = tokens[rank]
        weights[path] = weights[parent] * probabilities[rank]
        if power != 1:
            weights[path] = -value * acceptance(probabilities, rank)
        elif draft.kind is NodeKind.DRAWN:
            weights[path] = min(weights[path], -value)  # rounding
        push(parent, rank + 1)
        push(path, 0)
    return tree


def as_paths(tree):
    return dict(zip(tree.shape.rank_paths[1:], tree.tokens[1:].tolist(), strict=True))


def values(tree):
    """Return each node's value: the probability that its draw is reached, or the product of draft probabilities."""
    probability = np.exp(tree.log_probs.astype(np.float64))
    found, product = [], {0: 1.0}
    for row in range(1, tree.tokens.size):
        parent = int(tree.shape.parents[row])
        product[row] = product[parent] * probability[row]
        elder = [child for child in tree.shape.children[parent] if child < row]
        drawn = tree.kind(row) is NodeKind.DRAWN
        found.append(product[parent] * (1 - probability[elder].sum()) if drawn else product[row])
    return np.array(found)


selections = st.sampled_from(SELECTIONS)
drafts = st.builds(random_draft, st.integers(2, 8), st.sampled_from([0.05, 0.3, 1.0, 4.0]), st.integers(0, 10**6))


@examples(230)
@given(
    drafts,
    st.sampled_from([("top-k", 1.0), ("drawn", 1.0), ("drawn", 0.2), ("drawn", 0.4), ("drawn", 0.8)]),
    st.integers(1, 24),
    st.none() | st.integers(1, 5),
    st.sampled_from([1, 3, 32]),
)
def test_the_greedy_tree_is_the_textbook_heaps(drafter, kind, budget, max_depth, prefetch):
    (selection, power), context = kind, Context([1, 2], sequence="heap")
    expected = textbook_tree(Draft(drafter, context, selection), budget, max_depth, power)
    builder = DySpecGreedy(budget, prefetch, max_depth, selection, power)
    assert as_paths(build(builder, drafter, context)[0]) == expected


def test_an_estimate_of_acceptance_is_for_draws_alone():
    with pytest.raises(ValueError, match=r"acceptance_power must be 1 with top-k candidates, got 0\.5"):
        DySpecGreedy(8, candidates="top-k", acceptance_power=0.5)


@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("budget", [1, 3, 6, 11, 19])
@pytest.mark.parametrize("shares", [(0.25,) * 4, (0.5, 0.5), (0.5, 0.25, 0.25), (0.0, 1.0, 0.0), (0.4, 0.3, 0.3)])
def test_ties_go_to_the_shallower_node_then_to_the_lower_rank_path(shares, budget, selection):
    drafter, context = fixed_draft(*shares), Context([0], sequence=budget)
    expected = textbook_tree(Draft(drafter, context, selection), budget)
    for prefetch in (1, 2, 64):
        tree, _ = build(DySpecGreedy(budget, prefetch, candidates=selection), drafter, context)
        assert as_paths(tree) == expected


@pytest.mark.parametrize("steps", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_the_tree_does_not_depend_on_how_many_nodes_are_drafted_together(steps):
    """With noise in call order instead of by place only some would agree."""
    passes = dict.fromkeys((1, 2, 4, 16, 64), 0)
    depths = 0
    for step in range(steps):
        drafter = random_draft(7, (0.1, 0.4, 1.0)[step % 3], step)
        context, selection = Context([step % 7, 3], sequence=step), SELECTIONS[step % 5 == 0]
        trees = []
        for prefetch in passes:
            tree, taken = build(DySpecGreedy(10, prefetch, candidates=selection), drafter, context)
            trees.append(tree)
            passes[prefetch] += taken
            if prefetch == 1 and selection == "drawn":
                assert taken == sum(map(bool, tree.shape.children))  # the paper's: a pass a node with children
        depths += trees[0].shape.max_depth
        for other in trees[1:]:
            assert other.tokens.tolist() == trees[0].tokens.tolist()
            assert other.shape.parents.tolist() == trees[0].shape.parents.tolist()
            assert other.shape.ranks.tolist() == trees[0].shape.ranks.tolist()
            if selection == "drawn":
                assert (other.kinds == trees[0].kinds).all()
                assert other.q.keys() == trees[0].q.keys()
                assert all((other.q[row] == trees[0].q[row]).all() for row in other.q)
    assert passes[1] > passes[2] > passes[4] > passes[16] >= passes[64] >= depths
    assert passes[16] <= depths + steps


def sums_of_all_closed_trees(draft, size, path=(), rank=0, weight=1.0, left=1.0):
    """Yield the sum of values of every closed tree of ``size`` nodes among the siblings from ``rank`` on and below."""
    if size == 0:
        yield 0.0
        return
    tokens, probabilities = draft.below(path)
    if rank == len(tokens):
        return
    probability = probabilities[rank]
    younger = weight, left - probability
    if draft.kind is NodeKind.POINT_MASS:  # the best candidates may be picked freely; draws come in order
        yield from sums_of_all_closed_trees(draft, size, path, rank + 1, *younger)
    value = weight * (left if draft.kind is NodeKind.DRAWN else probability)
    for inside in range(size):
        below = list(sums_of_all_closed_trees(draft, inside, (*path, rank), 0, weight * probability))
        beside = list(sums_of_all_closed_trees(draft, size - 1 - inside, path, rank + 1, *younger)) if below else []
        yield from (value + one + other for one in below for other in beside)


@examples(60)
@given(
    st.builds(random_draft, st.integers(2, 4), st.sampled_from([0.3, 1.0, 4.0]), st.integers(0, 10**6)),
    selections,
    st.integers(1, 6),
    st.integers(0, 3),
)
def test_no_closed_tree_of_the_same_size_is_worth_more(drafter, selection, budget, sequence):
    """Of the same draws, if it draws (eq. 11); of all candidates otherwise (appendix D.1)."""
    context = Context([1], sequence=sequence)
    sums = list(sums_of_all_closed_trees(Draft(drafter, context, selection), budget))
    tree, _ = build(DySpecGreedy(budget, candidates=selection), drafter, context)
    assert tree.num_nodes == budget
    assert values(tree).sum() == pytest.approx(max(sums), abs=1e-6)
    assert tree.values[1:] == pytest.approx(values(tree), abs=1e-6)


@pytest.mark.parametrize("selection", SELECTIONS)
def test_limits_of_depth_and_of_the_plan(selection):
    drafter = random_draft(6, 0.3, 1)
    context = Context([0], sequence=5)
    draft = Draft(drafter, context, selection)
    tree, passes = build(DySpecGreedy(15, max_depth=2, candidates=selection), drafter, context)
    assert as_paths(tree) == textbook_tree(draft, 15, max_depth=2)
    assert passes == 2
    for plan in (Plan(max_nodes=4), Plan(max_depth=1), Plan(max_nodes=9, max_depth=3)):
        tree, _ = build(DySpecGreedy(15, max_depth=4, candidates=selection), drafter, context, plan)
        assert as_paths(tree) == textbook_tree(draft, plan.max_nodes or 15, plan.max_depth or 4)


def samplings_above(draft, threshold, max_depth):
    """Return the samplings of at least the threshold, with their values."""
    found, layer = {}, [((), 1.0)]
    while layer:
        path, weight = layer.pop()
        left = 1.0
        for rank, probability in enumerate(draft.below(path)[1]):
            value = weight * (left if draft.kind is NodeKind.DRAWN else probability)
            if value < threshold or len(path) == max_depth:
                break
            found[(*path, rank)] = value
            layer.append(((*path, rank), weight * probability))
            left -= probability
    return found


@examples(100)
@given(drafts, selections, st.floats(0.02, 1.0), st.integers(1, 12))
def test_the_threshold_tree_holds_every_sampling_of_at_least_the_threshold(drafter, selection, threshold, max_depth):
    context = Context([1, 2], sequence="threshold")
    expected = samplings_above(Draft(drafter, context, selection), threshold, max_depth)
    tree, passes = build(DySpecThreshold(threshold, 4096, max_depth, selection), drafter, context)
    assert set(as_paths(tree)) == set(expected)
    if selection == "drawn":
        assert passes == tree.shape.max_depth
    else:  # the last may show that all candidates are below the threshold
        assert tree.shape.max_depth <= passes <= tree.shape.max_depth + 1


@examples(60)
@given(drafts, selections, st.integers(1, 20))
def test_the_smallest_value_of_a_greedy_tree_is_its_threshold(drafter, selection, budget):
    context = Context([4], sequence="both")
    greedy, _ = build(DySpecGreedy(budget, candidates=selection), drafter, context)
    smallest = float(values(greedy).min()) * (1 - 1e-6)
    layered, _ = build(DySpecThreshold(smallest, 4096, 24, selection), drafter, context)
    assert as_paths(greedy).items() <= as_paths(layered).items()
    beyond = set(as_paths(layered)) - set(as_paths(greedy))
    by_path = dict(zip(layered.shape.rank_paths[1:], values(layered), strict=True))
    assert all(by_path[path] == pytest.approx(smallest, rel=1e-5) for path in beyond)  # ties only


@pytest.mark.parametrize(
    ("cap", "expected"),
    [
        ("best", [(0,), (1,), (0, 0), (0, 0, 0), (0, 0, 0, 0)]),
        ("layers", [(0,), (1,), (0, 0), (0, 1), (1, 0)]),
    ],
)
def test_the_cap_keeps_the_best_of_all_layers_or_as_published_whole_layers(cap, expected):
    """Values by depth: 0.7 0.3, then 0.49 0.21 0.21 0.09, then 0.343 ..., then 0.2401 ...: five of at least 0.2."""
    tree, _ = build(DySpecThreshold(0.2, 5, candidates="top-k", cap=cap), fixed_draft(0.7, 0.3))
    assert sorted(as_paths(tree)) == sorted(expected)
    whole, _ = build(DySpecThreshold(0.2, 64, candidates="top-k", cap=cap), fixed_draft(0.7, 0.3))
    assert sorted(as_paths(whole)) == sorted({*expected, (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 0, 0, 0)})


@pytest.mark.parametrize("max_nodes", [1, 3, 4, 6, 11])
def test_a_full_threshold_tree_has_the_most_valuable_samplings(max_nodes):
    """By layers, v of the root's draws is 1, 3/4, 1/2, 1/4; below each of them 1/4, 3/16, 1/8, 1/16."""
    tree, passes = build(DySpecThreshold(0.2, max_nodes), fixed_draft(0.25, 0.25, 0.25, 0.25))
    expected = [(0,), (1,), (2,), (3,), (0, 0), (1, 0), (2, 0), (3, 0)][:max_nodes]
    assert list(tree.shape.rank_paths[1:]) == expected
    assert passes == tree.shape.max_depth


@examples(60)
@given(drafts, selections, st.integers(1, 20))
def test_a_full_threshold_tree_is_the_greedy_one(drafter, selection, budget):
    context = Context([4], sequence="both")
    greedy, _ = build(DySpecGreedy(budget, max_depth=12, candidates=selection), drafter, context)
    layered, _ = build(DySpecThreshold(1e-9, budget, 12, selection), drafter, context)
    assert as_paths(layered) == as_paths(greedy)


def test_a_planned_threshold_goes_first():
    drafter = fixed_draft(0.5, 0.25, 0.25)
    tree, _ = build(DySpecThreshold(0.9, candidates="top-k"), drafter, plan=Plan(threshold=0.2))
    assert tree.shape.rank_paths[1:] == ((0,), (1,), (2,), (0, 0))
    tree, _ = build(DySpecThreshold(0.01, candidates="top-k"), drafter, plan=Plan(threshold=0.4))
    assert tree.shape.rank_paths[1:] == ((0,),)


BEAM = {
    (): (0.6, 0.3, 0.1),
    (0,): (0.6, 0.3, 0.1),
    (1,): (0.05, 0.05, 0.9),
    (2,): (0.0, 1.0, 0.0),
    (0, 0): (0.1, 0.8, 0.1),
    (1, 2): (0.9, 0.1, 0.0),
}


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (1, {(0,): 0.6}),
        (4, {(0,): 0.6, (0, 0): 0.36, (1,): 0.3, (0, 0, 1): 0.288}),
        (6, {(0,): 0.6, (0, 0): 0.36, (1,): 0.3, (0, 0, 1): 0.288, (1, 2): 0.27, (1, 2, 0): 0.243}),
    ],
)
def test_the_beam_keeps_the_best_of_all_its_candidates(budget, expected):
    """Beam 2: after a (0.6) and b (0.3) come aa 0.36, ab 0.18, bc 0.27, ba 0.015; of these aa and bc go on."""
    drafter = DistributionDrafter(lambda tokens: BEAM[tokens[1:]])
    tree, passes = build(BeamRerank(budget, depth=3, beam=2), drafter)
    paths = [tuple(tree.tokens[list(tree.shape.path(row))].tolist()) for row in range(1, tree.tokens.size)]
    assert dict(zip(paths, values(tree), strict=True)) == pytest.approx(expected)
    assert passes <= 3
    assert {request.kind for request in drafter.requests} == {NodeKind.POINT_MASS}
    assert tree.kinds is None
