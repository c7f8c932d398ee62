"""EAGLE-3 heads in the published layouts, against a plain reading of the recipe, and the layers they read."""

import json
import logging
from copy import deepcopy

import pytest
import torch
from helpers.on_llama import OnDeepLlama, begun_on, check_log_probs
from helpers.requests import chain_request
from helpers.small_eagle3 import (
    HEADS,
    INNER,
    KEPT,
    KEYS,
    LAYERS,
    SAFE,
    SPECULATORS,
    WIDTH,
    published,
    recipe,
    target_model,
)
from helpers.small_models import VOCABULARY
from safetensors.torch import save_file
from transformers import DynamicCache, LlamaConfig

from specexp.builders import BeamRerank, Chain, StaticTree
from specexp.core.language_model import LanguageModel
from specexp.core.loop import Decoder
from specexp.drafters import Eagle3
from specexp.drafters.eagle3 import scores_of
from specexp.drafters.eagle3_network import Eagle3Config, Eagle3Network
from specexp.testing.drafters import DrafterContract, DrawingDrafterContract

SWITCHES = [
    {},
    {"norm_before_residual": True},
    {"norm_before_fc": True},
    {"fc_norm": True, "norm_output": True},
    {"qwen3": True},
    {"layers": 2, "whole": True},
]


@pytest.mark.variants(3)
@pytest.mark.parametrize("layout", [SAFE, SPECULATORS])
@pytest.mark.parametrize("switches", SWITCHES, ids=str)
def test_a_published_head_drafts_by_its_recipe(tmp_path, layout, switches):
    if layout == SAFE and switches.get("layers"):
        pytest.skip("SafeAILab's layout has one layer")
    tensors, own = published(tmp_path, layout, **switches)
    model, text, chain = target_model(), [3, 1, 4, 1, 5, 9, 2, 6], (7, 8)
    drafter = Eagle3(str(tmp_path), layers=list(LAYERS))
    context = begun_on(LanguageModel(model), drafter, text)
    found = drafter.propose(context, chain_request(context, chain, VOCABULARY, rows=[0, 1, 2]))
    with torch.no_grad():
        states = model(torch.tensor([text]), output_hidden_states=True).hidden_states
        states = torch.cat([states[one][0, :-1] for one in LAYERS], dim=-1).double()
        embedded = model.get_input_embeddings()(torch.tensor([*text[1:], *chain])).double()
        expected = recipe(tensors, own, embedded, states, 3).log_softmax(-1)
    check_log_probs(found, expected)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("head")
    published(made)
    return str(made)


class OnLayers(OnDeepLlama):
    hidden_size = 3 * WIDTH

    @pytest.fixture(autouse=True)
    def _set_folder(self, folder):
        type(self).folder = folder


class TestEagle3(OnLayers, DrawingDrafterContract):
    def make_drafter(self):
        return Eagle3(self.folder, layers=list(LAYERS))


@pytest.mark.slow
class TestCoupled(OnLayers, DrafterContract):
    def make_drafter(self):
        return Eagle3(self.folder, layers=list(LAYERS), coupled=True)


def lens(folder, layers):
    """Write a head whose file names these layers, and which returns the state after the last one; return a target.

    All tokens of the target have one embedding, so its distribution is that of this state after 6 layers everywhere.
    """
    model = deepcopy(target_model())
    model.get_input_embeddings().weight.data[:] = model.get_input_embeddings().weight[3].clone()
    layer = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=1,
        num_attention_heads=HEADS, num_key_value_heads=KEYS,
    )  # fmt: skip
    network = Eagle3Network(Eagle3Config(layer, WIDTH, VOCABULARY, layers)).double()
    tensors = network.tensors()
    with torch.no_grad():
        tensors["fc.weight"][:] = torch.eye(3 * WIDTH)[2 * WIDTH :]
        tensors["layers.0.self_attn.o_proj.weight"].zero_()
        tensors["layers.0.mlp.down_proj.weight"].zero_()
        tensors["norm.weight"].copy_(model.model.norm.weight)
        tensors["lm_head.weight"].copy_(model.lm_head.weight)
    network.save(folder)
    return LanguageModel(model)


@pytest.mark.variants(1)
@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ((2, 3, 6), ""),
        ((1, 2, 5), "reading the hidden states [2, 3, 6] instead of the file's [1, 2, 5], because 100 %"),
    ],
)
def test_the_best_fitting_layers_are_read_and_a_change_is_announced(tmp_path, caplog, layers, said):
    drafter, target = Eagle3(str(tmp_path)), lens(tmp_path, layers)
    with caplog.at_level(logging.WARNING):
        drafter.use_target(target)
    assert drafter.wants_hidden == (2, 3, 6)
    assert said in caplog.text
    assert bool(said) == bool(caplog.text)
    network = Eagle3Network.load(tmp_path)
    network.share(target.model)
    scores = scores_of(network, target, layers)
    assert scores[2, 3, 6] == pytest.approx(1.0)
    assert all(score < 0.9 for read, score in scores.items() if read != (2, 3, 6))


def test_given_layers_are_read_without_a_comparison(tmp_path, caplog):
    drafter = Eagle3(str(tmp_path), layers=[1, 2, 5])
    drafter.use_target(lens(tmp_path, (1, 2, 5)))
    assert drafter.wants_hidden == (1, 2, 5)
    assert not caplog.text


def test_training_unrolls_the_steps_that_a_chain_takes(tmp_path):
    """A row of each step is the state of a chain, drafted with a cache from the target's states up to this row."""
    published(tmp_path, norm_output=True)
    network, model = Eagle3Network.load(tmp_path).double(), target_model()
    network.share(model)
    tokens = torch.randint(VOCABULARY, (2, 12), generator=torch.Generator().manual_seed(0))
    states = torch.randn((2, 12, 3 * WIDTH), generator=torch.Generator().manual_seed(1)).double()
    embedded = network.embed(tokens)
    unrolled, cache = list(network.unroll(embedded, states, steps=3)), DynamicCache()
    made = network(embedded[:, :8], network.fuse_states(states[:, :8]), torch.arange(8), cache=cache)[:, -1:]
    for step in range(3):
        if step:
            made = network(embedded[:, 7 + step, None], network.again(made), torch.tensor([7 + step]), cache=cache)
        torch.testing.assert_close(unrolled[step][:, 7:8], made)


def test_a_saved_head_is_the_same_when_it_is_read(tmp_path):
    tensors, _ = published(tmp_path)
    made = Eagle3Network.load(tmp_path)
    made.save(tmp_path / "again")
    again = Eagle3Network.load(tmp_path / "again")
    assert again.kept.tolist() == made.kept.tolist()
    assert again.config.to_dict() == made.config.to_dict()
    for name, tensor in again.tensors().items():
        assert torch.equal(tensor, tensors[name])


def changed(folder, **changes):
    tensors, _ = published(folder)
    tensors = {**tensors, **changes}
    save_file({name: one for name, one in tensors.items() if one is not None}, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("fc.weight", None, "model.safetensors: fc.weight is missing, which config.json requires"),
        ("fc.weight", torch.zeros(32, 64), r"model.safetensors: fc.weight must be \[32, 96\], got \[32, 64\]"),
        ("d2t", None, "model.safetensors: d2t is missing, a head with 20 of 61 tokens must have it"),
        ("d2t", torch.arange(20, 0, -1), "model.safetensors: d2t must have 20 differences"),
        ("fc_norm.0.weight", torch.ones(32), "model.safetensors: fc_norm.0.weight is not a tensor of the head"),
    ],
)  # fmt: skip
def test_a_wrong_tensor_is_named_with_its_file(tmp_path, name, tensor, message):
    changed(tmp_path, **{name: tensor})
    with pytest.raises(ValueError, match=message):
        Eagle3Network.load(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_head_that_is_cut_off_is_named(tmp_path, name):
    published(tmp_path)
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:30])
    with pytest.raises(ValueError, match=f"{name} cannot be read .*: copy it again"):
        Eagle3Network.load(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba"}, "config.json: model_type of an EAGLE-3 head must be llama or qwen3, got 'mamba'"),
        ({"hidden_size": None}, "config.json: hidden_size is missing"),
        ({"vocab_size": 99}, "vocab_size of the head must be 61 for this target, got 99"),
        ({"target_hidden_size": 16}, r"fc.weight must be \[32, 48\], got \[32, 96\]"),
    ],
)  # fmt: skip
def test_a_head_of_another_kind_or_target_is_refused(tmp_path, changes, message):
    published(tmp_path)
    content = {**json.loads((tmp_path / "config.json").read_text()), **changes}
    kept = {name: value for name, value in content.items() if value is not None}
    (tmp_path / "config.json").write_text(json.dumps(kept))
    with pytest.raises(ValueError, match=message):
        Decoder(target_model(), Eagle3(str(tmp_path)), Chain(2))


def test_a_place_without_a_head_is_named(tmp_path):
    for head, message in ((tmp_path, "config.json is missing"), ("no/such-head", "no/such-head does not exist")):
        with pytest.raises(ValueError, match=message):
            Decoder(target_model(), Eagle3(str(head)), BeamRerank(4, 2, 2))


def test_the_tree_of_a_whole_vocabulary_is_accepted_as_far_as_the_target_goes(folder):
    """With all kept tokens below the root, the target's token is accepted whenever the head can draft it."""
    tree, kept = StaticTree([[rank] for rank in range(KEPT)]), set(Eagle3Network.load(folder).kept.tolist())
    steps = []
    decoder = Decoder(target_model(), Eagle3(folder, layers=list(LAYERS)), tree)
    decoder.generate([1, 2, 3], max_new_tokens=30, observers=[steps.append])
    for outcome in steps:
        assert bool(outcome.accepted) == (outcome.new_token_ids[0] in kept)
