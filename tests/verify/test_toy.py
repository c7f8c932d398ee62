"""The toy target answers as a real causal LM would, and its laws are enumerated without a mistake."""

from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from helpers.toy_schedules import PROMPT

from specexp.builders import StaticTree
from specexp.core.context import Context
from specexp.core.language_model import LanguageModel
from specexp.core.loop import Decoder
from specexp.core.outcome import Outcome
from specexp.core.parts import Parts
from specexp.core.runtime import Growth
from specexp.core.sampling import Processors
from specexp.core.tree import ROOT_ONLY, TokenTree, TreeShape
from specexp.drafters import DraftModel, EarlyExit, PromptLookup, TokenRecycling
from specexp.testing.fakes import FakeCausalLM
from specexp.verifiers import KeyedSampling
from specexp.verify.first_tokens import likely_starts
from specexp.verify.result import StepEndings
from specexp.verify.run import chunk_runner
from specexp.verify.toy import LIVE, MANNERS, ToyLaw, sample_chunk, toy_models, toy_vocabulary

TREE = [[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0]]


def as_causal_lm(target):
    """The same logits behind a real cache and real masks."""

    def next_logits(tokens):
        before = min(tokens[-2], LIVE) if len(tokens) > 1 else LIVE
        return target.table[before, min(tokens[-1], LIVE)].tolist()

    return LanguageModel(FakeCausalLM(next_logits, target.vocab_size))


def test_it_decodes_as_a_wrapped_model_does():
    target = toy_models(vocabulary=8, seed=3)[0]
    real = as_causal_lm(target)
    for sequence in range(4):
        answers = [
            Decoder(model, TokenRecycling(k=4), StaticTree(TREE), KeyedSampling(0.8)).generate(
                PROMPT, max_new_tokens=25, sequence=sequence, seed=0
            )
            for model in (target, real)
        ]
        assert answers[0].token_ids == answers[1].token_ids
        assert answers[0].steps == answers[1].steps


@pytest.mark.parametrize("manner", MANNERS)
@pytest.mark.parametrize("law", [(1.0, None, None), (0.5, 3, 0.95), (1.5, None, 0.7)])
def test_after_any_two_tokens_the_target_has_one_law_by_rank(law, manner):
    processors = Processors(*law)
    toy = toy_models(vocabulary=6, temperature=law[0], manner=manner)
    for before, last in product(range(LIVE + 1), repeat=2):
        shares = processors.probabilities(torch.from_numpy(toy.target.table[before, last]))
        tokens = np.argsort(toy.ranks[before, last])
        assert shares[tokens] == pytest.approx(toy.law(processors), abs=1e-9)
        for place, token in enumerate(tokens):
            assert toy.ranks_of([before, last, int(token)]).tolist() == [place]
    assert toy.ranks_of([0, 1, LIVE]).tolist() == [LIVE]


def test_laws_by_hand():
    toy = toy_models(temperature=0.5)
    assert toy.law(Processors(0.5)) == pytest.approx([0.46, 0.24, 0.15, 0.1, 0.05])
    assert toy.law(Processors(0.5, 2)) == pytest.approx([46 / 70, 24 / 70, 0, 0, 0])
    assert toy.law(Processors(0.0)).tolist() == [1, 0, 0, 0, 0]
    hotter = np.sqrt([0.46, 0.24, 0.15, 0.1, 0.05])
    assert toy.law(Processors(1.0)) == pytest.approx(hotter / hotter.sum())


def test_a_growing_draft_sees_what_stands_above_each_row():
    toy = toy_models(vocabulary=6)
    draft = toy.draft
    draft.prefill(0, [3, 1])
    (first,) = draft.grow([0], [Growth(np.array([4]), np.array([0]), np.ones((1, 1), dtype=bool))]).logits
    assert first[0].tolist() == draft.table[1, 4].tolist()
    visible = np.array([[True, True, False], [True, False, True]])
    (below,) = draft.grow([0], [Growth(np.array([0, 2]), np.array([1, 1]), visible)]).logits
    assert below.tolist() == [draft.table[4, 0].tolist(), draft.table[4, 2].tolist()]
    draft.commit(0, [0, 2])
    assert draft.cache.tokens[0] == [3, 1, 4, 2]


def test_the_likeliest_beginnings_have_their_exact_probabilities():
    toy = toy_models(vocabulary=8)
    processors = Processors(0.8, None, 0.95)
    law = toy.law(processors)
    starts = likely_starts(toy.target, "a", PROMPT, processors, 2)
    assert len(starts.sequences) == (law > 0).sum() ** 2
    known = [law[toy.ranks_of([*PROMPT[-2:], *start])].prod() for start in starts.sequences]
    assert known == pytest.approx(starts.probabilities.tolist())
    assert starts.count([starts.sequences[1], starts.sequences[1], (7, 7)])[[1, -1]].tolist() == [2, 1]


def looked_up(draft):
    return Parts(PromptLookup(), StaticTree([[0]]), KeyedSampling(0.8))


@pytest.mark.slow
def test_several_processes_count_as_one_does():
    counts = []
    for workers in (1, 2):
        with chunk_runner(workers) as run:
            tallies = run(partial(sample_chunk, looked_up, ToyLaw(0.8), "open"), range(3))
            counts.append([tally.tokens.tolist() for tally in tallies])
    assert counts[0] == counts[1]
    assert len({str(one) for one in counts[0]}) == 3


def test_the_vocabulary_is_as_wide_as_the_parts_ask():
    def parts(drafter, rank):
        return lambda draft: Parts(drafter or DraftModel(draft), StaticTree([[r] for r in range(rank)]), None)

    assert toy_vocabulary(parts(PromptLookup(candidates=2), 2)) == LIVE + 1
    assert toy_vocabulary(parts(TokenRecycling(k=16), 2)) == 16
    assert toy_vocabulary(parts(None, 12)) == 12
    assert toy_vocabulary(parts(EarlyExit(1), 2)) == LIVE + 1  # whatever its target has
    with pytest.raises(ValueError, match="at least 5"):
        toy_models(vocabulary=4)


SHAPE = TreeShape.from_rank_paths([[0], [1], [0, 0], [0, 0, 0]])


def noted(*steps, shape=SHAPE):
    branches = StepEndings()
    for accepted, new in steps:
        tree = TokenTree(shape, np.arange(shape.num_nodes + 1))
        branches.observe(Outcome(Context([0]), tree, torch.zeros(shape.num_nodes + 1, 8), accepted, new))
    return branches


def test_every_way_a_step_can_end_is_counted():
    found = noted(
        ((), (7,)),  # nothing of two candidates accepted
        ((1,), (1, 7)),  # its child refused
        ((2,), (2, 7)),  # a leaf, but not the deepest
        ((1, 3, 4), (1, 3, 4, 7)),  # everything
        ((1, 3), (1, 3)),  # cut by the limit: how it would have ended is unknown
    )
    assert (dict(found.rejected), dict(found.leaves)) == ({1: 1, 2: 1}, {1: 1, 3: 1})
    assert (found.steps, found.tokens, found.rows, found.whole) == (5, 11, 25, 1)
    assert found.never == ["rejected at depth 3"]
    total = noted(((), (7,))) + noted(((1, 3, 4), (1, 3, 4, 7)))
    assert (total.steps, sum(total.rejected.values()), total.whole, total.deepest) == (2, 1, 1, 3)
    assert total.never == ["rejected at depth 2, 3"]
    plain = noted(((), (7,)), shape=ROOT_ONLY)
    assert (plain.never, str(plain)) == ([], "1 steps, nothing drafted")
