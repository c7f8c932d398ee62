"""The tests of a joint find verifiers and builders that are broken on purpose, and pass the same ones unbroken.

Each break leaves an output that looks plausible token by token. Each is a mistake that was made in print, or is easily
made.
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


class OwnBonus(RejectionSampling):
    """Draws the bonus token anew, from another distribution."""

    after_leaf = False

    def bonus(self, tree, row, logits):
        raise NotImplementedError

    def verify(self, context, tree, logits):
        verdict = super().verify(context, tree, logits)
        last = verdict.accepted[-1] if verdict.accepted else 0
        is_leaf = last > 0 and not tree.shape.children[last]
        if is_leaf != self.after_leaf or not (is_leaf or tree.shape.children[last]):
            return verdict
        uniform = float(context.uniforms("bonus", len(context), size=1)[0])
        return Verdict(verdict.accepted, sample(self.bonus(tree, last, logits), uniform))


class BonusFromParent(OwnBonus):
    """After an accepted leaf, the distribution after its parent."""

    after_leaf = True

    def bonus(self, tree, row, logits):
        return self.processors.probabilities(logits[int(tree.shape.parents[row])])


class BonusFromDraft(OwnBonus):
    """After a rejection, the draft distribution instead of the residual."""

    def bonus(self, tree, row, logits):
        return normalised(tree.q[row].astype(np.float64))


class BonusFromWholeTarget(OwnBonus):
    """After a rejection, the whole target: a rejected token may come back."""

    def bonus(self, tree, row, logits):
        return self.processors.probabilities(logits[row])


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


class Mislabelled(StaticTree):
    """Top-k candidates verified as if they had been drawn: the mistake of a tree without its kinds."""

    def build(self, root, plan):
        tree = yield from super().build(root, plan)
        kinds = np.full(tree.tokens.size, NodeKind.DRAWN, dtype=np.int8)
        shares = np.full(6, 1 / 6, dtype=np.float32)
        return replace(tree, kinds=kinds, q=dict.fromkeys(range(tree.tokens.size), shares))


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
    """Test a composition with a draft more peaked than the target, so that much is rejected."""
    return joint_test(
        lambda draft: Parts(DraftModel(draft, temperature), builder, verifier), most=most, level=level
    )


def wide(builder=StaticTree):
    return builder(WIDE, candidates="drawn")


@pytest.mark.parametrize(
    ("builder", "verifier", "temperature", "most"),
    [
        (wide(), NormalNoise(), 0.5, FEW),
        (wide(), QNotZeroed(), 0.5, MANY),
        (wide(), ResidualNotRenormalised(), 0.5, FEW),
        (wide(), BonusFromParent(), 0.5, FEW),
        (wide(), BonusFromDraft(), 0.5, FEW),
        (wide(), BonusFromWholeTarget(), 0.5, MANY),
        (wide(Pruned), RejectionSampling(), 0.5, MANY),
        (wide(Sorted), RejectionSampling(), 0.5, FEW),
        (Pruned([[0], [0, 0]], candidates="drawn"), RejectionSampling(), 1.0, FEW),
        (Chain(2, "drawn"), FrozenNoise(), 0.5, FEW),
        (Chain(2, "drawn"), FrozenMatch(), 0.5, FEW),
        (Mislabelled([[0], [1], [0, 0]]), RejectionSampling(), 0.5, FEW),
    ],
    ids=lambda part: type(part).__name__,
)
def test_a_broken_part_is_found(builder, verifier, temperature, most):
    test = drawn(builder, verifier, temperature, most=most)
    assert test.decision == "found"
    assert test.p_value < LEVEL


@pytest.mark.parametrize(
    ("builder", "verifier"),
    [
        (wide(), RejectionSampling()),
        pytest.param(wide(), Rule(), marks=pytest.mark.slow),
        pytest.param(Chain(2, "drawn"), RejectionSampling(), marks=pytest.mark.slow),
        (Chain(2, "drawn"), SampleMatch()),
    ],
    ids=["rejection", "rule", "chain", "sample_match"],
)
def test_the_same_parts_unbroken_pass(builder, verifier):
    assert drawn(builder, verifier, level=1e-3, most=MANY).passed


def test_frozen_noise_shows_only_across_tokens():
    """Every token is right by its place in a step, so single tokens do not show the mistake. The joints do."""

    def make(draft):
        return Parts(PromptLookup(candidates=1), Chain(1), FrozenMatch())

    test = joint_test(make, most=640, level=LEVEL)
    assert test.decision == "found"
    assert test.fits["open: tokens"].p_value < 1e-4
