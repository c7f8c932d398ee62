"""The tests of a joint refuse verifiers and builders that are broken on purpose, and pass the same ones unbroken.

Each break leaves an output that looks plausible token by token; each is a mistake met in print or easily made.
"""

from dataclasses import replace

import numpy as np
import pytest

from specexp.builders import Chain, StaticTree
from specexp.core.dialogue import Verdict
from specexp.core.parts import Parts
from specexp.core.tree import NodeKind
from specexp.drafters import DraftModel, PromptLookup
from specexp.verifiers import RejectionSampling, SampleMatch
from specexp.verifiers.rejection_sampling import normalised, sample, without
from specexp.verify.joint import joint_test
from specexp.verify.statistics import goodness_of_fit

WIDE = [[0], [1], [2]]
LEVEL = 1e-4
"""At which each break is refused: far beyond chance."""
FEW, MANY = 240, 640
"""Triples of tokens of each toy; many for breaks that show in few of them."""


class NormalNoise(RejectionSampling):
    """The paper's printed algorithm: normal instead of uniform numbers."""

    def uniforms(self, context, tree):
        seed = [*context.target_noise_key, len(context)]
        return np.random.default_rng(seed).standard_normal(tree.num_nodes + 1).tolist()


class FrozenNoise(RejectionSampling):
    """The same numbers in every step of a sequence."""

    def uniforms(self, context, tree):
        return context.uniforms("verify", 0, size=tree.num_nodes + 1).tolist()


class FrozenMatch(SampleMatch):
    """Sample and match whose every step draws with the first step's numbers."""

    def verify(self, context, tree, logits):
        uniforms = context.uniforms("verify", 0, size=tree.shape.max_depth + 1).tolist()
        accepted, row = [], 0
        for uniform in uniforms:
            token = sample(self.processors.probabilities(logits[row]), uniform)
            child = tree.child_with_token(row, token)
            if child is None:
                break
            accepted.append(child)
            row = child
        return Verdict(tuple(accepted), token)


class Rule(RejectionSampling):
    """The rule for drawn children once more, with two switches."""

    zero_q = True
    normalise_residual = True

    def try_children(self, tree, row, left, uniforms):
        if not tree.shape.children[row]:
            return None, left
        q = normalised(tree.q[row].astype(np.float64))
        for child in tree.draw_order(row):
            token = int(tree.tokens[child])
            assert tree.kind(child) is NodeKind.DRAWN
            if next(uniforms) * q[token] < left[token]:
                return child, left
            rest = np.maximum(left - q, 0.0)
            if rest.any():
                left = normalised(rest) if self.normalise_residual else rest
            if self.zero_q:
                q = without(q, token)
        return None, left


class QNotZeroed(Rule):
    """A rejected draw stays in the draft distribution."""

    zero_q = False


class ResidualNotRenormalised(Rule):
    """What is left of the target after a rejection does not sum to one."""

    normalise_residual = False


class BonusFromParent(RejectionSampling):
    """After an accepted leaf there is no token from the target there: the parent's distribution gives one."""

    def verify(self, context, tree, logits):
        verdict = super().verify(context, tree, logits)
        last = verdict.accepted[-1] if verdict.accepted else 0
        if last == 0 or tree.shape.children[last]:
            return verdict
        uniform = float(context.uniforms("bonus", len(context), size=1)[0])
        parent = self.processors.probabilities(logits[int(tree.shape.parents[last])])
        return Verdict(verdict.accepted, sample(parent, uniform))


class BonusFromDraft(RejectionSampling):
    """The bonus token after a rejection comes from the draft distribution, not from what is left of the target."""

    def verify(self, context, tree, logits):
        verdict = super().verify(context, tree, logits)
        last = verdict.accepted[-1] if verdict.accepted else 0
        if not tree.shape.children[last]:
            return verdict
        uniform = float(context.uniforms("bonus", len(context), size=1)[0])
        return Verdict(verdict.accepted, sample(normalised(tree.q[last].astype(np.float64)), uniform))


class BonusFromWholeTarget(RejectionSampling):
    """The bonus token after a rejection comes from the whole target: what was rejected may come back."""

    def verify(self, context, tree, logits):
        verdict = super().verify(context, tree, logits)
        last = verdict.accepted[-1] if verdict.accepted else 0
        if not tree.shape.children[last]:
            return verdict
        uniform = float(context.uniforms("bonus", len(context), size=1)[0])
        return Verdict(verdict.accepted, sample(self.processors.probabilities(logits[last]), uniform))


class Pruned(StaticTree):
    """Drops drawn nodes of low draft probability after drawing them."""

    least = 0.2

    def build(self, root, plan):
        tree = yield from super().build(root, plan)
        kept = np.ones(tree.tokens.size, dtype=bool)
        for row in range(1, tree.tokens.size):
            likely = np.exp(tree.log_probs[row]) >= self.least
            kept[row] = kept[tree.shape.parents[row]] and likely
        return selected(tree, kept)


class Sorted(StaticTree):
    """Tries drawn children by their draft probability, best first, instead of in the order they were drawn."""

    def build(self, root, plan):
        tree = yield from super().build(root, plan)
        order = {
            row: tuple(sorted(below, key=lambda child: -tree.log_probs[child]))
            for row, below in enumerate(tree.shape.children)
            if below
        }
        return replace(tree, draws=order)


def selected(tree, kept):
    new_row = np.cumsum(kept) - 1
    return replace(
        tree,
        shape=tree.shape.select(kept),
        tokens=tree.tokens[kept],
        log_probs=tree.log_probs[kept],
        kinds=tree.kinds[kept] if tree.kinds is not None else None,
        q={int(new_row[row]): values for row, values in (tree.q or {}).items() if kept[row]},
    )


def drawn(builder, verifier, temperature=0.5, level=LEVEL, most=FEW):
    """The laws of a composition whose draft is more peaked than the target, so that much is rejected."""
    return joint_test(
        lambda draft: Parts(DraftModel(draft, temperature), builder, verifier), most=most, level=level
    )


@pytest.mark.parametrize(
    ("verifier", "most"),
    [
        (NormalNoise, FEW),
        (QNotZeroed, MANY),
        (ResidualNotRenormalised, FEW),
        (BonusFromParent, FEW),
        (BonusFromDraft, FEW),
        (BonusFromWholeTarget, MANY),
    ],
)
def test_a_broken_verifier_is_refused(verifier, most):
    test = drawn(StaticTree(WIDE, candidates="drawn"), verifier(), most=most)
    assert not test.passed
    assert test.p_value < LEVEL


@pytest.mark.parametrize(("builder", "most"), [(Pruned, MANY), (Sorted, FEW)])
def test_a_broken_builder_is_refused(builder, most):
    test = drawn(builder(WIDE, candidates="drawn"), RejectionSampling(), most=most)
    assert not test.passed
    assert test.p_value < LEVEL


@pytest.mark.parametrize(
    "verifier", [FrozenNoise(), FrozenMatch()], ids=lambda verifier: type(verifier).__name__
)
def test_noise_frozen_across_steps_is_refused(verifier):
    test = drawn(Chain(2, "drawn"), verifier)
    assert not test.passed
    assert test.p_value < LEVEL


def test_a_pruned_chain_is_refused():
    test = drawn(Pruned([[0], [0, 0]], candidates="drawn"), RejectionSampling(), temperature=1.0)
    assert test.p_value < LEVEL


@pytest.mark.parametrize(
    ("builder", "verifier"),
    [
        (StaticTree(WIDE, candidates="drawn"), RejectionSampling()),
        pytest.param(StaticTree(WIDE, candidates="drawn"), Rule(), marks=pytest.mark.slow),
        pytest.param(Chain(2, "drawn"), RejectionSampling(), marks=pytest.mark.slow),
        (Chain(2, "drawn"), SampleMatch()),
    ],
    ids=["rejection", "rule", "chain", "sample_match"],
)
def test_the_same_parts_unbroken_pass(builder, verifier):
    assert drawn(builder, verifier, level=1e-3, most=MANY).passed


def test_frozen_noise_shows_only_across_tokens():
    """The first token of every continuation is right, so a test of it cannot see the mistake: the joints do."""
    make = lambda draft: Parts(PromptLookup(candidates=1), Chain(1), FrozenMatch())  # noqa: E731
    toy = joint_test(make, most=640, level=LEVEL).toys[0]
    assert toy.decision == "found"
    assert toy.fits["tokens"].p_value < 1e-4
    assert goodness_of_fit(toy.tally.by_place[0], np.append(toy.law, 0.0)).p_value > 1e-4


def test_point_masses_that_count_as_drawn_are_refused():
    """Top-k candidates verified as if they had been drawn: the mistake of a tree whose kinds are lost."""

    class Mislabelled(StaticTree):
        def build(self, root, plan):
            tree = yield from super().build(root, plan)
            kinds = np.full(tree.tokens.size, NodeKind.DRAWN, dtype=np.int8)
            shares = np.full(6, 1 / 6, dtype=np.float32)
            return replace(tree, kinds=kinds, q=dict.fromkeys(range(tree.tokens.size), shares))

    test = drawn(Mislabelled([[0], [1], [0, 0]]), RejectionSampling())
    assert test.p_value < LEVEL
