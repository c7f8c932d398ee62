"""PARD models and P-EAGLE heads answer all depths in one pass, from mask tokens after the committed text."""

import json
from copy import deepcopy
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
import torch
from helpers.contracts import contract_of
from helpers.on_llama import OnDeepLlama, OnLlama, begun_on, check_log_probs
from helpers.requests import begun, chain_request
from helpers.small_eagle3 import KEPT, LAYERS, SPECULATORS, published, recipe, target_model
from helpers.small_models import FULL_ATTENTION, VOCABULARY, build, small_model
from safetensors.torch import load_file, save_file

from specexp.builders import Chain
from specexp.core.language_model import LanguageModel
from specexp.core.loop import Decoder
from specexp.drafters import DraftModel, Eagle3
from specexp.testing.drafters import DrafterContract, DrawingDrafterContract

MASK = 60


@cache
def pard_model():
    model = deepcopy(small_model("Qwen3"))
    model.config.pard_token = MASK
    return model


TestPard = contract_of(DrawingDrafterContract, lambda: DraftModel(pard_model()), OnLlama)
TestCoupled = pytest.mark.slow(contract_of(DrafterContract, lambda: DraftModel(pard_model(), coupled=True), OnLlama))


@pytest.mark.parametrize("path", [(7, 8), (7, 8, 9, 1, 2, 3)])
def test_depth_d_is_answered_by_the_row_of_the_dth_mask_token(path):
    """The published use: the text and the mask tokens are one causal input, and its last logits are the drafts."""
    drafter, text, depths = DraftModel(pard_model()), [3, 1, 4, 1, 5], len(path) + 1
    context = begun(drafter, text)
    found = drafter.propose(context, chain_request(context, path, VOCABULARY, rows=range(depths)))
    with torch.no_grad():
        logits = pard_model()(torch.tensor([text + [MASK] * len(path)])).logits[0, -depths:]
    check_log_probs(found, logits.log_softmax(-1))


def test_a_step_costs_one_pass_of_the_text_and_the_masks():
    passes = []
    decoder = Decoder(LanguageModel(small_model("Llama")), DraftModel(pard_model()), Chain(3))
    decoder.generate([1, 2, 3], max_new_tokens=20, observers=[lambda one: passes.append(one.pass_tokens)])
    assert {len(one) for one in passes[:-1]} == {1}  # the last step has no room for a draft


@cache
def peagle():
    """Return a random P-EAGLE head of two layers in speculators' layout, and what was written."""
    folder = Path(mkdtemp())
    tensors, own = published(folder, SPECULATORS, layers=2, norm_before_fc=True)
    hidden = torch.randn(1, 1, 96, generator=torch.Generator().manual_seed(5))
    (folder / "pytorch_model.bin").unlink()
    save_file({**tensors, "mask_hidden": hidden}, folder / "model.safetensors")
    content = json.loads((folder / "config.json").read_text())
    content |= {"speculators_model_type": "peagle", "mask_token_id": MASK}
    (folder / "config.json").write_text(json.dumps(content))
    return folder, tensors, own, hidden.flatten().double()


class OnLayers(OnDeepLlama):
    hidden_size = 96


TestPEagle = contract_of(DrawingDrafterContract, lambda: Eagle3(str(peagle()[0]), layers=list(LAYERS)), OnLayers)


@pytest.mark.parametrize("path", [(7, 8), (7, 8, 9, 1, 2)])
def test_a_published_p_eagle_head_drafts_by_its_recipe(path):
    """Every row after the first reads the mask token, and the learned states in the place of the target's."""
    folder, tensors, own, hidden = peagle()
    model, text, depths = target_model(), [3, 1, 4, 1, 5, 9], len(path) + 1
    drafter = Eagle3(str(folder), layers=list(LAYERS))
    context = begun_on(LanguageModel(model), drafter, text)
    found = drafter.propose(context, chain_request(context, path, KEPT, rows=range(depths)))
    with torch.no_grad():
        states = model(torch.tensor([text]), output_hidden_states=True).hidden_states
        states = torch.cat([states[one][0, :-1] for one in LAYERS], dim=-1).double()
        states = torch.cat((states, hidden.expand(len(path), -1)))
        embedded = model.get_input_embeddings()(torch.tensor(text[1:] + [MASK] * len(path))).double()
        expected = recipe(tensors, own, embedded, states, depths).log_softmax(-1)
    check_log_probs(found, expected)


def test_a_p_eagle_head_without_its_mask_state_is_refused():
    folder, *_ = peagle()
    other = Path(mkdtemp())
    tensors = load_file(folder / "model.safetensors")
    del tensors["mask_hidden"]
    save_file(tensors, other / "model.safetensors")
    (other / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(ValueError, match=r"model.safetensors: mask_hidden is missing"):
        Decoder(build("Llama", FULL_ATTENTION["Llama"]), Eagle3(str(other)), Chain(2))
