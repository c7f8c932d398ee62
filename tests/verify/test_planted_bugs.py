"""Deviations of a stated size are found or excluded: in broken parts, in healthy parts, and in pure chance.

Each broken part leaves an output that looks plausible token by token. Each is a mistake that was made in print, or is
easily made.
"""

from dataclasses import replace

import numpy as np
import pytest
from helpers.joint_test import joint_test

from specexp.builders import Chain, DySpecGreedy, ParametricTree, SpecInfer, StaticTree
from specexp.core.dialogue import Verdict
from specexp.core.noise import place_key
from specexp.core.parts import Parts
from specexp.core.tree import NodeKind
from specexp.drafters import DraftModel, TokenRecycling
from specexp.verifiers import BlockVerification, Greedy, KeyedSampling, RejectionSampling, SampleMatch
from specexp.verifiers.rejection_sampling import normalized, sample, without
from specexp.verify.joint import BLOCKS, EqualityTest, JointTest
from specexp.verify.statistics import LOOKS, SHARE
from specexp.verify.toy import LIVE, Tally, ToyLaw, ToyModel, compare_chunk, sample_chunk, toy_vocabulary

LEVEL = 1e-4
"""Level at which each broken part is refused: far beyond chance."""
FEW, MANY = 240, 640
"""Triples of tokens of each toy; many for faults that show in few of them."""


class NormalNoise(RejectionSampling):
    """The paper's printed algorithm: normal instead of uniform numbers."""

    def uniforms(self, context, tree):
        seed = [*place_key(context.seed, context.sequence, "target"), len(context)]
        return np.random.default_rng(seed).standard_normal(tree.num_nodes + 1).tolist()


class FrozenNoise(RejectionSampling):
    """The same numbers in every step of a sequence."""

    def uniforms(self, context, tree):
        return context.uniforms("verify", 0, size=tree.num_nodes + 1).tolist()


class FrozenMatch(SampleMatch):
    """Sample and match whose every step draws with the first step's numbers."""

    def verify(self, context, tree, logits):
        accepted, row = [], 0
        for uniform in context.uniforms("verify", 0, size=tree.shape.max_depth + 1).tolist():
            token = sample(self.processors.probabilities(logits[row]), uniform)
            child = tree.child_with_token(row, token)
            if child is None:
                break
            accepted.append(child)
            row = child
        return Verdict(tuple(accepted), token)


class Rule(RejectionSampling):
    """The rule once more, with three switches."""

    zero_q = True
    normalize_residual = True
    excess = 1.0

    def try_children(self, tree, row, left, uniforms):
        q = None
        for child in tree.draw_order(row):
            token, kind = int(tree.tokens[child]), tree.kind(child)
            if kind is NodeKind.POINT_MASS:
                if next(uniforms) < self.excess * left[token]:
                    return child, left
                left = without(left, token)
                continue
            q = normalized(tree.q[row].astype(np.float64)) if q is None else q
            if next(uniforms) * q[token] < self.excess * left[token]:
                return child, left
            rest = np.maximum(left - q, 0.0)
            if rest.any():
                left = normalized(rest) if self.normalize_residual else rest
            if self.zero_q and kind is NodeKind.DRAWN:
                q = without(q, token)
        return None, left


class QNotZeroed(Rule):
    """A rejected draw stays in the draft distribution."""

    zero_q = False


class ResidualNotRenormalised(Rule):
    """The rest of the target after a rejection does not sum to one."""

    normalize_residual = False


class TooEager(Rule):
    """Accepts every drafted token with 1.1 times the right probability."""

    excess = 1.1


class BonusFromWholeTarget(RejectionSampling):
    """Draws the bonus token after a rejection from the whole target: a rejected token may come back."""

    def verify(self, context, tree, logits):
        verdict = super().verify(context, tree, logits)
        last = verdict.accepted[-1] if verdict.accepted else 0
        if tree.shape.children[last]:
            return self.redrawn(context, verdict, logits[last])
        return verdict

    def redrawn(self, context, verdict, logits):
        uniform = float(context.uniforms("bonus", len(context), size=1)[0])
        return Verdict(verdict.accepted, sample(self.processors.probabilities(logits), uniform))


class BonusFromParent(BonusFromWholeTarget):
    """Draws the bonus token after an accepted leaf from the distribution after its parent."""

    def verify(self, context, tree, logits):
        verdict = RejectionSampling.verify(self, context, tree, logits)
        last = verdict.accepted[-1] if verdict.accepted else 0
        if last and not tree.shape.children[last]:
            return self.redrawn(context, verdict, logits[int(tree.shape.parents[last])])
        return verdict


class BlockRule(BlockVerification):
    """Block verification once more, with two switches."""

    own_residual = True
    early_stop = False

    def verify(self, context, tree, logits):
        uniforms = iter(self.uniforms(context, tree))
        p = [self.processors.probabilities(row) for row in logits]
        q = [normalized(tree.q[row].astype(np.float64)) for row in range(tree.num_nodes)]
        value, rests, accepted, stopped = 1.0, [p[0]], 0, False
        for i, token in enumerate(tree.tokens[1:].tolist(), 1):
            rests[-1] = np.maximum((value if self.own_residual else 1.0) * p[i - 1] - q[i - 1], 0.0)
            value = min(1.0, value * p[i - 1][token] / q[i - 1][token])
            rests.append(p[i])
            passes = value
            if i < tree.num_nodes:
                total = np.maximum(value * p[i] - q[i], 0.0).sum()
                passes = total / (total + 1 - value) if value < 1 else 1.0
            if next(uniforms) < passes:
                accepted = accepted if stopped else i
            else:
                stopped = stopped or self.early_stop
        return Verdict(tuple(range(1, accepted + 1)), sample(rests[accepted], next(uniforms)))


class TokenResidual(BlockRule):
    """Block acceptance with the residual of the token rule: ``max(p - q, 0)`` instead of ``max(a * p - q, 0)``."""

    own_residual = False


class StopsAtFirstRejection(BlockRule):
    """Accepts no prefix that is longer than the first one that fails its test."""

    early_stop = True


class Pruned(StaticTree):
    """Drops drawn nodes of low draft probability after drawing them."""

    def build(self, root, plan):
        tree = yield from super().build(root, plan)
        kept = np.ones(tree.tokens.size, dtype=bool)
        for row in range(1, tree.tokens.size):
            kept[row] = kept[tree.shape.parents[row]] and np.exp(tree.log_probs[row]) >= 0.2
        return tree.select(kept)


class Sorted(StaticTree):
    """Tries drawn children by their draft probability, best first, instead of in the order they were drawn."""

    def build(self, root, plan):
        tree = yield from super().build(root, plan)
        below = {row: children for row, children in enumerate(tree.shape.children) if children}
        order = {row: tuple(sorted(own, key=lambda child: -tree.log_probs[child])) for row, own in below.items()}
        return replace(tree, draws=order)


class Mislabelled(StaticTree):
    """Top-k candidates verified as if they had been drawn: the mistake of a tree without its kinds."""

    def build(self, root, plan):
        tree = yield from super().build(root, plan)
        kinds = np.full(tree.tokens.size, NodeKind.DRAWN, dtype=np.int8)
        shares = np.full(6, 1 / 6, dtype=np.float32)
        return replace(tree, kinds=kinds, q=dict.fromkeys(range(tree.tokens.size), shares))


class WrongQ(DraftModel):
    """States q to the power 1.1 for what it drew from q."""

    def propose(self, context, request):
        answer = super().propose(context, request)
        if answer.q is None:
            return answer
        stated = answer.q**1.1
        return replace(answer, q=stated / stated.sum(axis=-1, keepdims=True))


class WrongAt37(Greedy):
    """Adds a wrong token where the root is at a multiple of 37."""

    def verify(self, context, tree, logits):
        verdict = super().verify(context, tree, logits)
        return verdict if (len(context) - 1) % 37 else self.wrong(verdict)

    def wrong(self, verdict):
        return Verdict(verdict.accepted, (verdict.bonus + 1) % (LIVE + 1))


class WrongAfterRejection(WrongAt37):
    """Adds a wrong token where no draft was accepted, at one of seven positions."""

    def verify(self, context, tree, logits):
        verdict = Greedy.verify(self, context, tree, logits)
        is_right = verdict.accepted or not tree.num_nodes or len(context) % 7
        return verdict if is_right else self.wrong(verdict)


class Shifted(KeyedSampling):
    """Draws other noise than its own. Its output is the same with drafts and without."""

    def target_token(self, context, logits, position):
        return super().target_token(context, logits, position + (position % 37 == 0))


WIDE = [[0], [1], [2]]
DRAWN = {
    "chain": lambda: Chain(4, "drawn"),
    "dyspec": lambda: DySpecGreedy(10),
    "infer": lambda: SpecInfer([3, 2]),
    "wide": lambda: StaticTree([[0], [1], [0, 0]], candidates="drawn"),
}
RANKED = {
    "chain": lambda: Chain(3),
    "tree": lambda: ParametricTree(nodes=12, depth=4),
}


def sampled(drafter, builder, verifier):
    return lambda draft: Parts(drafter(draft), builder(), verifier)


def recycling(draft):
    return TokenRecycling(k=4, state="carry")


def drawing(draft):
    return DraftModel(draft, temperature=0.6)


def wide(builder=StaticTree):
    return builder(WIDE, candidates="drawn")


@pytest.mark.parametrize(
    ("builder", "verifier", "temperature", "most"),
    [
        (wide(), NormalNoise(), 0.5, FEW),
        (wide(), QNotZeroed(), 0.5, MANY),
        (wide(), ResidualNotRenormalised(), 0.5, FEW),
        (wide(), BonusFromParent(), 0.5, FEW),
        (wide(), BonusFromWholeTarget(), 0.5, MANY),
        (wide(Pruned), RejectionSampling(), 0.5, MANY),
        (wide(Sorted), RejectionSampling(), 0.5, FEW),
        (Pruned([[0], [0, 0]], candidates="drawn"), RejectionSampling(), 1.0, FEW),
        (Chain(2, "drawn"), FrozenNoise(), 0.5, FEW),
        (Chain(2, "drawn"), FrozenMatch(), 0.5, FEW),
        (Chain(4, "drawn"), StopsAtFirstRejection(), 0.5, FEW),
        (Mislabelled([[0], [1], [0, 0]]), RejectionSampling(), 0.5, FEW),
    ],
    ids=lambda part: type(part).__name__,
)
@pytest.mark.variants(1)
def test_a_broken_part_is_found(builder, verifier, temperature, most):
    """The draft is more peaked than the target, so that much is rejected."""
    make = sampled(lambda draft: DraftModel(draft, temperature), lambda: builder, verifier)
    test = joint_test(make, most=most, level=LEVEL)
    assert test.decision == "found"
    assert test.p_value < LEVEL


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_token_residual_with_block_acceptance_is_found():
    """The output is wrong only where a prefix of low value wins, by a total variation of some 0.05 a step."""
    law = ToyLaw()

    def chunks(manner, numbers):
        overconfident = ToyModel(3 * law.toy(manner).target.table)
        make = sampled(lambda _: DraftModel(overconfident), lambda: Chain(5, "drawn"), TokenResidual())
        return (sample_chunk(make, law, manner, number) for number in numbers)

    assert JointTest(chunks, law, True, 0.05, LEVEL, 3200).check.decision == "found"


def test_an_acceptance_that_is_a_tenth_too_frequent_is_found():
    test = joint_test(sampled(recycling, RANKED["tree"], TooEager(0.6)), temperature=0.6, most=MANY)
    assert test.decision == "found"
    assert test.evidence == "deviation found"


@pytest.mark.slow
@pytest.mark.parametrize("builder", DRAWN)
@pytest.mark.parametrize(
    ("drafter", "verifier"),
    [(drawing, TooEager), (lambda draft: WrongQ(draft, temperature=0.6), RejectionSampling)],
    ids=["too eager", "wrong q"],
)
def test_a_small_deviation_among_draws_is_found(drafter, verifier, builder):
    make = sampled(drafter, DRAWN[builder], verifier(0.6))
    assert joint_test(make, temperature=0.6).decision == "found"


def compared(make_parts, tokens=2000):
    verifier = make_parts(None).verifier
    law = {name: getattr(verifier, name, None) for name in ("temperature", "top_k", "top_p")}
    law = ToyLaw(**{**law, "temperature": law["temperature"] or 0.0}, vocabulary=toy_vocabulary(make_parts))

    def chunks(manner, numbers):
        return (compare_chunk(make_parts, law, manner, number) for number in numbers)

    return EqualityTest(chunks, tokens).check


@pytest.mark.variants(1)
@pytest.mark.parametrize(("verifier", "least"), [(WrongAt37(), 4), (WrongAfterRejection(), 4), (Shifted(0.6), 1)])
def test_a_rarely_wrong_deterministic_verifier_is_found(verifier, least):
    assert len(compared(sampled(recycling, RANKED["tree"], verifier)).wrong) >= least


@pytest.mark.parametrize("verifier", [Greedy(), KeyedSampling(0.6), KeyedSampling(1.5, 4, 0.9)])
def test_healthy_deterministic_verifiers_give_the_expected_tokens(verifier):
    check = compared(sampled(recycling, RANKED["tree"], verifier), 900)
    assert check.passed
    assert check.samples >= 900
    assert sum(check.branches.rejected.values()) > 50
    assert check.branches.never == []


def by_chance(seed, off=0.0, total_variation=0.1, level=1e-3):
    """The test of tokens drawn by hand; ``off`` is moved from the likeliest triple to the others."""
    law = ToyLaw(vocabulary=LIVE + 1)
    generator = np.random.default_rng(seed)

    def chunks(manner, numbers):
        shares = law.toy(manner).law(law.processors)
        joint = np.einsum("i,j,k->ijk", shares, shares, shares)
        likeliest = joint[0, 0, 0]
        joint *= 1 + off / (1 - likeliest)
        joint[0, 0, 0] = likeliest - off
        tally = Tally()
        samples = generator.multinomial(BLOCKS * len(numbers), joint.ravel())
        tally.tokens[:LIVE, :LIVE, :LIVE] = samples.reshape((LIVE,) * 3)
        tally.by_last[0] = tally.tokens.sum(axis=(1, 2))
        return [tally]

    return JointTest(chunks, law, False, total_variation, level).check


def test_the_levels_of_all_tests_add_up_to_no_more_than_the_level():
    """So exact samples are refused with at most this probability, however the tests depend on each other."""
    for own_noise, tests in ((True, 5), (False, 2)):
        begun = JointTest(lambda manner, numbers: [], ToyLaw(), own_noise, 0.05, 1e-3)
        assert begun.each * tests * 2 * LOOKS == pytest.approx(SHARE * 1e-3)


@pytest.mark.slow
def test_exact_samples_are_refused_as_often_as_the_level_states():
    """Of 300 tests at a level of 0.4, of which a quarter is used: about a tenth, of tests that are not independent."""
    refused = [by_chance(seed, total_variation=0.2, level=0.4).decision == "found" for seed in range(300)]
    assert 0.04 < np.mean(refused) < 0.13


@pytest.mark.slow
def test_no_statistic_of_exact_samples_is_small_too_often():
    """With the odd steps of each continuation dropped, 9 % of the p-values of "steps" lay below 0.01."""
    make = sampled(recycling, RANKED["chain"], RejectionSampling())
    tests = [joint_test(make, most=160, seed=seed) for seed in range(100)]
    assert len(tests[0].fits) == 10
    for name in tests[0].fits:
        p_values = np.array([test.fits[name].p_value for test in tests])
        assert (p_values < 0.1).mean() < 0.2, name
        assert (p_values < 0.01).mean() < 0.05, name


def test_a_deviation_of_the_stated_size_is_found_with_the_stated_power():
    """Off by 0.09 in both toys: each finds it with 95 %."""
    tests = [by_chance(seed, off=0.09, total_variation=0.09) for seed in range(100)]
    assert np.mean([test.decision == "found" for test in tests]) > 0.93
    assert {test.decision for test in tests} <= {"found", "excluded"}


def test_too_few_samples_leave_it_undecided():
    test = joint_test(sampled(recycling, RANKED["chain"], SampleMatch(0.6)), temperature=0.6, most=80)
    assert len(test.fits) == 5 * 2
    assert test.decision == "undecided"
    assert test.evidence.endswith("but excluding 0.05 needs more samples")
    assert test.finds > 0.05
