"""Each builder and each drafter is exact, with a verifier that would show a fault.

Exact arithmetic shows that a verifier is exact, given honest draws (``tests/verifiers``). A builder must have its
candidates chosen as the kind of its nodes states, and a drafter must draw from the distribution it states. Both show in
the joint under rejection sampling, so each is sampled once, in three settings whose chi-squares are added up.
"""

from functools import partial
from itertools import product

import pytest
from helpers.joint_test import joint_test
from helpers.toy_schedules import PROMPT

from specexp.builders import (
    AllCandidates,
    BeamRerank,
    Chain,
    Choice,
    DySpecGreedy,
    DySpecThreshold,
    Graft,
    KConfig,
    ParametricTree,
    Sequoia,
    SpecInfer,
    StaticTree,
)
from specexp.config.check import parts_of
from specexp.controllers import AdaptiveConfidence, Bandit, Fixed, Heuristic, RuleBandit, ThresholdTracker
from specexp.core.contracts import Drafter, TreeBuilder, Verifier
from specexp.core.loop import Decoder
from specexp.core.parts import Parts, check_composition
from specexp.drafters import DraftModel, Lookahead, PhraseCache, PromptLookup, SuffixAutomaton, TokenRecycling, Union
from specexp.verifiers import (
    BlockVerification,
    Greedy,
    KeyedSampling,
    RejectionSampling,
    SampleMatch,
    TraversalVerification,
)
from specexp.verify.statistics import combined_p_value
from specexp.verify.toy import MANNERS, ToyLaw, compose, toy_models, toy_vocabulary

TEMPERATURES = (0.3, 0.6, 1.0, 1.5)
CUTS = ({}, {"top_k": 4, "top_p": 0.9})
LAWS = [{"temperature": temperature, **cut} for temperature, cut in product(TEMPERATURES, CUTS)]
FEW = 80
"""Triples of tokens of each toy in tests that are many."""
SAMPLED_LAWS = [LAWS[1], LAWS[4], LAWS[7]]
"""Cold and cut, as it is, hot and cut."""
SOME_LAWS = [law if law in SAMPLED_LAWS else pytest.param(law, marks=pytest.mark.slow) for law in LAWS]
TREE = [[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0]]

DRAFTERS = {
    "recycling": lambda draft: TokenRecycling(k=4, state="carry"),
    "recycling_coupled": lambda draft: TokenRecycling(k=4, coupled=True),
    "lookup": lambda draft: PromptLookup(candidates=4),
    "suffix": lambda draft: SuffixAutomaton(candidates=4, state="carry"),
    "lookahead": lambda draft: Lookahead(window=2, ngram=3, verified=2),
    "union": lambda draft: Union([PromptLookup(candidates=2), TokenRecycling(k=4)]),
    "model": lambda draft: DraftModel(draft, temperature=0.8),
    "model_coupled": lambda draft: DraftModel(draft, coupled=True),
    "phrases": lambda draft: PhraseCache(max_phrases=4, initialisation="prompt", state="carry"),
    "phrases_recycling": lambda draft: cached(TokenRecycling(k=4, state="carry")),
    "phrases_model": lambda draft: cached(DraftModel(draft, temperature=0.8)),
}
BUILDERS = {
    "chain": lambda: Chain(3),
    "chain_drawn": lambda: Chain(3, "drawn"),
    "static": lambda: StaticTree(TREE),
    "static_drawn": lambda: StaticTree(TREE, candidates="drawn"),
    "k_config": lambda: KConfig([2, 2]),
    "k_config_drawn": lambda: KConfig([2, 2], "drawn"),
    "parametric": lambda: ParametricTree(nodes=6, depth=3, width=4),
    "sequoia": lambda: Sequoia([0.5, 0.2, 0.1, 0.2], 6, candidates="top-k"),
    "sequoia_drawn": lambda: Sequoia([0.5, 0.2, 0.1, 0.2], 6),
    "spec_infer": lambda: SpecInfer([3, 2]),
    "dyspec_greedy": lambda: DySpecGreedy(7, 4, candidates="top-k"),
    "dyspec_greedy_drawn": lambda: DySpecGreedy(7, 4),
    "dyspec_threshold": lambda: DySpecThreshold(0.12, 7, candidates="top-k"),
    "dyspec_threshold_drawn": lambda: DySpecThreshold(0.12, 7),
    "beam": lambda: BeamRerank(6, 3, 3),
    "all_candidates": lambda: AllCandidates(max_nodes=8, candidates=3, max_depth=3),
    "graft": lambda: grafts(Chain(3)),
    "graft_chain_drawn": lambda: grafts(Chain(3, "drawn")),
    "graft_k_config_drawn": lambda: grafts(KConfig([2, 2], "drawn")),
    "graft_spec_infer": lambda: grafts(SpecInfer([3, 2])),
    "graft_dyspec_drawn": lambda: grafts(DySpecGreedy(7, 4)),
}
OF_ITS_STATES = {"DFlash", "EarlyExit", "Eagle", "Eagle3", "Medusa", "Mtp"}
"""Drafters that read a transformer's own states, which a toy has not: ``tests/drafters`` shows their outputs equal."""
OF_A_CONSTRAINT = {"Grammar"}
"""Drafters that read a constraint, whose outputs have a law of their own: see ``tests/core/test_constraint.py``."""
VERIFIERS = (BlockVerification, Greedy, KeyedSampling, RejectionSampling, SampleMatch, TraversalVerification)
SPECIAL_CASES = {"FittedTree", "TokenRecyclingTree", "Choice"}
"""Static trees of top-k candidates with paths of their own, and a choice of others: no rule of their own."""


def cached(drafter: Drafter) -> PhraseCache:
    return PhraseCache(drafter, phrase_length=3, max_phrases=4, initialisation="prompt", state="carry")


def grafts(builder: TreeBuilder) -> Graft:
    return Graft(builder, num_anchors=2, phrases_per_anchor=2, phrase_length=3)


def valid(drafter: str, builder: str, verifier: Verifier) -> bool:
    draft = toy_models()[1]
    try:
        check_composition(DRAFTERS[drafter](draft), BUILDERS[builder](), verifier)
    except ValueError:
        return False
    return True


def parts(drafter: str, builder: str, verifier: Verifier):
    return lambda draft: Parts(DRAFTERS[drafter](draft), BUILDERS[builder](), verifier)


def on_a_toy(make_parts, seed: int) -> Decoder:
    return compose(make_parts, ToyLaw(0.7, vocabulary=toy_vocabulary(make_parts), seed=seed))[1]


def drafter_for(builder: str) -> str:
    """The drafter that a builder is sampled with: a draft model, with phrases for grafts."""
    if builder == "all_candidates":
        return "lookahead"
    return "phrases_model" if "graft" in builder else "model"


SAMPLED = [(drafter_for(builder), builder) for builder in BUILDERS] + [
    (drafter, "graft" if drafter == "phrases" else "static")
    for drafter in DRAFTERS
    if drafter not in ("model", "lookahead") and "coupled" not in drafter
]
"""Each builder with one drafter, and each drafter with one builder; coupled ones go with keyed sampling alone."""
RANKED_ALIKE = {"chain", "k_config", "parametric", "sequoia", "beam", "dyspec_threshold"}
DRAWN_ALIKE = {"chain_drawn", "k_config_drawn", "sequoia_drawn", "graft_chain_drawn", "graft_k_config_drawn"}
SELDOM = RANKED_ALIKE | DRAWN_ALIKE
"""Builders that rank candidates as ``static`` and ``dyspec_greedy`` do and draw none, and fixed shapes that draw as
``static_drawn`` does: sampled with ``-m slow``.
"""


def test_no_part_is_left_out():
    draft = toy_models()[1]
    drafters = {type(make(draft)).__name__ for make in DRAFTERS.values()}
    builders = {type(make()).__name__ for make in BUILDERS.values()}
    assert drafters == set(parts_of(Drafter)) - OF_ITS_STATES - OF_A_CONSTRAINT
    assert builders == set(parts_of(TreeBuilder)) - SPECIAL_CASES
    assert {make().__class__.__name__ for make in VERIFIERS} == set(parts_of(Verifier))


@pytest.mark.parametrize(
    ("drafter", "builder"),
    [pytest.param(*pair, marks=pytest.mark.slow if pair[1] in SELDOM else []) for pair in SAMPLED],
    ids=lambda name: name,
)
@pytest.mark.variants(1)
def test_a_sampled_joint_is_the_targets(drafter, builder):
    assert valid(drafter, builder, RejectionSampling())
    tests = [
        joint_test(parts(drafter, builder, RejectionSampling(**law)), **law, most=FEW, level=1e-3, seed=seed)
        for seed, law in enumerate(SAMPLED_LAWS)
    ]
    assert [law for law, test in zip(SAMPLED_LAWS, tests, strict=True) if not test.passed] == []
    for name in ("tokens", "steps", "by last token", "by place in a step"):
        assert combined_p_value([test.fits[f"{manner}: {name}"] for test in tests for manner in MANNERS]) > 1e-4


@pytest.mark.parametrize(
    ("builder", "verifier", "draft"),
    [
        # How a token was drafted does not matter to sampling and matching: one tree of each kind of node.
        *((name, SampleMatch(), {"temperature": 0.8}) for name in ("static", "static_drawn", "spec_infer")),
        # A prefix wins as a whole, so the places of a step are not independent.
        ("chain_drawn", BlockVerification(), {"temperature": 0.6}),
        *(
            (name, TraversalVerification(), {"temperature": 0.6, "top_p": 0.9})
            for name in ("static_drawn", "spec_infer", "dyspec_greedy_drawn")
        ),
        # Tokens that top-k and top-p take out of q are never drawn, and must come all the same.
        *(
            (name, RejectionSampling(), {"temperature": 0.6, "top_k": 3, "top_p": 0.8})
            for name in ("static_drawn", "spec_infer", "dyspec_greedy_drawn", "dyspec_threshold_drawn")
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.variants(1)
def test_neither_the_kind_of_node_nor_a_cut_draft_changes_the_joint(builder, verifier, draft):
    make = BUILDERS[builder]
    assert joint_test(lambda model: Parts(DraftModel(model, **draft), make(), verifier), most=FEW).passed


@pytest.mark.slow
@pytest.mark.parametrize("law", SOME_LAWS, ids=lambda law: "-".join(map(str, law.values())))
def test_the_law_of_keyed_sampling_is_the_targets(law):
    """Plain decoding's; with drafts the output is the same, as the next test shows."""
    test = joint_test(lambda draft: Parts(None, None, KeyedSampling(**law)), **law, most=640)
    assert test.passed
    assert test.finds < 0.25
    assert {name.partition(": ")[2] for name in test.fits} == {"tokens", "by last token"}


@pytest.mark.variants(24)
@pytest.mark.parametrize(
    ("drafter", "builder"),
    [pair for pair in product(DRAFTERS, BUILDERS) if valid(*pair, KeyedSampling())],
    ids=lambda name: name,
)
def test_a_deterministic_output_is_that_of_plain_decoding(drafter, builder):
    for seed, verifier in enumerate([Greedy(), KeyedSampling(0.6), KeyedSampling(1.5, 4, 0.9)]):
        decoder = on_a_toy(parts(drafter, builder, verifier), seed)
        target = decoder.model
        request = {"max_new_tokens": 16, "seed": seed, "sequence": "one"}
        expected = Decoder(target, verifier=verifier).generate(PROMPT, **request).token_ids
        assert decoder.generate(PROMPT, **request).token_ids == expected


REUSED = [pair for pair in product(DRAFTERS, BUILDERS) if "phrases" not in pair[0] and "graft" not in pair[1]]


@pytest.mark.variants(5)
@pytest.mark.parametrize(
    ("drafter", "builder"),
    [pair for pair in REUSED if valid(*pair, KeyedSampling()) and (pair[0] == "model" or pair[1] == "static")],
    ids=lambda name: name,
)
def test_with_reuse_at_draft_and_target_the_output_is_that_of_plain_decoding(drafter, builder):
    def reusing(draft, verifier):
        return Parts(cached(DRAFTERS[drafter](draft)), grafts(BUILDERS[builder]()), verifier)

    grafted = 0
    for seed, verifier in enumerate([Greedy(), KeyedSampling(0.7), KeyedSampling(1.5, 4, 0.9)]):
        decoder = on_a_toy(partial(reusing, verifier=verifier), seed)
        target = decoder.model
        expected = Decoder(target, verifier=verifier).generate(PROMPT, max_new_tokens=24, seed=0)
        outcomes = []
        found = decoder.generate(PROMPT, max_new_tokens=24, observers=[outcomes.append], seed=0)
        assert found.token_ids == expected.token_ids
        grafted += sum(outcome.tree.grafted is not None for outcome in outcomes)
    assert grafted > 0


@pytest.mark.variants(1)
@pytest.mark.parametrize(
    ("builder", "controller"),
    [
        (DySpecThreshold(0.1, 8), Fixed(max_depth=1)),
        (DySpecThreshold(0.1, 8), Fixed(max_nodes=3)),
        (DySpecThreshold(0.1, 8), ThresholdTracker(budget=6)),
        (DySpecThreshold(0.1, 8), AdaptiveConfidence(0.6)),
        (DySpecThreshold(0.1, 8), RuleBandit([Heuristic(), Fixed(max_depth=0)])),
        # The choice is drawn, keyed by place, so most continuations have several.
        (
            Choice([Chain(3, "drawn"), StaticTree(TREE), SpecInfer([3, 2])]),
            Bandit("choices", [0, 1, 2, None], policy="thompson"),
        ),
    ],
    ids=["depth", "nodes", "threshold", "confidence", "rules", "choice"],
)
def test_a_controller_changes_nothing(builder, controller):
    rule = RejectionSampling()
    test = joint_test(lambda draft: Parts(DraftModel(draft), builder, rule, controller), most=FEW)
    assert test.passed


@pytest.mark.slow
def test_a_verifier_at_another_temperature_is_found():
    make = parts("lookup", "chain", RejectionSampling(0.8))
    assert not joint_test(make, temperature=1.0, level=1e-4, most=640).passed


def test_temperature_zero_has_one_output():
    make = parts("model", "static_drawn", RejectionSampling(0.0))
    test = joint_test(make, temperature=0.0)
    assert test.decision == "excluded"
    assert [test.fits[f"{manner}: tokens"].cells for manner in MANNERS] == [1, 1]
    warm = joint_test(parts("model", "static_drawn", RejectionSampling(1.0)), temperature=0.0)
    assert not warm.passed
    assert warm.p_value == 0.0
