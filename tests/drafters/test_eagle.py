"""A layer on the target's states: what it reads when, and that nothing but speed depends on it."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from helpers.on_llama import OnLlama
from helpers.small_models import VOCABULARY, small_model

from specexp.builders import Chain, StaticTree
from specexp.core.context import Context
from specexp.core.dialogue import Request
from specexp.core.language_model import LanguageModel
from specexp.core.loop import Decoder
from specexp.core.outcome import prefill_outcome
from specexp.drafters import Eagle
from specexp.drafters.networks import EagleHead
from specexp.drafters.target_mark import mark_of
from specexp.replay.format.trie import RecordingError
from specexp.replay.play.fidelity import models_in
from specexp.testing.drafters import DrafterContract, DrawingDrafterContract

WIDTH = 32


def network():
    torch.manual_seed(0)
    head = EagleHead(WIDTH, heads=2, inner=24)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return head.eval().requires_grad_(False)


def head():
    """Random numbers for a small model, as an artifact holds them."""
    arrays = {name: value.numpy() for name, value in network().state_dict().items()}
    return {
        **arrays,
        "heads": np.array([2]),
        "target": mark_of(small_model("Llama").get_output_embeddings()),
    }


class TestEagle(OnLlama, DrawingDrafterContract):
    def make_drafter(self):
        return Eagle(head())


class TestCoupled(OnLlama, DrafterContract):
    def make_drafter(self):
        return Eagle(head(), coupled=True)


def test_a_row_is_a_token_with_the_state_before_it_and_sees_those_up_to_it():
    """A row by itself, with the keys and values of those before, is made as among them."""
    made, generator = network(), torch.Generator().manual_seed(1)
    embedded, states = torch.randn((2, 5, WIDTH), generator=generator)
    whole, (keys, values) = made(embedded, states, torch.arange(5))
    visible = torch.ones((1, 5), dtype=torch.bool)
    known = keys[:, :4], values[:, :4]
    alone, _ = made(embedded[4:], states[4:], torch.tensor([4]), visible, known)
    torch.testing.assert_close(alone[0], whole[4])


def test_a_new_head_goes_on_with_the_state_it_is_given():
    embedded, states = torch.randn((2, 5, WIDTH))
    torch.testing.assert_close(EagleHead(WIDTH, 2, 24)(embedded, states, torch.arange(5))[0], states)


def test_after_some_steps_it_says_what_it_says_of_the_same_text_read_at_once():
    target, walked, fresh = LanguageModel(small_model("Llama")), Eagle(head()), Eagle(head())
    seen = []
    decoder = Decoder(target, walked, StaticTree([[rank] for rank in range(VOCABULARY - 1)]))
    decoder.generate([1, 2, 3, 4], max_new_tokens=20, observers=[seen.append])
    context = seen[0].context
    assert sum(len(outcome.accepted) for outcome in seen) > 0
    text = context.token_ids.tolist()
    fresh.use_target(target)
    fresh.begin(Context(text), _told(target, text))
    torch.testing.assert_close(ask(walked, context), ask(fresh, Context(text)), atol=1e-5, rtol=1e-5)


def _told(target, text):
    target.keep_hidden(True)
    target.cache.truncate(0, 0)
    target.prefill(0, text[:-1])
    return prefill_outcome(Context(text), np.array(text[:-1]), torch.empty(0, 0), target.hidden[0])


def ask(drafter, context):
    """Log-probabilities of the best tokens below the root and below two nodes in a row."""
    tokens = np.array([context.root, 5, 6])
    request = Request(tokens, np.arange(3) - 1, np.array([-1, 0, 0]), np.array([0, 1, 2]), 4)
    return torch.from_numpy(drafter.propose(context, request).log_probs)


def test_a_head_of_another_target_or_of_another_drafter_is_refused():
    with pytest.raises(
        ValueError, match="the head of Eagle was trained for another target than this qwen3 model"
    ):
        Decoder(small_model("Qwen3"), Eagle(head()), Chain(2))
    with pytest.raises(ValueError, match="which are none of an EagleHead"):
        Eagle({"weight": np.zeros(3)})
    with pytest.raises(ValueError, match="which are none of an EagleHead"):
        Decoder(small_model("Llama"), Eagle({**head(), "qkv.weight": np.zeros(3)}), Chain(2))
    with pytest.raises(RecordingError, match="Eagle runs its draft model in a way of its own"):
        models_in(Eagle(head()))
    Decoder(deepcopy(small_model("Llama")).bfloat16(), Eagle(head()), Chain(2)).generate(
        [1, 2], max_new_tokens=4
    )
