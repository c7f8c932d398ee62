"""EAGLE's layer on the target's states by hand, and bound to the target it was trained for."""

import numpy as np
import pytest
import torch
from helpers.contracts import contract_of
from helpers.on_llama import OnLlama
from helpers.small_heads import WIDTH, eagle_head as head, eagle_network as network
from helpers.small_models import small_model
from transformers import DynamicCache

from specexp.builders import Chain
from specexp.core.loop import Decoder
from specexp.drafters import Eagle
from specexp.drafters.networks import EagleHead
from specexp.testing.drafters import DrafterContract, DrawingDrafterContract

TestEagle = contract_of(DrawingDrafterContract, lambda: Eagle(head()), OnLlama)
TestCoupled = contract_of(DrafterContract, lambda: Eagle(head(), coupled=True), OnLlama)


def test_a_row_is_a_token_with_the_state_before_it_and_sees_those_up_to_it():
    """One row, with the keys and values of those before, is the same as in a pass over all."""
    made, generator = network(), torch.Generator().manual_seed(1)
    embedded, states = torch.randn((2, 5, WIDTH), generator=generator)
    whole, cache = made(embedded, states, torch.arange(5)), DynamicCache()
    made(embedded[None, :4], states[None, :4], torch.arange(4), cache=cache)
    alone = made(embedded[None, 4:], states[None, 4:], torch.tensor([4]), cache=cache)[0]
    torch.testing.assert_close(alone[0], whole[4])


def test_a_new_head_returns_the_given_state():
    embedded, states = torch.randn((2, 5, WIDTH))
    torch.testing.assert_close(EagleHead(WIDTH, 2, 24)(embedded, states, torch.arange(5)), states)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("Qwen3", {}, "the head of Eagle was trained for another target than this qwen3 model"),
        ("Llama", {"qkv.weight": np.zeros(3)}, "the head must have the arrays of an EagleHead"),
    ],
)
def test_a_head_of_another_target_and_a_damaged_one_are_refused(name, changes, message):
    with pytest.raises(ValueError, match=message):
        Decoder(small_model(name), Eagle({**head(), **changes}), Chain(2))


def test_a_head_of_another_drafter_is_refused():
    with pytest.raises(ValueError, match=r"the head of Eagle lacks the array .down\.weight."):
        Eagle({name: array for name, array in head().items() if name != "down.weight"})
    with pytest.raises(ValueError, match="the head of Eagle has the unknown array 'weight'"):
        Eagle({**head(), "weight": np.zeros(3)})
