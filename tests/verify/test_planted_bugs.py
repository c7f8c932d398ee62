"""Deviations of a stated size are found or excluded: in planted bugs, in healthy parts, and in pure chance."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

from specexp.builders import Chain, DySpecGreedy, KConfig, ParametricTree, SpecInfer, StaticTree
from specexp.core.dialogue import Verdict
from specexp.core.parts import Parts
from specexp.core.tree import NodeKind
from specexp.drafters import DraftModel, PromptLookup, TokenRecycling, Union
from specexp.verifiers import Greedy, KeyedSampling, RejectionSampling, SampleMatch
from specexp.verifiers.rejection_sampling import normalised, residual, without
from specexp.verify.joint import BLOCKS, EqualityTest, JointTest, joint_test
from specexp.verify.statistics import LOOKS, SHARE
from specexp.verify.toy import LIVE
from specexp.verify.toy_run import Tally, ToyLaw, compare_chunk, toy_vocabulary


class TooEager(RejectionSampling):
    """Accepts every drafted token with 1.1 times the probability that is right."""

    excess: ClassVar[float] = 1.1

    def try_children(self, tree, row, left, uniforms):
        q = None
        for child in tree.draw_order(row):
            token, kind = int(tree.tokens[child]), tree.kind(child)
            if kind is NodeKind.POINT_MASS:
                if next(uniforms) < self.excess * left[token]:
                    return child, left
                left = without(left, token)
                continue
            q = normalised(tree.q[row].astype(float)) if q is None else q
            if next(uniforms) * q[token] < self.excess * left[token]:
                return child, left
            left = residual(left, q)
            if kind is NodeKind.DRAWN:
                q = without(q, token)
        return None, left


class WrongQ(DraftModel):
    """States q to the power 1.1 for what it drew from q."""

    def propose(self, context, request):
        answer = super().propose(context, request)
        if answer.q is None:
            return answer
        stated = answer.q**1.1
        return replace(answer, q=stated / stated.sum(axis=-1, keepdims=True))


class WrongAt37(Greedy):
    """Adds a wrong token where the root stands at a multiple of 37."""

    def verify(self, context, tree, logits):
        verdict = super().verify(context, tree, logits)
        if (len(context) - 1) % 37:
            return verdict
        return Verdict(verdict.accepted, (verdict.bonus + 1) % logits.shape[-1])


class WrongAfterRejection(Greedy):
    """Adds a wrong token where nothing of what was drafted was accepted, at one of seven positions."""

    def verify(self, context, tree, logits):
        verdict = super().verify(context, tree, logits)
        if verdict.accepted or not tree.num_nodes or len(context) % 7:
            return verdict
        return Verdict((), (verdict.bonus + 1) % logits.shape[-1])


DRAWN = {
    "chain": lambda: Chain(4, "drawn"),
    "dyspec": lambda: DySpecGreedy(10),
    "infer": lambda: SpecInfer([3, 2]),
    "wide": lambda: StaticTree([[0], [1], [0, 0]], candidates="drawn"),
}
RANKED = {
    "chain": lambda: Chain(3),
    "tree": lambda: ParametricTree(nodes=12, depth=4),
    "k": lambda: KConfig([2, 2]),
}


def sampled(drafter, builder, verifier):
    return lambda draft: Parts(drafter(draft), builder(), verifier)


def recycling(draft):
    return TokenRecycling(k=4, state="carry")


def drawing(draft):
    return DraftModel(draft, temperature=0.6)


def compared(make_parts, tokens=2000):
    verifier = make_parts(None).verifier
    law = {name: getattr(verifier, name, None) for name in ("temperature", "top_k", "top_p")}
    law = ToyLaw(**{**law, "temperature": law["temperature"] or 0.0}, vocabulary=toy_vocabulary(make_parts))

    def chunks(manner, numbers):
        return (compare_chunk(make_parts, law, manner, number) for number in numbers)

    return EqualityTest(chunks, tokens).check


def test_an_acceptance_that_is_a_tenth_too_frequent_is_found():
    test = joint_test(sampled(recycling, RANKED["tree"], TooEager(0.6)), temperature=0.6, most=640)
    assert test.decision == "found"
    assert test.evidence == "deviation found"


WRONG = {
    "too eager": lambda builder: sampled(drawing, DRAWN[builder], TooEager(0.6)),
    "stated q to the power of 11 tenths": lambda builder: sampled(
        lambda draft: WrongQ(draft, temperature=0.6), DRAWN[builder], RejectionSampling(0.6)
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("builder", DRAWN)
@pytest.mark.parametrize("wrong", WRONG)
def test_a_small_deviation_among_draws_is_found(wrong, builder):
    assert joint_test(WRONG[wrong](builder), temperature=0.6).decision == "found"


@pytest.mark.parametrize("verifier", [WrongAt37, WrongAfterRejection])
def test_a_greedy_verifier_that_is_seldom_wrong_is_found(verifier):
    check = compared(sampled(recycling, RANKED["tree"], verifier()))
    assert len(check.wrong) > 3
    assert {said - expected for _, _, said, expected in check.wrong} <= {1, -LIVE}


@pytest.mark.parametrize("verifier", [Greedy(), KeyedSampling(0.6), KeyedSampling(1.5, 4, 0.9)])
def test_healthy_deterministic_verifiers_say_what_is_known_beforehand(verifier):
    check = compared(sampled(recycling, RANKED["tree"], verifier), 900)
    assert check.passed
    assert check.samples >= 900
    assert sum(check.branches.rejected.values()) > 50
    assert check.branches.never == []


def test_a_verifier_that_draws_other_noise_than_its_own_is_found():
    """Its output is the same with drafts and without: only what is known beforehand tells."""

    class Shifted(KeyedSampling):
        def target_token(self, context, logits, position):
            return super().target_token(context, logits, position + (position % 37 == 0))

    assert compared(sampled(recycling, RANKED["chain"], Shifted(0.6)), 900).wrong


HEALTHY = [
    *((drawing, DRAWN[name], RejectionSampling(0.6)) for name in DRAWN),
    *((drawing, DRAWN[name], SampleMatch(0.6)) for name in DRAWN),
    *((recycling, RANKED[name], RejectionSampling(0.6)) for name in RANKED),
    *((recycling, RANKED[name], SampleMatch(0.6)) for name in RANKED),
    *((lambda draft: PromptLookup(candidates=4), RANKED[name], RejectionSampling(0.6)) for name in RANKED),
    *(
        (
            lambda draft: Union([PromptLookup(candidates=2), TokenRecycling(k=4)]),
            RANKED[name],
            RejectionSampling(0.6),
        )
        for name in RANKED
    ),
]


@pytest.mark.slow
def test_twenty_healthy_compositions_raise_no_alarm():
    """At 0.1 % a composition, one alarm among them would come once in 50 times."""
    assert len(HEALTHY) == 20
    tests = [joint_test(sampled(*parts), temperature=0.6, total_variation=0.15) for parts in HEALTHY]
    assert {test.evidence for test in tests} == {
        "no deviation above total variation 0.15 of the joint of three tokens found (power 95 %)"
    }


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
    check = joint_test(sampled(recycling, RANKED["chain"], SampleMatch(0.6)), temperature=0.6, most=80)
    assert len(check.fits) == 5 * 2


def test_exact_samples_are_refused_as_often_as_the_level_says():
    """Of 300 tests at a level of 0.4, of which a quarter is used: about a tenth, of tests that are not independent."""
    refused = np.mean(
        [by_chance(seed, total_variation=0.2, level=0.4).decision == "found" for seed in range(300)]
    )
    assert 0.04 < refused < 0.13


@pytest.mark.slow
def test_no_statistic_of_exact_samples_is_small_too_often():
    """With the odd steps of each continuation dropped, 9 % of the p-values of "steps" lay below 0.01."""
    tests = [
        joint_test(sampled(recycling, RANKED["chain"], RejectionSampling()), most=160, seed=seed)
        for seed in range(100)
    ]
    for name in tests[0].fits:
        p_values = np.array([test.fits[name].p_value for test in tests])
        assert (p_values < 0.1).mean() < 0.2, name
        assert (p_values < 0.01).mean() < 0.05, name


def test_a_deviation_of_the_stated_size_is_found_with_the_stated_power():
    """Off by 0.09 in both toys: each finds it with 95 %."""
    tests = [by_chance(seed, off=0.09, total_variation=0.09) for seed in range(100)]
    assert np.mean([test.decision == "found" for test in tests]) > 0.93
    assert {test.decision for test in tests} <= {"found", "excluded"}


def test_samples_that_do_not_suffice_are_said_to():
    test = joint_test(sampled(recycling, RANKED["chain"], SampleMatch(0.6)), temperature=0.6, most=80)
    assert test.decision == "undecided"
    assert test.evidence.endswith("and 0.05 needs more samples")
    assert test.finds > 0.05
