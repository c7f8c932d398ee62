"""A small Llama as the target of drafters that read its states, and their further tests."""

from typing import ClassVar

import numpy as np
import pytest
import torch

from helpers.requests import chain_request
from helpers.small_eagle3 import target_model
from helpers.small_models import VOCABULARY, small_model
from specexp.builders import BeamRerank, Chain, DySpecGreedy, StaticTree
from specexp.core.context import Context
from specexp.core.contracts import TreeBuilder
from specexp.core.language_model import LanguageModel
from specexp.core.loop import Decoder
from specexp.core.outcome import prefill_outcome
from specexp.core.parts import Parts
from specexp.replay.format.trie import RecordingError
from specexp.replay.play.fidelity import models_in
from specexp.scheduling import Batched, Job
from specexp.verifiers import KeyedSampling

FIXED = (Chain(3), StaticTree([[0], [1], [0, 0], [0, 0, 0]]))


def begun_on(target, drafter, text):
    """Return a sequence that a drafter has begun on a target."""
    drafter.use_target(target)
    context, prefill = Context(text), None
    target.keep_hidden(drafter.wants_hidden)
    target.cache.truncate(0, 0)
    if drafter.wants_hidden and len(text) > 1:
        (hidden,) = target.prefill(0, text[:-1]).hidden
        prefill = prefill_outcome(context, np.array(text[:-1]), torch.empty(0, 0), hidden)
    drafter.begin(context, prefill)
    return context


def check_log_probs(candidates, expected):
    """Compare candidates with the log-probabilities ``[f, V]`` of all tokens, of which those above -inf are drafted."""
    for tokens, log_probs, row in zip(candidates.tokens, candidates.log_probs, expected, strict=True):
        there = tokens >= 0
        assert sorted(tokens[there].tolist()) == torch.isfinite(row).nonzero().flatten().tolist()
        assert log_probs[there] == pytest.approx(row[tokens[there]].numpy(), abs=1e-5)


class OnLlama:
    """Tests to inherit before a contract of drafters.

    Attributes:
        builders: builders that it drafts for.
    """

    vocab_size = VOCABULARY
    hidden_size = 32
    builders: ClassVar[tuple[TreeBuilder, ...]] = (*FIXED, BeamRerank(8, 3, 3), DySpecGreedy(8, candidates="top-k"))

    def make_target(self):
        return LanguageModel(small_model("Llama"))

    def test_keyed_samples_are_plain_decodings(self):
        target, verifier = self.make_target(), KeyedSampling(0.7)
        for prompt in ([3], [1, 2, 3, 1, 2]):
            expected = Decoder(target, verifier=verifier).generate(prompt, max_new_tokens=24, seed=3)
            for builder in self.builders:
                decoder = Decoder(target, self.make_drafter(), builder, verifier)
                found = decoder.generate(prompt, max_new_tokens=24, seed=3)
                assert found.token_ids == expected.token_ids

    def test_after_accepted_tokens_it_drafts_as_after_their_prefill(self):
        walked, fresh, seen = self.make_drafter(), self.make_drafter(), []
        first = range(min(40, walked.max_candidates))  # a head's candidates are bounded once it has a target
        tree = StaticTree([[rank] for rank in first] + [[rank, 0] for rank in first])
        decoder = Decoder(self.make_target(), walked, tree)
        decoder.generate([1, 2, 3], max_new_tokens=20, seed=0, observers=[seen.append])
        assert sum(len(outcome.accepted) for outcome in seen) > 0
        context = seen[0].context
        begun = begun_on(self.make_target(), fresh, context.token_ids.tolist())
        found, expected = (
            one.propose(text, chain_request(text, (5, 6), min(9, walked.max_candidates), rows=[0, 1, 2]))
            for one, text in ((walked, context), (fresh, begun))
        )
        assert found.tokens.tolist() == expected.tokens.tolist()
        if walked.gives_log_probs:
            assert found.log_probs == pytest.approx(expected.log_probs, abs=1e-5)

    def test_it_cannot_be_recorded(self):
        with pytest.raises(RecordingError, match="cannot be recorded, since it runs its draft model"):
            models_in(self.make_drafter())

    def test_a_conversation_goes_on_with_its_states(self):
        decoder = Decoder(self.make_target(), self.make_drafter(), Chain(3))
        plain = Decoder(self.make_target())
        text = [1, 2, 3]
        for turn in ([], [9, 8], [4]):
            text = [*text, *turn]
            expected = plain.generate(text, max_new_tokens=8).token_ids
            found = decoder.generate(text, max_new_tokens=8, continue_conversation=bool(turn))
            assert found.token_ids == expected
            text = [*text, *expected]

    def test_sequences_decoded_together_have_rows_of_their_own(self):
        target = self.make_target()
        jobs = [Job((1, 2, 3), 0, 12), Job((1, 2, 3), 1, 12), Job((4, 5), 2, 12)]
        with Batched(2).open(target, Parts(self.make_drafter(), Chain(3))) as executor:
            results = executor.run(jobs).results
        for job, result in zip(jobs, results, strict=True):
            assert result.token_ids == Decoder(target).generate(job.prompt, max_new_tokens=12).token_ids
            assert result.draft_passes > 0


class OnDeepLlama(OnLlama):
    """On a Llama of six layers, for drafters that read the states of some of them."""

    def make_target(self):
        return LanguageModel(target_model())
