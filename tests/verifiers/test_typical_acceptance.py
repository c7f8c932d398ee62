"""Typical acceptance by hand, and its loss."""

from math import exp, log

import numpy as np
import pytest
import torch
from helpers.branching import logits_of
from helpers.contracts import contract_of

from specexp.builders import KConfig
from specexp.core.context import Context
from specexp.core.loop import Decoder
from specexp.core.tree import TokenTree, TreeShape, root_tree
from specexp.drafters import DraftModel
from specexp.testing.fakes import hashed_model
from specexp.testing.verifiers import VerifierContract
from specexp.verifiers import Greedy, TypicalAcceptance

TestDefault = contract_of(VerifierContract, lambda: TypicalAcceptance())
TestProcessed = contract_of(
    VerifierContract, lambda: TypicalAcceptance(temperature=0.7, epsilon=0.2, delta=0.4, top_k=4, top_p=0.95)
)


def accepted_tokens(probabilities, **options):
    """Which single children are accepted after a root with these target probabilities."""
    logits = torch.from_numpy(np.stack([logits_of(probabilities)] * 2))
    shape = TreeShape([-1, 0], [-1, 0])
    trees = [TokenTree(shape, np.array([0, token])) for token in range(len(probabilities))]
    verifier = TypicalAcceptance(**options)
    return [token for token, tree in enumerate(trees) if verifier.verify(Context([0]), tree, logits).accepted]


SHARES = (0.5, 0.3, 0.15, 0.05)  # H = 1.142, exp(-H) = 0.319


@pytest.mark.parametrize(
    ("epsilon", "delta", "accepted"),
    [
        (0.09, 1.0, [0, 1, 2]),  # epsilon decides: more than 0.09
        (0.04, 1.0, [0, 1, 2, 3]),
        (1.0, 1.0, [0]),  # exp(-H) decides: more than 0.319
        (1.0, 0.5, [0, 1]),  # more than 0.160
        (1.0, 0.1, [0, 1, 2, 3]),  # more than 0.032
        (0.4, 1.0, [0]),
    ],
)
def test_a_token_is_typical_above_the_lower_of_two_bounds(epsilon, delta, accepted):
    assert exp(sum(share * log(share) for share in SHARES)) == pytest.approx(0.319, abs=1e-3)
    assert accepted_tokens(SHARES, epsilon=epsilon, delta=delta) == accepted


def test_the_bound_itself_is_not_enough():
    assert accepted_tokens((0.5, 0.5), epsilon=0.5, delta=1.0) == []
    assert accepted_tokens((0.5, 0.5), epsilon=0.5, delta=0.99) == [0, 1]


def test_impossible_tokens_count_for_nothing():
    assert accepted_tokens((0.5, 0.5, 0.0), epsilon=0.4, delta=1.0) == [0, 1]


def verdict(tokens, parents, rows, **options):
    tree = TokenTree(TreeShape(parents, [-1] + [0] * (len(parents) - 1)), np.array(tokens))
    return TypicalAcceptance(**options).verify(Context([0]), tree, torch.from_numpy(np.stack(rows)))


def test_the_longest_accepted_path_wins_among_equals_the_most_probable():
    likely, split = logits_of((0.6, 0.4, 0.0)), logits_of((0.2, 0.8, 0.0))
    bonus = logits_of((0.0, 0.0, 1.0))
    # below 0 (0.6) hangs 0 (0.2 there), below 1 (0.4) hangs 1 (0.8 there): 0.12 and 0.32
    found = verdict([0, 0, 1, 0, 1], [-1, 0, 0, 1, 2], [likely, split, split, bonus, bonus])
    assert (found.accepted, found.bonus) == ((2, 4), 2)
    # a third level below the less probable one
    found = verdict(
        [0, 0, 1, 0, 1, 2],
        [-1, 0, 0, 1, 2, 3],
        [likely, split, split, bonus, bonus, logits_of((1.0, 0.0, 0.0))],
    )
    assert (found.accepted, found.bonus) == ((1, 3, 5), 0)


def test_nothing_below_a_refused_node_is_accepted():
    rows = [logits_of((0.98, 0.02)), logits_of((0.0, 1.0)), logits_of((0.0, 1.0))]
    found = verdict([0, 1, 1], [-1, 0, 1], rows)
    assert found.accepted == ()


def test_the_bonus_is_a_sample_of_the_target_after_the_path():
    rows = np.stack([logits_of((0.5, 0.5, 0.0)), logits_of((0.25, 0.0, 0.75))])
    tree = TokenTree(TreeShape([-1, 0], [-1, 0]), np.array([0, 1]))
    drawn = [
        TypicalAcceptance().verify(Context([0], sequence=sequence), tree, torch.from_numpy(rows)).bonus
        for sequence in range(800)
    ]
    assert 1 not in drawn
    assert np.mean(np.array(drawn) == 2) == pytest.approx(0.75, abs=0.05)


def test_it_is_declared_lossy():
    """A drafted token of 30 % is always the output: the target says so in 3 of 10 cases."""
    assert not TypicalAcceptance.lossless
    logits = torch.from_numpy(np.stack([logits_of((0.7, 0.3))] * 2))
    tree = TokenTree(TreeShape([-1, 0], [-1, 0]), np.array([0, 1]))
    contexts, verify = [Context([0], seed=seed) for seed in range(50)], TypicalAcceptance().verify
    assert {verify(context, tree, logits).accepted for context in contexts} == {(1,)}
    assert {verify(context, root_tree(0), logits[:1]).bonus for context in contexts} == {0, 1}


def test_at_temperature_0_it_is_greedy():
    model = hashed_model(20)
    decoder = Decoder(model, DraftModel(hashed_model(20, seed=1)), KConfig([3, 2]), TypicalAcceptance(0))
    expected = Decoder(model, verifier=Greedy()).generate([1, 2], max_new_tokens=30).token_ids
    assert decoder.generate([1, 2], max_new_tokens=30, seed=0).token_ids == expected
