from __future__ import annotations

import pytest
import torch
from helpers.fake_cuda import fake_cuda, on_fake_cuda
from helpers.small_models import FULL_ATTENTION, build

from specexp.core.runtime import Runtime
from specexp.models.graphed import CheckedReplay, EagerReplay, GraphedModel, Replayer, Shape, Step
from specexp.testing.runtimes import RuntimeContract

MISTRAL = {**FULL_ATTENTION["Llama"], "sliding_window": None, "num_key_value_heads": 1}
MODELS = {name: FULL_ATTENTION[name] for name in ("Llama", "Qwen2", "Qwen3", "GPT2")} | {"Mistral": MISTRAL}


@pytest.mark.parametrize("replayer", [EagerReplay, CheckedReplay])
@pytest.mark.parametrize("name", MODELS)
class TestGraphed(RuntimeContract):
    @pytest.fixture(autouse=True)
    def _model(self, name: str, replayer: type[Replayer]) -> None:
        self.model, self.replayer = build(name, MODELS[name], dtype=torch.float32), replayer

    def runtime(self) -> Runtime:
        return GraphedModel(self.model, self.replayer)


@pytest.mark.parametrize("name", MODELS)
def test_a_step_never_waits_for_the_device(name: str) -> None:
    with torch.device("meta"):
        model = build(name, MODELS[name], dtype=torch.bfloat16)
    with fake_cuda():
        runtime = GraphedModel(on_fake_cuda(model), EagerReplay, self_check=False)
        runtime.cache.reserve(100, 2)
        step = Step(Shape(0, 2, 8, 8, 512, hidden=True), runtime)
        step.send()
        step.run()
        assert step.logits.device == torch.device("cuda:0")
