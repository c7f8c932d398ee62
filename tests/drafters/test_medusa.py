"""Medusa's heads by hand, on a target whose states and output layer are known, and bound to the one they are for."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from helpers.on_llama import FIXED, OnLlama
from helpers.small_models import FULL_ATTENTION, VOCABULARY, build, small_model

from specexp.artifacts import ArtifactError
from specexp.builders import Chain
from specexp.config.artifacts import load_artifact, save_artifact
from specexp.core.context import Context
from specexp.core.dialogue import Request
from specexp.core.language_model import LanguageModel
from specexp.core.loop import Decoder
from specexp.core.outcome import prefill_outcome
from specexp.core.parts import Parts
from specexp.core.tree import NO_CANDIDATE
from specexp.drafters import Medusa, PromptLookup, Union
from specexp.drafters.networks import MedusaHeads
from specexp.drafters.target_mark import mark_of
from specexp.replay.format.trie import RecordingError
from specexp.replay.play.fidelity import models_in
from specexp.scheduling import Scheduled
from specexp.testing.drafters import DrafterContract, DrawingDrafterContract

WIDTH = 32


def head(target="Llama", heads=3, seed=0):
    """Random heads for a small model, as an artifact holds them."""
    generator = np.random.default_rng(seed)
    model = small_model(target)
    return {
        "weight": generator.normal(0, 0.3, (1, heads, WIDTH, WIDTH)).astype(np.float32),
        "bias": generator.normal(0, 0.1, (1, heads, WIDTH)).astype(np.float32),
        "target": mark_of(model.get_output_embeddings()),
    }


class TestMedusa(OnLlama, DrawingDrafterContract):
    def make_drafter(self):
        return Medusa(head())


class TestCoupled(OnLlama, DrafterContract):
    def make_drafter(self):
        return Medusa(head(), coupled=True)


class TestInAUnion(OnLlama, DrafterContract):
    builders = FIXED  # looked-up tokens have no probabilities

    def make_drafter(self):
        return Union([PromptLookup(), Medusa(head())])


def ask(drafter, context, depth, k=2):
    """Candidates below a node so deep."""
    tokens = np.full(depth + 1, context.root, dtype=np.int64)
    request = Request(tokens, np.arange(depth + 1) - 1, np.zeros_like(tokens), np.array([depth]), k)
    answer = drafter.propose(context, request)
    return answer.tokens[0].tolist(), answer.pass_tokens


def begun(drafter, target, prompt):
    context = Context(prompt)
    target.cache.truncate(0, 0)
    target.keep_hidden(True)
    target.prefill(0, prompt[:-1])
    drafter.use_target(target)
    drafter.check_vocabulary(VOCABULARY)
    drafter.begin(
        context, prefill_outcome(context, np.array(prompt[:-1]), torch.empty(0, 0), target.hidden[0])
    )
    return context


def test_a_head_a_depth_reads_the_state_before_the_root():
    """Heads that begin as the identity say at every depth what the target said at the position before the root."""
    target = LanguageModel(small_model("Llama"))
    untrained = {**head(), "weight": np.zeros((1, 3, WIDTH, WIDTH)), "bias": np.zeros((1, 3, WIDTH))}
    drafter, prompt = Medusa(untrained), [3, 1, 4, 1, 5]
    context = begun(drafter, target, prompt)
    expected = target.prefill(1, prompt[:-1], all_logits=True)[-1].topk(2).indices.tolist()
    assert ask(drafter, context, 0) == (expected, (1,))
    assert [ask(drafter, context, depth) for depth in (1, 2)] == [(expected, ())] * 2
    assert ask(drafter, context, 3) == ([NO_CANDIDATE] * 2, ())


def test_a_head_adds_what_a_block_makes_of_the_state():
    network = MedusaHeads.of(head(heads=2))
    state = torch.randn(WIDTH, generator=torch.Generator().manual_seed(0))
    inner = network.weight[0, 1] @ state + network.bias[0, 1]
    torch.testing.assert_close(network(state)[1], state + inner * torch.sigmoid(inner))


def test_states_are_kept_only_while_somebody_reads_them():
    target = LanguageModel(small_model("Llama"))
    asking, other = Decoder(target, Medusa(head()), Chain(2)), Decoder(target)
    asking.generate([1, 2, 3], max_new_tokens=4)
    assert target.hidden
    other.generate([1, 2, 3], max_new_tokens=4)
    assert not target.hidden


def test_a_head_of_another_target_is_refused():
    for other in (small_model("Qwen3"), build("Llama", {**FULL_ATTENTION["Llama"], "hidden_size": 64})):
        with pytest.raises(ValueError, match="the head of Medusa was trained for another target than this"):
            Decoder(other, Medusa(head()), Chain(2))
    Decoder(deepcopy(small_model("Llama")).bfloat16(), Medusa(head()), Chain(2))  # the same one, rounded


def test_a_rehearsals_target_without_values_is_asked_for_its_shape_alone():
    Decoder(deepcopy(small_model("Llama")).to("meta"), Medusa(head()), Chain(2))
    other = build("Llama", {**FULL_ATTENTION["Llama"], "hidden_size": 64}).to("meta")
    with pytest.raises(ValueError, match="the head of Medusa was trained for another target than this"):
        Decoder(other, Medusa(head()), Chain(2))


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


def test_what_does_not_go_together_is_refused():
    with pytest.raises(ValueError, match="coupled and temperature"):
        Medusa(head(), temperature=0.5, coupled=True)
    with pytest.raises(ValueError, match="the head of Medusa has the arrays"):
        Medusa({"weight": head()["weight"]})
    with pytest.raises(ValueError, match="\\[blocks, heads, d, d\\] and"):
        Decoder(small_model("Llama"), Medusa({**head(), "bias": np.zeros(3)}), Chain(2))
    with pytest.raises(RecordingError, match="Medusa runs its draft model in a way of its own"):
        models_in(Medusa(head()))
    with pytest.raises(ValueError, match="Medusa reads its hidden states, which are not sent there"):
        Scheduled(2).check(Parts(Medusa(head()), Chain(2)))
