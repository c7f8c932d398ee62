"""The target's first layers draft for it: with its weights, and without changing them or its output."""

import pytest
from helpers.contracts import contract_of
from helpers.on_llama import OnLlama
from helpers.small_models import FULL_ATTENTION, build, small_model

from specexp.builders import Chain, StaticTree
from specexp.core.loop import Decoder
from specexp.drafters import DraftModel, EarlyExit
from specexp.testing.drafters import DrafterContract, DrawingDrafterContract
from specexp.verify.toy import toy_models

TestEarlyExit = contract_of(DrawingDrafterContract, lambda: EarlyExit(1), OnLlama)
TestCoupled = pytest.mark.slow(contract_of(DrafterContract, lambda: EarlyExit(1, coupled=True), OnLlama))


@pytest.mark.parametrize("name", ["Llama", "Qwen3", "Gemma"])
def test_it_drafts_what_a_model_of_the_first_layers_drafts(name):
    target = small_model(name)
    shallow = build(name, {**FULL_ATTENTION[name], "num_hidden_layers": 1})
    weights = target.state_dict()
    shallow.load_state_dict({key: weights[key] for key in shallow.state_dict()})
    drafted = []
    for drafter in (EarlyExit(1), DraftModel(shallow)):
        seen = []
        Decoder(target, drafter, StaticTree([[0], [1], [0, 0]])).generate(
            [1, 2, 3], max_new_tokens=16, observers=[seen.append]
        )
        drafted.append([outcome.tree.tokens.tolist() for outcome in seen])
    assert drafted[0] == drafted[1]
    assert target.config.num_hidden_layers == len(target.model.layers) == 2


def test_the_weights_are_the_targets():
    target = small_model("Llama")
    drafter = EarlyExit(1)
    Decoder(target, drafter, Chain(2))
    mine = drafter.models[0].model
    assert mine.lm_head.weight is target.lm_head.weight
    assert mine.model.layers[0] is target.model.layers[0]


@pytest.mark.parametrize(
    ("target", "layers", "message"),
    [
        (lambda: small_model("Llama"), 2, "EarlyExit: layers must be from 1 to 1, got 2"),
        (lambda: small_model("GPT2"), 1, "the target must have one list of layers, got GPT2LMHeadModel"),
        (lambda: toy_models().target, 1, "the target must have one list of layers, got ToyModel"),
    ],
)
def test_targets_without_a_layer_to_leave_at_are_refused(target, layers, message):
    with pytest.raises(ValueError, match=message):
        Decoder(target(), EarlyExit(layers), Chain(2))
