"""Token Recycling by hand: the rows of the matrix after each update rule."""

import numpy as np
import pytest
import torch
from helpers.contracts import contract_of
from helpers.published import published_arm
from helpers.requests import chain_request

from specexp.builders import Chain, StaticTree
from specexp.core.context import Context
from specexp.core.contracts import Verifier
from specexp.core.dialogue import Verdict
from specexp.core.loop import Decoder, Drafting, draft_together
from specexp.core.outcome import Outcome, prefill_outcome
from specexp.core.parts import Parts
from specexp.core.tree import NO_CANDIDATE, TokenTree, TreeShape, root_tree
from specexp.drafters import TokenRecycling, token_recycling
from specexp.testing.drafters import DrafterContract
from specexp.testing.fakes import bigram_model
from specexp.verifiers import KeyedSampling

VOCABULARY = 6
NONE = NO_CANDIDATE


TestTokenRecycling = contract_of(DrafterContract, lambda: TokenRecycling())
TestFirst = contract_of(DrafterContract, lambda: TokenRecycling(k=3, update="first", state="carry"))
TestMerge = contract_of(
    DrafterContract, lambda: TokenRecycling(k=4, update="merge", initialisation="prompt", prefill_update=False)
)
TestRace = contract_of(DrafterContract, lambda: TokenRecycling(k=3, update="race-distinct", state="carry"))
TestAccepted = contract_of(
    DrafterContract, lambda: TokenRecycling(k=2, update="accepted", initialisation="prompt", state="carry")
)


def logits_ranking(*rankings):
    """Return ``[n, V]`` logits with these best tokens, in this order."""
    logits = torch.zeros(len(rankings), VOCABULARY)
    for row, ranking in enumerate(rankings):
        for rank, token in enumerate(ranking):
            logits[row, token] = 10.0 - rank
    return logits


def drafter_with(**arguments):
    drafter = TokenRecycling(**{"k": 2, **arguments})
    drafter.check_vocabulary(VOCABULARY)
    return drafter


def observe(drafter, tokens, parents, accepted, *rankings):
    shape = TreeShape(parents, [-1] + [0] * (len(parents) - 1))
    context = Context([tokens[0]])
    drafter.observe(Outcome(context, TokenTree(shape, np.array(tokens)), logits_ranking(*rankings), accepted, (0,)))


# Token 3 is fed twice, at rows 1 (rejected) and 2 (accepted); the root is token 1.
STEP = ([1, 3, 3, 4], [-1, 0, 0, 2], (2,), (2, 3), (4, 5), (5, 0), (0, 1))


@pytest.mark.parametrize(
    ("update", "after_three", "after_four"),
    [
        ("last", [5, 0], [0, 1]),
        ("first", [4, 5], [0, 1]),
        ("merge", [4, 5], [0, 1]),
        ("accepted", [5, 0], [NONE, NONE]),
    ],
)
def test_a_token_fed_twice(update, after_three, after_four):
    drafter = drafter_with(update=update)
    observe(drafter, *STEP)
    assert drafter.matrix[1].tolist() == [2, 3]
    assert drafter.matrix[3].tolist() == after_three
    assert drafter.matrix[4].tolist() == after_four
    assert (drafter.matrix[[0, 2, 5]] == NONE).all()


def test_merging_takes_the_best_rank_of_every_occurrence_first():
    drafter = drafter_with(update="merge")
    observe(drafter, [1, 3, 3, 3], [-1, 0, 1, 2], (), (2, 3), (4, 5), (4, 0), (2, 1))
    assert drafter.matrix[3].tolist() == [4, 2]  # best of each occurrence: 4, 4, 2


@pytest.mark.parametrize(("update", "repeated"), [("race", (5, 5)), ("race-distinct", (5, NONE))])
def test_in_a_race_every_rank_keeps_a_random_occurrence_keyed_by_place(update, repeated):
    """Token 3 is fed with (4, 5) and (5, 0): any of both first ranks meets any of both second ranks."""

    def row(seed):
        drafter, (tokens, parents, accepted, *rankings) = drafter_with(update=update), STEP
        tree = TokenTree(TreeShape(parents, [-1, 0, 0, 0]), np.array(tokens))
        logits = logits_ranking(*rankings)
        drafter.observe(Outcome(Context(tokens[:1], seed=seed), tree, logits, accepted, (0,)))
        assert drafter.matrix[1].tolist() == [2, 3]
        return tuple(drafter.matrix[3].tolist())

    found = [row(seed) for seed in range(40)]
    assert set(found) == {(4, 5), (4, 0), repeated, (5, 0)}
    assert found == [row(seed) for seed in range(40)]


def test_as_published_the_matrix_after_two_updates_by_hand():
    """The prefill leaves it empty. Then row v is the top-2 after v for every fed token (section 3.3), and a token fed
    again is overwritten; the second tree proposes what the first one's logits said.
    """
    published = published_arm("token_recycling_published", "token_recycling").drafter
    drafter = drafter_with(**{**published.init_args, "k": 2})
    context = Context([1, 2, 1])
    drafter.begin(context, None)
    assert not drafter.wants_prefill_logits
    assert (drafter.matrix == NONE).all()
    observe(drafter, [1, 3], [-1, 0], (), (2, 3), (4, 5))
    assert drafter.matrix.tolist() == [[NONE] * 2, [2, 3], [NONE] * 2, [4, 5], [NONE] * 2, [NONE] * 2]
    assert drafter.propose(Context([0, 1]), chain_request(Context([0, 1]), k=2)).tokens[0].tolist() == [2, 3]
    observe(drafter, [2, 3, 4, 5], [-1, 0, 1, 1], (1, 2), (3, 0), (4, 2), (1, 0), (0, 5))
    assert drafter.matrix.tolist() == [[NONE] * 2, [2, 3], [3, 0], [4, 2], [1, 0], [0, 5]]


def test_initialisation_from_the_prompt_puts_the_newest_follower_first():
    drafter = drafter_with(initialisation="prompt", prefill_update=False)
    drafter.begin(Context([1, 2, 1, 3, 1, 4, 1, 3]), None)
    assert drafter.matrix[1].tolist() == [3, 4]
    assert drafter.matrix[2].tolist() == [1, NONE]


@pytest.mark.parametrize(
    ("initialisation", "after_one", "after_two"),
    [("empty", [0, 3], [4, 5]), ("prompt", [5, 2], [1, 4])],  # the prompt's newest follower comes first
)
def test_the_prefill_updates_every_fed_token(initialisation, after_one, after_two):
    drafter = drafter_with(initialisation=initialisation)
    assert drafter.wants_prefill_logits
    context = Context([1, 2, 1, 5])
    logits = logits_ranking((2, 3), (4, 5), (0, 3))
    drafter.begin(context, prefill_outcome(context, np.array([1, 2, 1]), logits))
    assert drafter.matrix[[1, 2]].tolist() == [after_one, after_two]
    assert (drafter.matrix[5] == NONE).all()  # the root is fed by the first step


@pytest.mark.parametrize(
    ("state", "continued", "after_one"),
    [("cold", False, [NONE, NONE]), ("cold", True, [2, 3]), ("carry", False, [2, 3])],
)
def test_the_matrix_is_kept_by_policy_and_within_a_conversation(state, continued, after_one):
    drafter, context = drafter_with(state=state, prefill_update=False), Context([1])
    drafter.begin(context, None)
    observe(drafter, *STEP)
    context.next_turn([2])
    drafter.begin(context if continued else Context([5]), None)
    assert drafter.matrix[1].tolist() == after_one


@pytest.fixture
def saved_matrix():
    """Return a matrix that another drafter learned."""
    matrix = np.full((VOCABULARY, 2), NONE, dtype=np.int32)
    matrix[1] = [5, 4]
    return matrix


def test_every_prompt_starts_from_the_preloaded_matrix(saved_matrix):
    drafter = drafter_with(state="preloaded", matrix=saved_matrix, prefill_update=False)
    for prompt in ([1], [2]):
        drafter.begin(Context(prompt), None)
        assert (drafter.matrix == saved_matrix).all()
        observe(drafter, *STEP)
        assert drafter.matrix[1].tolist() == [2, 3]


def test_other_vocabularies_and_states_are_refused(saved_matrix):
    with pytest.raises(ValueError, match=r"must have 7 rows, .* got 6"):
        TokenRecycling(k=2, state="preloaded", matrix=saved_matrix).check_vocabulary(7)
    with pytest.raises(ValueError, match=r"k must be at most .* got 8"):
        TokenRecycling(k=8).check_vocabulary(6)
    for shape in ((VOCABULARY, 3), (VOCABULARY + 1, 2)):
        with pytest.raises(ValueError, match="saved matrix"):
            drafter_with().load_state_dict({"matrix": torch.zeros(shape, dtype=torch.int32)})


LOGITS = torch.tensor([[0.0, 4.0, 3.5, 3.0, 0.0, 0.0]])  # after token 0: best 1, then 2, then 3
PATHS = [[0], [1], [2], [0, 0], [0, 2], [1, 1], [0, 0, 0], [1, 1, 2], [1, 1, 2, 0]]


@pytest.mark.parametrize("coupled", [False, True])
def test_a_fixed_tree_is_filled_as_requests_would_fill_it(coupled, monkeypatch):
    if token_recycling._kernels() is None:
        pytest.skip("there is no C++ compiler on PATH")
    drafter = TokenRecycling(k=3, coupled=coupled)
    drafter.check_vocabulary(VOCABULARY)
    rng, builder = np.random.default_rng(0), StaticTree(PATHS)
    for seed in range(20):
        state = {"matrix": torch.tensor(rng.integers(-1, VOCABULARY, (VOCABULARY, 3)), dtype=torch.int32)}
        if coupled:
            state["logits"] = torch.tensor(rng.normal(size=(VOCABULARY, 3)), dtype=torch.float32)
        drafter.load_state_dict(state)
        parts = Parts(drafter, builder, KeyedSampling(temperature=0.7))
        trees = [[], []]
        for own, found in zip((drafter.fill, lambda *given: None), trees, strict=True):
            monkeypatch.setattr(drafter, "fill", own)
            context = parts.context([1, 2], seed, 0)
            found.append(draft_together([(Drafting(parts, context), 3)])[0].tree)
        [filled], [grown] = trees
        assert filled.tokens.tolist() == grown.tokens.tolist()
        assert filled.shape.rank_paths == grown.shape.rank_paths


TestCoupled = contract_of(DrafterContract, lambda: TokenRecycling(coupled=True))
TestCoupledMerge = contract_of(
    DrafterContract, lambda: TokenRecycling(k=3, update="merge", initialisation="prompt", state="carry", coupled=True)
)


@pytest.mark.parametrize("sequence", range(20))
def test_coupled_candidates_are_ranked_by_logit_plus_noise(sequence):
    context = Context([0], sequence=sequence, noise_temperature=2.0)
    drafter = TokenRecycling(k=3, coupled=True)
    drafter.check_vocabulary(VOCABULARY)
    drafter.observe(Outcome(context, root_tree(0), LOGITS, (), (1,)))
    noise = context.target_noise(1, 1, VOCABULARY)[0].numpy()
    by_hand = sorted((1, 2, 3), key=lambda token: -(LOGITS[0, token].item() / 2.0 + noise[token]))
    for k in (1, 3):
        assert drafter.propose(context, chain_request(context, k=k)).tokens[0].tolist() == by_hand[:k]


class OwnNoise(Verifier):
    def verify(self, context, tree, logits):
        return Verdict((), 0)


def test_a_verifier_with_noise_of_its_own_is_refused():
    model = bigram_model([[0.0] * VOCABULARY] * VOCABULARY)
    with pytest.raises(ValueError, match="TokenRecycling is coupled, but OwnNoise draws noise of its own"):
        Decoder(model, TokenRecycling(k=2, coupled=True), Chain(2), OwnNoise())
