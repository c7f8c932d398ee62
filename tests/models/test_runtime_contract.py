"""Every way to run a model keeps the promises of one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.small_models import FULL_ATTENTION, SLIDING, build, sliding_model, small_model

from specexp.core.language_model import LanguageModel
from specexp.core.runtime import Runtime
from specexp.models.compiled import CompiledModel
from specexp.testing.runtimes import RuntimeContract

LLAMA: dict[str, Any] = {**FULL_ATTENTION["Llama"], "head_dim": 16}
COMPILED = {
    "Llama": LLAMA,
    "Qwen2": {**LLAMA, "intermediate_size": 40, "tie_word_embeddings": True},
    "Qwen3": {**LLAMA, "head_dim": 48},
    "Mistral": {**LLAMA, "head_dim": 64, "sliding_window": None, "num_key_value_heads": 1},
}


@pytest.mark.parametrize("name", ["Llama", "GPT2"])
class TestEager(RuntimeContract):
    @pytest.fixture(autouse=True)
    def _model(self, name: str) -> None:
        self.name = name

    def runtime(self) -> Runtime:
        return LanguageModel(small_model(self.name, dtype=torch.float32), self_check=False)


@pytest.mark.parametrize("name", SLIDING)
@pytest.mark.variants(2, "name")
class TestEagerWithWindows(RuntimeContract):
    @pytest.fixture(autouse=True)
    def _model(self, name: str) -> None:
        self.model = sliding_model(name)

    def runtime(self) -> Runtime:
        return LanguageModel(self.model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.variants(2, "name")
class TestCompiled(RuntimeContract):
    """Rows hang on nothing else in their pass, in any precision."""

    tolerance = 0.0

    @pytest.fixture(autouse=True)
    def _model(self, name: str, dtype: torch.dtype) -> None:
        self.model = build(name, COMPILED[name], dtype=dtype)

    def runtime(self) -> Runtime:
        return CompiledModel(self.model)
