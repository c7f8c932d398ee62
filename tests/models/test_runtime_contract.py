"""A model's own code keeps the promises of a runtime, with and without windows."""

from __future__ import annotations

import pytest
import torch
from helpers.small_models import SLIDING, sliding_model, small_model

from specexp.core.language_model import LanguageModel
from specexp.core.runtime import Runtime
from specexp.testing.runtimes import RuntimeContract


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
