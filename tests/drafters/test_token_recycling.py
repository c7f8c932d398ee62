"""Token Recycling by hand: what each rule writes into the matrix."""

import numpy as np
import pytest
import torch
from helpers.contracts import contract_of

from specexp.builders import Chain, StaticTree
from specexp.core.context import Context
from specexp.core.contracts import Verifier
from specexp.core.dialogue import Request, Verdict
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
    DrafterContract,
    lambda: TokenRecycling(k=4, update="merge", initialisation="prompt", prefill_update=False),
)
TestRace = contract_of(DrafterContract, lambda: TokenRecycling(k=3, update="race", state="carry"))
TestAccepted = contract_of(
    DrafterContract, lambda: TokenRecycling(k=2, update="accepted", initialisation="prompt", state="carry")
)


def logits_ranking(*rankings):
    """``[n, V]`` logits whose best tokens are these, in this order."""
    logits = torch.zeros(len(rankings), VOCABULARY)
    for row, ranking in enumerate(rankings):
        for rank, token in enumerate(ranking):
            logits[row, token] = 10.0 - rank
    return logits


def drafter_with(**arguments):
    drafter = TokenRecycling(k=2, **arguments)
    drafter.check_vocabulary(VOCABULARY)
    return drafter


def observe(drafter, tokens, parents, accepted, *rankings):
    shape = TreeShape(parents, [-1] + [0] * (len(parents) - 1))
    context = Context([tokens[0]])
    drafter.observe(
        Outcome(context, TokenTree(shape, np.array(tokens)), logits_ranking(*rankings), accepted, (0,))
    )


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


def test_in_a_race_every_rank_keeps_that_of_any_occurrence_by_chance_that_repeats_itself():
    """Token 3 is fed with (4, 5) and (5, 0): of both first ranks and both second ranks any two may meet."""

    def rows(seed):
        drafter, (root, *others), rankings = drafter_with(update="race"), STEP[0], STEP[3:]
        shape = TreeShape(STEP[1], [-1, 0, 0, 0])
        tree = TokenTree(shape, np.array([root, *others]))
        drafter.observe(Outcome(Context([root], seed=seed), tree, logits_ranking(*rankings), STEP[2], (0,)))
        assert drafter.matrix[1].tolist() == [2, 3]
        return tuple(drafter.matrix[3].tolist())

    found = [rows(seed) for seed in range(40)]
    assert set(found) == {(4, 5), (4, 0), (5, NONE), (5, 0)}
    assert found == [rows(seed) for seed in range(40)]


def test_initialisation_from_the_prompt_puts_the_newest_follower_first():
    drafter = drafter_with(initialisation="prompt", prefill_update=False)
    drafter.begin(Context([1, 2, 1, 3, 1, 4, 1, 3]), None)
    assert drafter.matrix[1].tolist() == [3, 4]
    assert drafter.matrix[2].tolist() == [1, NONE]


def test_what_follows_in_the_prompt_stands_before_what_its_logits_rank():
    drafter = drafter_with(initialisation="prompt")
    context = Context([1, 2, 1, 5])
    drafter.begin(
        context, prefill_outcome(context, np.array([1, 2, 1]), logits_ranking((2, 3), (4, 5), (0, 3)))
    )
    assert drafter.matrix[1].tolist() == [5, 2]  # the newest follower first; the logits said 0, 3
    assert drafter.matrix[2].tolist() == [1, 4]
    assert (drafter.matrix[5] == NONE).all()  # nothing follows the root yet


def test_the_prefill_updates_every_fed_token():
    drafter = drafter_with()
    assert drafter.wants_prefill_logits
    context = Context([1, 2, 1, 5])
    drafter.begin(
        context, prefill_outcome(context, np.array([1, 2, 1]), logits_ranking((2, 3), (4, 5), (0, 3)))
    )
    assert drafter.matrix[1].tolist() == [0, 3]
    assert drafter.matrix[2].tolist() == [4, 5]
    assert (drafter.matrix[5] == NONE).all()  # the root is fed by the first step


@pytest.mark.parametrize(("state", "after_one"), [("cold", [NONE, NONE]), ("carry", [2, 3])])
def test_what_a_prompt_inherits(state, after_one):
    drafter = drafter_with(state=state, prefill_update=False)
    drafter.begin(Context([1]), None)
    observe(drafter, *STEP)
    drafter.begin(Context([5]), None)
    assert drafter.matrix[1].tolist() == after_one


def test_a_continued_conversation_keeps_what_was_learned():
    drafter = drafter_with(state="cold", prefill_update=False)
    context = Context([1])
    drafter.begin(context, None)
    observe(drafter, *STEP)
    context.next_turn([2])
    drafter.begin(context, None)
    assert drafter.matrix[1].tolist() == [2, 3]


@pytest.fixture
def saved_matrix():
    """A matrix that another drafter learned."""
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


def test_a_preloaded_matrix_of_another_size_is_refused(saved_matrix):
    with pytest.raises(ValueError, match="k=2, TokenRecycling was given k=8"):
        TokenRecycling(k=8, state="preloaded", matrix=saved_matrix)
    drafter = TokenRecycling(k=2, state="preloaded", matrix=saved_matrix)
    with pytest.raises(ValueError, match="6 rows, the target's vocabulary 7"):
        drafter.check_vocabulary(7)


@pytest.mark.parametrize("arguments", [{"matrix": np.zeros((6, 8), dtype=np.int32)}, {"state": "preloaded"}])
def test_preloaded_and_matrix_belong_together(arguments):
    with pytest.raises(ValueError, match="'preloaded' needs one"):
        TokenRecycling(**arguments)


def test_more_candidates_than_the_vocabulary_has_are_refused():
    with pytest.raises(ValueError, match="k=8"):
        TokenRecycling(k=8).check_vocabulary(6)


@pytest.mark.parametrize("shape", [(VOCABULARY, 3), (VOCABULARY + 1, 2)])
def test_a_state_of_another_size_is_refused(shape):
    state = {"matrix": torch.zeros(shape, dtype=torch.int32)}
    with pytest.raises(ValueError, match="saved matrix"):
        drafter_with().load_state_dict(state)


VOCABULARY_COUPLED = 6
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
    DrafterContract,
    lambda: TokenRecycling(k=3, update="merge", initialisation="prompt", state="carry", coupled=True),
)


def proposed_after_token_0(context: Context, k: int = 3) -> list[int]:
    drafter = TokenRecycling(k=3, coupled=True)
    drafter.check_vocabulary(VOCABULARY_COUPLED)
    drafter.observe(Outcome(context, root_tree(0), LOGITS, (), (1,)))
    request = Request(np.array([0]), np.array([-1]), np.array([-1]), np.array([0]), k)
    return drafter.propose(context, request).tokens[0].tolist()


@pytest.mark.parametrize("sequence", range(20))
def test_candidates_are_ranked_as_the_target_would_sample_them(sequence):
    context = Context([0], sequence=sequence, noise_temperature=2.0)
    noise = context.target_noise(1, 1, VOCABULARY_COUPLED)[0].numpy()
    by_hand = sorted((1, 2, 3), key=lambda token: -(LOGITS[0, token].item() / 2.0 + noise[token]))
    assert proposed_after_token_0(context) == by_hand
    assert proposed_after_token_0(context, k=1) == by_hand[:1]


class OwnNoise(Verifier):
    def verify(self, context, tree, logits):
        return Verdict((), 0)


def test_a_verifier_with_noise_of_its_own_is_refused():
    with pytest.raises(ValueError, match="TokenRecycling is coupled, but OwnNoise draws noise of its own"):
        Decoder(
            bigram_model([[0.0] * VOCABULARY_COUPLED] * VOCABULARY_COUPLED),
            TokenRecycling(k=2, coupled=True),
            Chain(2),
            OwnNoise(),
        )


def test_a_preloaded_matrix_has_no_logits_to_couple():
    with pytest.raises(ValueError, match="coupled and preloaded"):
        TokenRecycling(state="preloaded", matrix=np.zeros((6, 8), dtype=np.int32), coupled=True)
