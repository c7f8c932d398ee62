"""The Jacobi window by hand on a model that counts, and the n-grams it leaves."""

import pytest
from helpers.contracts import contract_of

from specexp.builders import AllCandidates
from specexp.core.loop import Decoder
from specexp.core.parts import Parts
from specexp.drafters import Lookahead
from specexp.replay.play.fidelity import Grade, fidelity
from specexp.testing.drafters import DrafterContract
from specexp.testing.fakes import counting_model

pytestmark = pytest.mark.unit

TestLookahead = contract_of(DrafterContract, lambda: Lookahead())


def columns(drafter):
    return list(drafter._columns())


def test_a_level_holds_the_targets_answers_after_every_column():
    """The model counts: 5 follows 4. Two columns of two levels, and their trigrams."""
    drafter, seen = Lookahead(window=2, ngram=3), []

    def note(outcome):
        seen.append((outcome.tree.tokens.tolist(), columns(drafter), drafter._pool.lookup(7, 5)))

    Decoder(counting_model(11), drafter, AllCandidates()).generate([7, 4], max_new_tokens=9, observers=[note])
    (fed, after, pool), *others = seen
    assert fed == [4, 7, 4]  # the window's first level repeats the prompt
    assert after == [(7, 8), (7, 4, 5)]  # the second holds the token after each
    assert pool == []
    fed, after, pool = others[0]
    assert fed == [5, 7, 8, 4, 5]
    assert after == [(8, 9), (8, 5, 6)]  # the first level is dropped, the next one is the newest
    assert pool == [(8, 9)]


def test_a_repeated_token_is_followed_by_the_n_grams_of_its_column():
    drafter = Lookahead(window=4, ngram=3, verified=4)
    model = counting_model(6)
    result = Decoder(model, drafter, AllCandidates()).generate([0, 1], max_new_tokens=60)
    plain = Decoder(model).generate([0, 1], max_new_tokens=60)
    assert result.token_ids == plain.token_ids
    assert result.tokens_per_step > 2


def test_columns_too_deep_for_the_tree_keep_their_guess():
    """The window starts as 5, 6, 7. With one more token wanted than the root's next, only its first column is fed."""
    drafter = Lookahead(window=3)
    Decoder(counting_model(11), drafter, AllCandidates()).generate([5, 6, 7], max_new_tokens=2)
    assert columns(drafter) == [(5, 6), (5, 6, 6), (5, 6, 7, 7)]


def test_the_window_of_the_papers_setting_is_fed_whole():
    """W = 15, N = 5, G = 15: the deepest column is 18 tokens below the root."""
    drafter = Lookahead(window=15, ngram=5, verified=15)
    builder, depths = AllCandidates(4 * (15 + 15), candidates=drafter.max_candidates), []
    decoder = Decoder(counting_model(50), drafter, builder)
    decoder.generate([0, 1], max_new_tokens=200, observers=[lambda one: depths.append(one.tree.shape.max_depth)])
    assert depths[10] == 18


def test_a_replay_of_it_is_approximate():
    assert fidelity(Parts(Lookahead(), AllCandidates())).grade is Grade.APPROXIMATE
