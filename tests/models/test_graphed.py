from __future__ import annotations

import pytest
import torch
from helpers.small_models import FULL_ATTENTION, build

from specexp.core.runtime import Runtime
from specexp.models.graphed import GraphedModel
from specexp.models.replay_steps import Checked, Eager, Replayer
from specexp.testing.runtimes import RuntimeContract


MISTRAL = {**FULL_ATTENTION["Llama"], "sliding_window": None, "num_key_value_heads": 1}
MODELS = {name: FULL_ATTENTION[name] for name in ("Llama", "Qwen2", "Qwen3", "GPT2")} | {"Mistral": MISTRAL}


@pytest.mark.parametrize("replayer", [Eager, Checked])
@pytest.mark.parametrize("name", MODELS)
class TestGraphed(RuntimeContract):
    @pytest.fixture(autouse=True)
    def _model(self, name: str, replayer: type[Replayer]) -> None:
        self.model, self.replayer = build(name, MODELS[name], dtype=torch.float32), replayer

    def runtime(self) -> Runtime:
        return GraphedModel(self.model, self.replayer)
