"""Medusa's heads by hand, on a small target, and bound to the target they were trained for."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from helpers.contracts import contract_of
from helpers.on_llama import FIXED, OnLlama, begun_on
from helpers.requests import chain_request
from helpers.small_families import family_model
from helpers.small_heads import WIDTH, medusa_head as head
from helpers.small_models import FULL_ATTENTION, VOCABULARY, build, small_model

from specexp.artifacts import ArtifactError
from specexp.builders import Chain
from specexp.config.artifacts import load_artifact, save_artifact
from specexp.core.language_model import LanguageModel
from specexp.core.loop import Decoder
from specexp.core.parts import Parts
from specexp.core.tree import NO_CANDIDATE
from specexp.drafters import Medusa, PromptLookup, Union
from specexp.drafters.networks import MedusaHeads
from specexp.drafters.target_mark import MARK, mark_of
from specexp.scheduling import Scheduled
from specexp.testing.drafters import DrafterContract, DrawingDrafterContract

TestMedusa = contract_of(DrawingDrafterContract, lambda: Medusa(head()), OnLlama)
TestCoupled = pytest.mark.slow(contract_of(DrafterContract, lambda: Medusa(head(), coupled=True), OnLlama))


class InAUnion(OnLlama):
    builders = FIXED  # looked-up tokens have no probabilities


TestInAUnion = contract_of(DrafterContract, lambda: Union([PromptLookup(), Medusa(head())]), InAUnion)


def ask(drafter, context, depth):
    """Return the candidates below a node of this depth, and the passes."""
    answer = drafter.propose(context, chain_request(context, [context.root] * depth, 2))
    return answer.tokens[0].tolist(), answer.pass_tokens


def test_a_head_a_depth_reads_the_state_before_the_root():
    """Heads that are the identity give the target's own candidates before the root at every depth."""
    target = LanguageModel(small_model("Llama"))
    untrained = {**head(), "weight": np.zeros((1, 3, WIDTH, WIDTH)), "bias": np.zeros((1, 3, WIDTH))}
    drafter, prompt = Medusa(untrained), [3, 1, 4, 1, 5]
    drafter.check_vocabulary(VOCABULARY)
    context = begun_on(target, drafter, prompt)
    expected = target.prefill(1, prompt[:-1], all_logits=True).logits[0][-1].topk(2).indices.tolist()
    assert ask(drafter, context, 0) == (expected, (1,))
    assert [ask(drafter, context, depth) for depth in (1, 2)] == [(expected, ())] * 2
    assert ask(drafter, context, 3) == ([NO_CANDIDATE] * 2, ())


@pytest.mark.parametrize("name", ["Gemma2", "Granite"])
def test_a_heads_logits_have_the_targets_final_scale_and_cap(name):
    target, prompt = LanguageModel(family_model(name)), [3, 1, 4, 1, 5]
    none = {"weight": np.zeros((1, 1, WIDTH, WIDTH)), "bias": np.zeros((1, 1, WIDTH))}
    drafter = Medusa({**none, MARK: mark_of(target.model.get_output_embeddings())})
    begun_on(target, drafter, prompt)
    expected = target.prefill(1, prompt[:-1], all_logits=True).logits[0][-1]
    torch.testing.assert_close(drafter._logits()[0], expected)


def test_a_head_adds_its_blocks_answer_to_the_state():
    network = MedusaHeads.of(head(heads=2))
    state = torch.randn(WIDTH, generator=torch.Generator().manual_seed(0))
    inner = network.weight[0, 1] @ state + network.bias[0, 1]
    torch.testing.assert_close(network(state)[1], state + inner * torch.sigmoid(inner))


def test_states_are_kept_only_while_a_drafter_reads_them():
    target = LanguageModel(small_model("Llama"))
    asking, other = Decoder(target, Medusa(head()), Chain(2)), Decoder(target)
    asking.generate([1, 2, 3], max_new_tokens=4)
    assert target.keeps_hidden
    other.generate([1, 2, 3], max_new_tokens=4)
    assert not target.keeps_hidden


def test_a_head_of_another_target_is_refused():
    other_width = build("Llama", {**FULL_ATTENTION["Llama"], "hidden_size": 64})
    for other in (small_model("Qwen3"), other_width, other_width.to("meta")):
        with pytest.raises(ValueError, match="the head of Medusa was trained for another target than this"):
            Decoder(other, Medusa(head()), Chain(2))


def test_a_rounded_target_and_one_of_a_dry_run_are_accepted():
    """A dry run has no weights, so only the shape is compared."""
    for target in (deepcopy(small_model("Llama")).bfloat16(), deepcopy(small_model("Llama")).to("meta")):
        Decoder(target, Medusa(head()), Chain(2))


def test_a_head_is_an_artifact(tmp_path):
    recorded = {"drafter": {"class_path": "Medusa", "init_args": {"coupled": True}}}
    save_artifact(tmp_path / "head", "draft-head", {"head.safetensors": head(), "parts.json": recorded})
    drafter = load_artifact(tmp_path / "head").drafter
    assert isinstance(drafter, Medusa)
    assert drafter.coupled
    broken = {**head(), "bias": np.full((1, 3, WIDTH), np.nan, np.float32)}
    with pytest.raises(ArtifactError, match="'bias' has numbers that are not finite"):
        save_artifact(tmp_path / "broken", "draft-head", {"head.safetensors": broken, "parts.json": recorded})
    with pytest.raises(ArtifactError, match="drafter is missing"):
        save_artifact(tmp_path / "none", "draft-head", {"head.safetensors": head(), "parts.json": {}})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Medusa({"weight": head()["weight"]}), "the head of Medusa lacks the array 'bias'"),
        (
            lambda: Decoder(small_model("Llama"), Medusa({**head(), "bias": np.zeros(3)}), Chain(2)),
            "\\[blocks, heads, d, d\\] and",
        ),
        (lambda: Scheduled(2).check(Parts(Medusa(head()), Chain(2))), "hidden states that Medusa reads"),
    ],
)
def test_what_does_not_go_together_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
