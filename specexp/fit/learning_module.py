"""Learning a controller as a Lightning module: a training step decodes one prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from lightning import LightningModule
from typing_extensions import override

from specexp.bench.arm import decode_safely
from specexp.bench.metrics import METRICS

if TYPE_CHECKING:
    from specexp.bench.arm import EngineArm
    from specexp.bench.arm_spec import Backend
    from specexp.bench.record import PromptRecord
    from specexp.data import Prompt

_STATE = "specexp"


class ControllerLearning(LightningModule):
    """Decodes prompt after prompt; the arm's drafter and controller learn while decoding.

    A step is a prompt: Lightning counts the steps of an optimiser without effect. The next prompt is counted here,
    since Lightning restarts its loader when it resumes. The models are not submodules. The learned state is in the
    checkpoint, as tensors and plain values.

    Attributes:
        done: Prompts decoded, including those that failed.
        steps: Decoding steps of all of them.
        failed: Records of the prompts that could not be decoded.
    """

    def __init__(self, arm: EngineArm, prompts: Sequence[Prompt], backend: Backend) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.arm = arm
        self.prompts = list(prompts)
        self.backend = backend
        self.done, self.steps = 0, 0.0
        self.failed: list[PromptRecord] = []
        self._clock = torch.nn.Parameter(torch.zeros(()))

    @override
    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD([self._clock], lr=0.0)

    @override
    def transfer_batch_to_device(self, batch: Prompt, device: torch.device, dataloader_idx: int) -> Prompt:
        return batch  # has no tensor

    @override
    def training_step(self, batch: Prompt, batch_idx: int) -> None:
        record = decode_safely(self.arm, self.prompts[self.done % len(self.prompts)])
        self.done += 1
        self.steps += record.steps
        if record.error:
            self.failed.append(record)
        curves = {metric.key(record.clock): metric.of(record) for metric in METRICS if metric.counted}
        curves |= self.arm.parts.controller.watched()
        shown = {f"learn/{name}": float(value) for name, value in curves.items() if value is not None}
        self.log_dict(shown, batch_size=1)
        optimizer: Any = self.optimizers()
        optimizer.step()

    @override
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        strategy = self.arm.parts
        checkpoint[_STATE] = {
            "done": self.done,
            "steps": self.steps,
            "controller": strategy.controller.state_dict(),
            "drafter": {} if strategy.drafter is None else strategy.drafter.state_dict(),
        }

    @override
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        state, strategy = checkpoint[_STATE], self.arm.parts
        self.done, self.steps = int(state["done"]), float(state["steps"])
        strategy.controller.load_state_dict(state["controller"])
        if strategy.drafter is not None:
            strategy.drafter.load_state_dict(state["drafter"])
