"""A small Llama as the target of drafters that read its states, and their further tests."""

from typing import ClassVar

import numpy as np
import torch

from helpers.small_models import VOCABULARY, small_model
from specexp.builders import BeamRerank, Chain, DySpecGreedy, StaticTree
from specexp.core.context import Context
from specexp.core.contracts import TreeBuilder
from specexp.core.language_model import LanguageModel
from specexp.core.loop import Decoder
from specexp.core.outcome import prefill_outcome
from specexp.core.parts import Parts
from specexp.scheduling import Batched, Job
from specexp.verifiers import KeyedSampling

FIXED = (Chain(3), StaticTree([[0], [1], [0, 0], [0, 0, 0]]))


def prefill_with_hidden(target, text):
    """Return the prefill of a text, with the target's hidden states."""
    target.keep_hidden(True)
    target.cache.truncate(0, 0)
    (hidden,) = target.prefill(0, text[:-1]).hidden
    return prefill_outcome(Context(text), np.array(text[:-1]), torch.empty(0, 0), hidden)


class OnLlama:
    """Tests to inherit before a contract of drafters.

    Attributes:
        builders: builders that it drafts for.
    """

    vocab_size = VOCABULARY
    hidden_size = 32
    builders: ClassVar[tuple[TreeBuilder, ...]] = (
        *FIXED,
        BeamRerank(8, 3, 3),
        DySpecGreedy(8, candidates="top-k"),
    )

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
