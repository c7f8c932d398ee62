"""A model of ``load_pair`` runs in its pair's mode wherever the bare model is given."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.small_models import FULL_ATTENTION, build
from transformers import PreTrainedModel

from specexp import Decoder, load_pair
from specexp.base.kernels import CannotCompileError
from specexp.builders import Chain
from specexp.core.language_model import LanguageModel, set_runtime
from specexp.drafters import DraftModel
from specexp.models.compiled import CompiledModel
from specexp.models.runtime import runtime_of
from specexp.scheduling import Serial
from specexp.verifiers import KeyedSampling

LLAMA: dict[str, Any] = {**FULL_ATTENTION["Llama"], "head_dim": 16}
PROMPT = [5, 6, 7]


@pytest.fixture
def model() -> PreTrainedModel:
    """A small model, loaded in mode ``auto``."""
    made = build("Llama", LLAMA, dtype=torch.float32)
    set_runtime(made, "auto", runtime_of)
    return made


@pytest.mark.variants(1)
@pytest.mark.parametrize(("mode", "kind"), [("auto", "compiled"), ("compiled", "compiled"), ("eager", "eager")])
def test_a_loaded_pair_decodes_and_drafts_in_its_mode(mode: str, kind: str) -> None:
    pair = load_pair("stdlib", mode=mode)
    drafter = DraftModel(pair.draft)
    decoder = Decoder(pair.target, drafter, Chain(2))
    assert [model.kind for model in (decoder.model, *drafter.models)] == [kind, kind]
    with Serial().open(pair.target, decoder.parts) as executor:
        assert executor.model.kind == kind


def test_a_model_that_no_pair_loaded_runs_by_its_own_code() -> None:
    assert isinstance(Decoder(build("Llama", LLAMA, dtype=torch.float32)).model, LanguageModel)


def test_decoders_of_one_model_share_its_weights_and_have_caches_of_their_own(model: PreTrainedModel) -> None:
    first, second = Decoder(model).model, Decoder(model).model
    assert isinstance(first, CompiledModel)
    assert isinstance(second, CompiledModel)
    assert first._weights is second._weights
    assert first.cache is not second.cache


def test_changed_weights_are_decoded_with_at_the_next_prompt(model: PreTrainedModel) -> None:
    decoder = Decoder(model, verifier=KeyedSampling(1.0))
    before = decoder.generate(PROMPT, max_new_tokens=16, seed=0).token_ids
    with torch.no_grad():
        model.lm_head.weight.copy_(model.lm_head.weight.flip(0))
    after = decoder.generate(PROMPT, max_new_tokens=16, seed=0).token_ids
    own_code = Decoder(LanguageModel(model), verifier=KeyedSampling(1.0))
    assert after == own_code.generate(PROMPT, max_new_tokens=16, seed=0).token_ids != before


def test_an_adapter_is_run_by_the_models_own_code(model: PreTrainedModel) -> None:
    class Adapter(torch.nn.Linear):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return 1.5 * super().forward(rows)

    decoder = Decoder(model)
    attention = model.model.layers[0].self_attn
    adapter = Adapter(*reversed(attention.o_proj.weight.shape), bias=False)
    adapter.weight = torch.nn.Parameter(attention.o_proj.weight.detach().clone())
    attention.o_proj = adapter
    with pytest.raises(CannotCompileError, match=r"has projections other than torch.nn.Linear"):
        decoder.generate(PROMPT, max_new_tokens=4)
    assert isinstance(Decoder(model).model, LanguageModel)
