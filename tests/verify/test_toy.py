"""The toy target answers as a real causal LM would, and its laws are enumerated without a mistake."""

from itertools import product

import numpy as np
import pytest
import torch

from specexp.builders import StaticTree
from specexp.core.decode import Decoder
from specexp.core.language_model import LanguageModel
from specexp.core.parts import Parts
from specexp.core.sampling import Processors
from specexp.drafters import DraftModel, PromptLookup, TokenRecycling
from specexp.scheduling import Job, SerialSpeculative
from specexp.testing.fakes import FakeCausalLM
from specexp.verifiers import KeyedSampling
from specexp.verify.first_tokens import likely_starts
from specexp.verify.joint import vocabulary_for
from specexp.verify.toy import LIVE, PROMPT, toy_models

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


def test_samples_of_one_prompt_share_its_prefill():
    target = toy_models(vocabulary=8)[0]
    parts = Parts(PromptLookup(), StaticTree([[0]]), KeyedSampling(0.8))
    jobs = [Job(PROMPT, f"a#{number}", max_new_tokens=9) for number in range(3)]
    with SerialSpeculative().open(target, parts) as executor:
        several = executor.run(jobs).results
    decoder = Decoder(target, *parts)
    alone = [decoder.generate(PROMPT, max_new_tokens=9, sequence=job.sequence, seed=0) for job in jobs]
    assert [one.token_ids for one in several] == [one.token_ids for one in alone]


@pytest.mark.parametrize("law", [(1.0, None, None), (0.5, 3, 0.9), (1.5, None, 0.7)])
def test_every_sequence_has_the_product_of_its_tokens_probabilities(law):
    target = toy_models(vocabulary=6, temperature=law[0])[0]
    processors = Processors(*law)
    sequences, probabilities = target.joint(processors, 3)
    assert probabilities.sum() == pytest.approx(1.0, abs=1e-9)
    known = dict(zip(map(tuple, sequences.tolist()), probabilities.tolist(), strict=True))
    for sequence in product(range(LIVE), repeat=3):
        history = [*PROMPT, *sequence]
        expected = 1.0
        for place in range(len(PROMPT), len(history)):
            logits = torch.from_numpy(target.table[history[place - 2], history[place - 1]])
            expected *= processors.probabilities(logits)[history[place]]
        assert known.get(sequence, 0.0) == pytest.approx(expected, abs=1e-9)


def test_the_likeliest_beginnings_have_their_exact_probabilities():
    target = toy_models(vocabulary=8)[0]
    processors = Processors(0.8, None, 0.95)
    sequences, probabilities = target.joint(processors, 2)
    starts = likely_starts(target, "a", PROMPT, processors, 2)
    known = dict(zip(map(tuple, sequences.tolist()), probabilities.tolist(), strict=True))
    assert len(starts.sequences) == min(48, len(known))
    assert [known[start] for start in starts.sequences] == pytest.approx(starts.probabilities.tolist())
    assert starts.count([starts.sequences[1], starts.sequences[1], (7, 7)])[[1, -1]].tolist() == [2, 1]


@pytest.mark.parametrize("temperature", [0.3, 1.0, 20.0])
def test_silent_tokens_stay_silent(temperature):
    target = toy_models(vocabulary=64, temperature=temperature)[0]
    after = target.probabilities(Processors(temperature))
    assert after[..., LIVE:].sum(axis=-1).max() < 1e-9


def test_the_vocabulary_is_as_wide_as_the_parts_ask():
    def parts(drafter, rank):
        return lambda draft: Parts(drafter or DraftModel(draft), StaticTree([[r] for r in range(rank)]), None)

    assert vocabulary_for(parts(PromptLookup(candidates=2), 2)) == LIVE + 1
    assert vocabulary_for(parts(TokenRecycling(k=16), 2)) == 16
    assert vocabulary_for(parts(None, 12)) == 12
    with pytest.raises(ValueError, match="at least 5"):
        toy_models(vocabulary=4)


def test_the_draft_agrees_with_the_target_in_part():
    target, draft = toy_models()
    logits = torch.from_numpy(target.table[:, :, :LIVE])
    p = logits.softmax(-1).numpy()
    q = draft.table[None, :, :LIVE].softmax(-1).numpy()
    variation = np.abs(p - q).sum(-1).mean() / 2
    assert 0.15 < variation < 0.5
