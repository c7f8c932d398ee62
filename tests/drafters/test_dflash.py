"""DFlash drafts in the published layout, against a plain reading of the recipe."""

import pytest
import torch
from helpers.contracts import contract_of
from helpers.on_llama import OnDeepLlama, begun_on, check_log_probs
from helpers.requests import chain_request
from helpers.small_dflash import BLOCK, HEADS, KEYS, LAYERS, MASK, SIZE, THETA, WIDTH, known, published
from helpers.small_eagle3 import target_model
from helpers.small_models import VOCABULARY
from torch.nn.functional import linear, silu

from specexp.builders import Chain
from specexp.core.language_model import LanguageModel
from specexp.core.loop import Decoder
from specexp.drafters import DFlash
from specexp.testing.drafters import DrafterContract, DrawingDrafterContract


class OnLayers(OnDeepLlama):
    hidden_size = len(LAYERS) * WIDTH


TestDFlash = contract_of(DrawingDrafterContract, lambda: DFlash(known()[0]), OnLayers)
TestCoupled = pytest.mark.slow(contract_of(DrafterContract, lambda: DFlash(known()[0], coupled=True), OnLayers))


def recipe(tensors, states, block):
    """Return normalized states of a block of embeddings ``[B, d]`` after a text with ``[n, 2 d]`` states."""

    def rms(name, x):
        return x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() * tensors[name]

    def turned(x, positions):
        rates = THETA ** (-torch.arange(0, SIZE, 2).double() / SIZE)
        turn = torch.exp(1j * positions[:, None, None] * rates)  # [m, 1, SIZE / 2]
        pairs = torch.complex(x[..., : SIZE // 2], x[..., SIZE // 2 :]) * turn
        return torch.cat((pairs.real, pairs.imag), dim=-1)

    text = rms("hidden_norm.weight", linear(states, tensors["fc.weight"]))
    x, positions = block, torch.arange(len(text) + len(block))
    for number in range(2):
        own = f"layers.{number}.self_attn"
        normed = rms(f"layers.{number}.input_layernorm.weight", x)
        both = torch.cat((text, normed))  # the text has no norm of the layer
        q = linear(normed, tensors[f"{own}.q_proj.weight"]).view(-1, HEADS, SIZE)
        k, v = (linear(both, tensors[f"{own}.{one}_proj.weight"]).view(-1, KEYS, SIZE) for one in "kv")
        q = turned(rms(f"{own}.q_norm.weight", q), positions[len(text) :])
        k = turned(rms(f"{own}.k_norm.weight", k), positions).repeat_interleave(HEADS // KEYS, dim=1)
        shares = torch.einsum("qhd,khd->hqk", q, k).div(SIZE**0.5).softmax(-1)
        mixed = torch.einsum("hqk,khd->qhd", shares, v.repeat_interleave(HEADS // KEYS, dim=1))
        x = x + linear(mixed.flatten(1), tensors[f"{own}.o_proj.weight"])
        inner, mlp = rms(f"layers.{number}.post_attention_layernorm.weight", x), f"layers.{number}.mlp"
        gate = silu(linear(inner, tensors[f"{mlp}.gate_proj.weight"]))
        up = linear(inner, tensors[f"{mlp}.up_proj.weight"])
        x = x + linear(gate * up, tensors[f"{mlp}.down_proj.weight"])
    return rms("norm.weight", x)


@pytest.mark.parametrize("text", [[3, 1, 4, 1, 5, 9], [3]], ids=["text", "one token"])
def test_a_published_draft_drafts_by_its_recipe(text):
    folder, tensors = known()
    model = target_model()
    drafter, path = DFlash(folder), (7, 8, 9)
    context = begun_on(LanguageModel(model), drafter, text)
    found = drafter.propose(context, chain_request(context, path, VOCABULARY, rows=range(BLOCK - 1)))
    with torch.no_grad():
        states = model(torch.tensor([text]), output_hidden_states=True).hidden_states
        states = torch.cat([states[one][0, :-1] for one in LAYERS], dim=-1)
        block = model.get_input_embeddings()(torch.tensor([text[-1], *[MASK] * (BLOCK - 1)]))
        expected = model.lm_head(recipe(tensors, states, block)[1:]).log_softmax(-1)
    check_log_probs(found, expected)


def test_a_tree_has_no_more_levels_than_a_block_has_masks():
    seen = []
    decoder = Decoder(LanguageModel(target_model()), DFlash(known()[0]), Chain(8))
    decoder.generate([1, 2, 3], max_new_tokens=40, observers=[seen.append])
    assert max(outcome.tree.shape.max_depth for outcome in seen) == BLOCK - 1
    assert {outcome.draft_passes for outcome in seen[:-1]} == {1}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"without": "layers.1.mlp.up_proj.weight"}, r"model.safetensors: layers.1.mlp.up_proj.weight is missing"),
        ({"intermediate_size": 32}, r"layers.0.mlp.down_proj.weight must be \[32, 32\], got \[32, 24\]"),
        ({"block_size": None}, "config.json: block_size is missing, which a DFlash draft must have"),
        ({"model_type": "llama"}, "must have the layers of Qwen3 with full attention, got model_type 'llama'"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "with full attention, got sliding_attention"),
        ({"vocab_size": 60}, "vocab_size must be 61 for this target, got 60"),
        ({"dflash_config": {"mask_token_id": 1, "target_layer_ids": [1, 6]}}, "must be below 6, got 6"),
    ],
    ids=lambda one: next(iter(one)) if isinstance(one, dict) else "",
)  # fmt: skip
def test_a_draft_that_does_not_fit_is_refused_in_one_sentence(tmp_path, change, sentence):
    published(tmp_path, **change)
    with pytest.raises(ValueError, match=rf"^{tmp_path}.*{sentence}") as caught:
        DFlash(str(tmp_path)).use_target(LanguageModel(target_model()))
    assert "\n" not in str(caught.value)


def test_without_layers_in_the_file_they_are_spread_evenly(tmp_path):
    published(tmp_path, dflash_config={"mask_token_id": MASK})
    drafter = DFlash(str(tmp_path))
    drafter.use_target(LanguageModel(target_model()))
    assert drafter.wants_hidden == (2, 4)  # after the layers 1 and 3 of 6
