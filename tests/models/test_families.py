"""Compiled passes compute what the code of each family in transformers computes, and refuse what they do not know."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from helpers.small_families import FAMILIES, family_model
from helpers.small_models import VOCABULARY
from transformers import LlamaForCausalLM

from specexp.base.kernels import CannotCompileError
from specexp.core.runtime import Runtime
from specexp.models import architectures
from specexp.models.architectures import check_model
from specexp.models.compiled import CompiledModel
from specexp.testing.runtimes import RuntimeContract

DOCS = Path(__file__).parents[2] / "docs"
TEXT = torch.randint(2, VOCABULARY, (60,), generator=torch.Generator().manual_seed(1)).tolist()
each_family = pytest.mark.parametrize("name", FAMILIES)


def test_every_family_of_the_table_is_tested() -> None:
    made = {type(family_model(name)).__name__ for name in FAMILIES}
    assert made == architectures.FAMILIES.keys()


@pytest.mark.variants(8)
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@each_family
def test_logits_are_those_of_the_models_own_code(name: str, tied: bool) -> None:
    model = family_model(name, tie_word_embeddings=tied)
    with torch.inference_mode():
        expected = model(torch.tensor([TEXT])).logits[0]
    logits = CompiledModel(model).prefill(0, TEXT, all_logits=True).logits[0]
    assert logits is not None
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)


@pytest.mark.variants(2, "name")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@each_family
class TestFamilies(RuntimeContract):
    """A row has the same bits alone, in a tree, in a batch and in a prefill."""

    tolerance = 0.0

    @pytest.fixture(autouse=True)
    def _model(self, name: str, dtype: torch.dtype) -> None:
        self.model = family_model(name, dtype)

    def runtime(self) -> Runtime:
        return CompiledModel(self.model)


@each_family
def test_every_field_of_a_families_configuration_is_known(name: str) -> None:
    """A field that a release of transformers adds is refused if it is set, until the passes apply it."""
    model = family_model(name)
    family = architectures.FAMILIES[type(model).__name__]
    unknown = architectures.unknown_fields(model.config, family) - {
        "use_bidirectional_attention",  # not causal
        "attn_logit_softcapping",  # ignored by Gemma 3
    }
    assert not unknown


def test_a_flag_that_passes_do_not_apply_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    model = family_model("Gemma3Text")
    model.config.use_bidirectional_attention = True
    with pytest.raises(
        CannotCompileError,
        match="the gemma3_text model sets use_bidirectional_attention in its configuration, which passes do not",
    ):
        check_model(model)


def renamed(model: LlamaForCausalLM) -> str:
    layer = model.model.layers[1].mlp
    layer.gate = layer.gate_proj
    del layer.gate_proj
    return "has the tensor 'model.layers.1.mlp.gate.bias', unlike others of the Llama family"


def absent(model: LlamaForCausalLM) -> str:
    model.model.layers[2].input_layernorm = torch.nn.Identity()
    return "lacks the tensor 'model.layers.2.input_layernorm.weight', unlike others of the Llama family"


def added(model: LlamaForCausalLM) -> str:
    model.model.layers[0].self_attn.sinks = torch.nn.Parameter(torch.zeros(4))
    return "has the tensor 'model.layers.0.self_attn.sinks', unlike others of the Llama family"


@pytest.mark.parametrize("change", [renamed, absent, added])
def test_other_tensors_than_the_familys_are_one_sentence(change: object) -> None:
    model = family_model("Llama")
    assert callable(change)
    with pytest.raises(CannotCompileError, match=f"the llama model {change(model)}, so there is no compiled"):
        check_model(model)


def test_the_table_of_the_documents_is_that_of_the_code() -> None:
    rows = [f"| {family.name} | `{name}` |" for name, family in architectures.FAMILIES.items()]
    page = (DOCS / "model.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| .*ForCausalLM` \|", page, re.MULTILINE) == rows
