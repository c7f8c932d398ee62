"""A draft model answers every row of a growing tree as the model itself does after the same tokens."""

import copy

import numpy as np
import pytest
import torch
from helpers.contracts import contract_of
from helpers.examples import examples
from helpers.requests import begun
from helpers.small_models import FULL_ATTENTION, small_model
from hypothesis import given, strategies as st
from scipy import stats

from specexp.builders import Chain, DySpecGreedy, DySpecThreshold, KConfig, SpecInfer, StaticTree
from specexp.core.context import Context
from specexp.core.dialogue import Request
from specexp.core.language_model import LanguageModel
from specexp.core.loop import Decoder
from specexp.core.outcome import Outcome
from specexp.core.parts import Parts
from specexp.core.tree import NodeKind, TokenTree, TreeShape
from specexp.drafters import DraftModel, PromptLookup, Union
from specexp.scheduling import Batched, Job
from specexp.testing.drafters import DrafterContract, DrawingDrafterContract
from specexp.testing.fakes import FakeCausalLM, bigram_model, counting_model, hashed_model
from specexp.verifiers import KeyedSampling, RejectionSampling

TestDefault = contract_of(DrawingDrafterContract, lambda: DraftModel(hashed_model(24, seed=3)))
TestProcessed = contract_of(
    DrawingDrafterContract, lambda: DraftModel(hashed_model(24, seed=3), temperature=0.6, top_k=9, top_p=0.9)
)
TestCertain = contract_of(DrawingDrafterContract, lambda: DraftModel(hashed_model(24, seed=3), temperature=0))
TestCoupled = contract_of(DrafterContract, lambda: DraftModel(hashed_model(24, seed=3), coupled=True))


# after the prompt of 12 tokens and the five steps some rows are beyond the context, and some are not
TestShortContext = contract_of(DrawingDrafterContract, lambda: DraftModel(hashed_model(24, seed=3, context_limit=27)))


def ask(context, paths, k=1, kind=NodeKind.POINT_MASS):
    """Return a request about the nodes of these token paths; siblings are ranked in the given order."""
    numbers = {(): 0}
    tokens, parents, ranks = [context.root], [-1], [-1]
    for path in paths:
        for depth in range(1, len(path) + 1):
            if path[:depth] not in numbers:
                parent = numbers[path[: depth - 1]]
                numbers[path[:depth]] = len(tokens)
                tokens.append(path[depth - 1])
                ranks.append(parents.count(parent))
                parents.append(parent)
    rows = np.array([numbers[path] for path in paths])
    return Request(np.array(tokens), np.array(parents), np.array(ranks), rows, k, kind)


def log_softmax(logits):
    return torch.tensor(logits, dtype=torch.float64).log_softmax(-1).numpy()


def test_one_pass_answers_every_new_node_and_known_nodes_cost_none():
    drafter = DraftModel(counting_model(9))
    context = begun(drafter, [3, 4])
    first = ask(context, [(), (5,), (7,), (5, 1)])
    assert drafter.costs_pass(first)
    answer = drafter.propose(context, first)
    assert answer.tokens.ravel().tolist() == [5, 6, 8, 2]
    assert answer.pass_tokens == (4,)
    known = ask(context, [(5,), (5, 1)], k=4)
    assert not drafter.costs_pass(known)
    answer = drafter.propose(context, known)
    assert answer.tokens[:, 0].tolist() == [6, 2]
    assert answer.pass_tokens == ()
    assert drafter.costs_pass(ask(context, [(5,), (7, 7)]))


@st.composite
def lives(draw):
    """Steps of a sequence: requested paths by pass, the accepted path, the bonus token and what follows."""
    tokens = st.integers(0, 6)
    paths = st.lists(tokens, max_size=3).map(tuple)
    steps = []
    for _ in range(draw(st.integers(1, 5))):
        passes = draw(st.lists(st.lists(paths, min_size=1, max_size=3, unique=True), max_size=3))
        asked = [path for paths in passes for path in paths]
        accepted = draw(st.sampled_from(asked) | paths if asked else paths)
        bonus = draw(tokens)
        steps.append((passes, accepted, bonus, draw(st.sampled_from(["step", "step", "next turn", "cut"]))))
    return draw(st.lists(tokens, min_size=1, max_size=4)), steps


@examples(60)
@given(lives(), st.sampled_from([9, 14, 512]))
def test_every_answer_is_the_models_own(life, context_limit):
    """Also after accepted paths, outputs cut at EOS and further turns; beyond its context there is none."""
    prompt, steps = life
    model = hashed_model(7, context_limit=context_limit)
    drafter = DraftModel(model)
    context = begun(drafter, prompt)
    for passes, accepted, bonus, what in steps:
        for paths in passes:
            answer = drafter.propose(context, ask(context, paths, k=7))
            for path, tokens, log_probs in zip(paths, answer.tokens, answer.log_probs, strict=True):
                seen = (*context.token_ids.tolist(), *path)
                if len(seen) > context_limit:
                    assert (tokens == -1).all()
                else:
                    assert log_probs == pytest.approx(log_softmax(model.next_logits(seen))[tokens], abs=1e-5)
        shape = TreeShape.from_rank_paths([[0] * depth for depth in range(1, len(accepted) + 1)])
        new = (*accepted, bonus) if what != "cut" or not accepted else accepted
        tree_tokens = np.array([context.root, *accepted])
        context.append(new)
        rows = tuple(range(1, len(accepted) + 1))
        drafter.observe(Outcome(context, TokenTree(shape, tree_tokens), None, rows, new))
        assert drafter.models[0].cache.lengths[0] < len(context)  # the root is always fed anew
        if what == "next turn":
            context.next_turn([1, 2])
            drafter.begin(context, None)


@pytest.mark.parametrize("attention", ["sdpa", pytest.param("eager", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", sorted(FULL_ATTENTION))
@pytest.mark.variants(1)
def test_after_many_steps_it_answers_as_after_a_fresh_prefill(name, attention):
    """In float64: accepted rows are kept, rejected ones are gone, positions are right."""
    target = small_model(name, attention)
    draft = copy.deepcopy(target)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weights in draft.parameters():
            noise = torch.randn(weights.shape, generator=generator, dtype=weights.dtype)
            weights += 0.01 * weights.std(correction=0) * noise
    drafter = DraftModel(draft)
    for builder in (KConfig([3, 2, 1]), DySpecGreedy(12, prefetch=2), SpecInfer([3, 2])):
        seen = []
        decoder = Decoder(target, drafter, builder, KeyedSampling(1.0))
        result = decoder.generate([5, 6, 7], max_new_tokens=40, observers=[seen.append], seed=0)
        assert result.accepted_drafts > 0
        context, again = seen[-1].context, DraftModel(draft)
        assert 0 < drafter.models[0].cache.lengths[0] < len(context)
        again.begin(Context(context.token_ids.tolist()), None)
        request = ask(context, [(), (1,), (1, 2)], k=5)
        after, expected = (one.propose(context, request) for one in (drafter, again))
        assert after.tokens.tolist() == expected.tokens.tolist()
        # eager attention takes its softmax in float32
        assert after.log_probs == pytest.approx(expected.log_probs, abs=1e-6 if attention == "sdpa" else 1e-4)


LOGITS = [[0.0, 1.0, 2.0, 3.0]] * 4


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, np.exp([0, 1, 2, 3])),
        ({"temperature": 0.5}, np.exp([0, 2, 4, 6])),
        ({"temperature": 2.0, "top_k": 2}, np.exp([-np.inf, -np.inf, 1, 1.5])),
        ({"top_p": 0.8}, np.exp([-np.inf, -np.inf, 2, 3])),  # 0.64, then 0.24
        ({"temperature": 0}, np.array([0.0, 0, 0, 1])),
    ],
)
def test_temperature_top_k_and_top_p_shape_what_is_drawn_and_ranked(options, expected):
    expected = expected / expected.sum()
    drafter = DraftModel(bigram_model(LOGITS), **options)
    context = begun(drafter, [0])
    drawn = drafter.propose(context, ask(context, [()], 4, NodeKind.DRAWN))
    assert drawn.q[0] == pytest.approx(expected, abs=1e-6)
    possible = np.flatnonzero(expected)
    assert sorted(drawn.tokens[0][drawn.tokens[0] >= 0].tolist()) == possible.tolist()
    best = drafter.propose(context, ask(context, [()], 4))
    assert best.tokens[0].tolist() == possible[::-1].tolist() + [-1] * (4 - possible.size)
    assert np.exp(best.log_probs[0]) == pytest.approx(np.sort(expected)[::-1], abs=1e-6)


@pytest.mark.parametrize("kind", [NodeKind.DRAWN, NodeKind.DRAWN_WITH_REPLACEMENT])
def test_q_is_the_distribution_really_drawn_from(kind):
    """The first draw below the root and, at another place, below a node."""
    drafter = DraftModel(bigram_model(LOGITS), temperature=1.3)
    counts = np.zeros((2, 4))
    for sequence in range(500):
        context = begun(drafter, [0], sequence=sequence)
        answer = drafter.propose(context, ask(context, [(), (2,)], 1, kind))
        counts[[0, 1], answer.tokens[:, 0]] += 1
    for seen, q in zip(counts, answer.q, strict=True):
        assert stats.chisquare(seen, q.astype(float) / q.astype(float).sum() * 500).pvalue > 1e-3


@pytest.mark.variants(1)
@pytest.mark.parametrize("selection", ["drawn", "top-k"])
def test_trees_do_not_depend_on_how_passes_were_batched(selection):
    passes, grown = [], []
    for prefetch in (1, 2, 32):
        drafter = DraftModel(hashed_model(30, seed=1), temperature=0.8)
        builder = DySpecGreedy(14, prefetch, candidates=selection)
        decoder, seen = Decoder(hashed_model(30), drafter, builder, RejectionSampling(1.0)), []
        result = decoder.generate([1, 2, 3], max_new_tokens=30, observers=[seen.append], seed=0)
        passes.append(result.draft_passes)
        trees = [outcome.tree for outcome in seen]
        forms = [(tree.tokens.tolist(), tree.shape.parents.tolist()) for tree in trees]
        q = [{row: shares.tolist() for row, shares in (tree.q or {}).items()} for tree in trees]
        grown.append((forms, q))
    assert grown[0] == grown[1] == grown[2]
    assert passes[0] > passes[1] >= passes[2]


def pair():
    """Return a target, and a draft that is the target with some noise."""
    target, other = hashed_model(20), hashed_model(20, 100, spread=1.0)

    def next_logits(tokens):
        return np.add(target.next_logits(tokens), other.next_logits(tokens)).tolist()

    return target, FakeCausalLM(next_logits, 20)


@pytest.mark.variants(1)
@pytest.mark.parametrize(
    "builder",
    [
        Chain(4),
        StaticTree([[0], [1], [0, 0], [0, 1], [0, 0, 0]], candidates="drawn"),
        SpecInfer([3, 2, 1]),
        DySpecGreedy(10),
        DySpecThreshold(0.05, max_nodes=10, candidates="top-k"),
    ],
    ids=lambda builder: type(builder).__name__,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_draft_may_be_less_precise_than_the_target(builder, dtype):
    """Its q is float32 all the same, and sums to one."""
    target, seen = small_model("Llama"), []
    expected = Decoder(target).generate([1, 2, 3], max_new_tokens=30).token_ids
    decoder = Decoder(target, DraftModel(copy.deepcopy(target).to(dtype)), builder)
    result = decoder.generate([1, 2, 3], max_new_tokens=30, observers=[seen.append])
    assert result.token_ids == expected
    assert result.accepted_drafts > 0
    found = [q for outcome in seen for q in (outcome.tree.q or {}).values()]
    assert bool(found) == (builder.kind is not NodeKind.POINT_MASS)
    for q in found:
        assert q.dtype == np.float32
        assert q.sum() == pytest.approx(1, abs=1e-5)


def test_a_coupled_draft_that_is_the_target_is_always_right():
    model = hashed_model(20)
    decoder = Decoder(model, DraftModel(hashed_model(20), coupled=True), Chain(4), KeyedSampling(0.8))
    result = decoder.generate([1, 2], max_new_tokens=25, seed=0)
    assert result.steps == 5
    assert result.draft_passes == 5 * 4


def test_coupled_candidates_are_ranked_by_score_plus_the_positions_noise():
    drafter = DraftModel(bigram_model(LOGITS), coupled=True)
    context = begun(drafter, [0], sequence="s", noise_temperature=0.5)
    answer = drafter.propose(context, ask(context, [(), (3,)], 4))
    for depth in (0, 1):
        noisy = log_softmax(np.array(LOGITS[0]) / 0.5) + context.target_noise(1 + depth, 1, 4)[0].numpy()
        assert answer.tokens[depth].tolist() == np.argsort(-noisy).tolist()
        assert answer.log_probs[depth] == pytest.approx(np.sort(log_softmax(noisy))[::-1], abs=1e-5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: DraftModel(temperature=0.6, coupled=True), r"coupled and temperature 0\.6.*leave one of the two"),
        (lambda: DraftModel("gpt2"), r"got the name 'gpt2': set pair\.draft"),
        (lambda: DraftModel().use_draft_model(None), r"the pair has none: set pair\.draft"),
        (lambda: Union([PromptLookup(), DraftModel()]).use_draft_model(None), r"set pair\.draft"),
    ],
)
def test_wrong_arguments_and_missing_models_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_model_of_its_own_is_not_replaced_by_the_pairs():
    own, pairs = counting_model(9), counting_model(9)
    for drafter, expected in ((DraftModel(own), own), (DraftModel(), pairs)):
        drafter.use_draft_model(pairs)
        assert drafter.models[0].model is expected


class Interrupted(KConfig):
    """Fails on demand after the first layer."""

    fails = False

    def build(self, root, plan):
        steps = super().build(root, plan)
        request = next(steps)
        try:
            while True:
                answer = yield request
                if self.fails:
                    raise KeyboardInterrupt
                request = steps.send(answer)
        except StopIteration as finished:
            return finished.value


def test_a_step_that_never_ended_leaves_no_state():
    """Neither the next turn nor the next prompt may read the rows that it had fed to the draft."""
    target, draft = pair()
    builder = Interrupted([2, 2])
    plain, decoder = Decoder(target), Decoder(target, DraftModel(draft), builder)
    text = [1, 2, *decoder.generate([1, 2], max_new_tokens=5).token_ids, 3]
    for following in (True, False):
        builder.fails = True
        with pytest.raises(KeyboardInterrupt):
            decoder.generate(text, max_new_tokens=5, continue_conversation=following)
        builder.fails = False
        text = [*text, 5]
        result = decoder.generate(text, max_new_tokens=12, continue_conversation=True)
        assert result.token_ids == plain.generate(text, max_new_tokens=12).token_ids
        alone = Decoder(target, DraftModel(draft), builder).generate(text, max_new_tokens=12)
        assert result.accepted_drafts == alone.accepted_drafts > 0
        text = [7, 8, 9]


def test_a_drafter_shared_by_two_conversations_rereads_each():
    """Back at the first conversation it must not use the second's cache."""
    target, draft = pair()
    drafter = DraftModel(draft)
    builder = StaticTree([[0], [0, 0]])
    one, two = Decoder(target, drafter, builder), Decoder(target, drafter, builder)
    first = one.generate([1, 2, 3], max_new_tokens=8).token_ids
    two.generate([9] * 30, max_new_tokens=8)
    text = [1, 2, 3, *first, 4]
    result = one.generate(text, max_new_tokens=20, continue_conversation=True)
    alone = Decoder(target, DraftModel(draft), builder).generate(text, max_new_tokens=20)
    assert result.token_ids == alone.token_ids
    assert result.accepted_drafts == alone.accepted_drafts


def test_sequences_of_one_model_prefill_an_equal_prompt_once():
    fed = []
    draft = hashed_model(24, seed=1)
    forward = draft.forward
    draft.forward = lambda *args, **kwargs: fed.append(kwargs["input_ids"].numel()) or forward(*args, **kwargs)
    target = LanguageModel(hashed_model(24, seed=1))
    jobs = [Job((1, 2, 3, 4, 5, 6, 7, 8), number, 6) for number in range(4)]
    jobs += [Job((8, 7, 6, 5, 4, 3, 2, 1), number, 6) for number in range(4, 6)]

    def run(n):
        del fed[:]
        with Batched(n).open(target, Parts(DraftModel(draft), Chain(2), KeyedSampling(1.0))) as executor:
            return [result.token_ids for result in executor.run(jobs).results], fed.count(7)

    one_by_one, prefills = run(1)
    assert prefills == 2
    assert run(3) == (one_by_one, 2)


def test_another_draft_takes_the_place_of_the_one_given_before():
    one, two = hashed_model(20, seed=1), hashed_model(20, seed=2)
    drafter = DraftModel()
    for draft in (one, two, two, one):
        drafter.use_draft_model(draft)
        assert drafter.models[0].model is draft
        expected = Decoder(hashed_model(20), DraftModel(draft), Chain(3)).generate([1, 2], max_new_tokens=30)
        result = Decoder(hashed_model(20), drafter, Chain(3)).generate([1, 2], max_new_tokens=30)
        assert result.accepted_drafts == expected.accepted_drafts
    drafter.use_draft_model(None)
    assert drafter.models[0].model is one


class IndependentRows(LanguageModel):
    """A model with rows that do not depend on the others of their pass."""

    independent_rows = True

    def __deepcopy__(self, memo):
        return IndependentRows(self.model, self_check=False)


@pytest.mark.parametrize(("kind", "kept"), [(IndependentRows, 11), (LanguageModel, 0)])
def test_a_longer_text_is_fed_from_the_end_of_the_common_prefix(kind, kept):
    """Where a row's logits depend on the others of its pass, only an equal prompt gives the same rows bit by bit."""
    fed = []
    drafter = DraftModel(kind(hashed_model(20, seed=1)))
    (model,) = drafter.models
    prefill = model.prefill
    model.prefill = lambda slot, tokens, **others: fed.append(len(tokens)) or prefill(slot, tokens, **others)
    output = Decoder(hashed_model(20), drafter, Chain(2)).generate(range(8), max_new_tokens=6).token_ids
    whole = [*range(8), *output]
    for text in ([*whole[:11], 1, 2, 3], whole[:8]):
        result = Decoder(hashed_model(20), drafter, Chain(2)).generate(text, max_new_tokens=6)
        fresh = DraftModel(hashed_model(20, seed=1))
        expected = Decoder(hashed_model(20), fresh, Chain(2)).generate(text, max_new_tokens=6)
        assert (result.token_ids, result.accepted_drafts) == (expected.token_ids, expected.accepted_drafts)
    assert fed[:2] == [7, 13 - kept]
