"""Resumable training, and the module with which a controller learns from prompts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from typing_extensions import override

from specexp.bench.arm import decode_safely
from specexp.bench.metrics import METRICS
from specexp.bench.trainer import interruptible

if TYPE_CHECKING:
    from specexp.bench.arm import LearningArm
    from specexp.bench.arm_spec import Backend
    from specexp.bench.record import PromptRecord
    from specexp.data import Prompt

_STATE = "specexp"


class ControllerLearning(lightning.LightningModule):
    """Decodes one prompt per training step while the arm's drafter and controller learn.

    The models are not submodules, so a checkpoint contains only the learned state, as tensors and basic Python
    values.
    """

    def __init__(self, arm: LearningArm, prompts: Sequence[Prompt], backend: Backend) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.arm = arm
        self.prompts = list(prompts)
        self.backend = backend
        self.done = 0  # number of prompts decoded, including those that failed
        self.steps = 0.0  # number of decoding steps over all prompts
        self.failed: list[PromptRecord] = []  # records of the prompts that could not be decoded
        # Lightning counts optimizer steps, so a dummy optimizer is needed.
        self._clock = torch.nn.Parameter(torch.zeros(()))

    @override
    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD([self._clock], lr=0.0)

    @override
    def transfer_batch_to_device(self, batch: Prompt, device: torch.device, dataloader_idx: int) -> Prompt:
        return batch  # it has no tensors

    @override
    def training_step(self, batch: Prompt, batch_idx: int) -> None:
        # Not ``batch``, because Lightning restarts its loader when training resumes.
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
        parts = self.arm.parts
        checkpoint[_STATE] = {
            "done": self.done,
            "steps": self.steps,
            "controller": parts.controller.state_dict(),
            "drafter": {} if parts.drafter is None else parts.drafter.state_dict(),
        }

    @override
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        state, parts = checkpoint[_STATE], self.arm.parts
        self.done = int(state["done"])
        self.steps = float(state["steps"])
        parts.controller.load_state_dict(state["controller"])
        if parts.drafter is not None:
            parts.drafter.load_state_dict(state["drafter"])


def checkpoints_in(folder: Path, every: int) -> ModelCheckpoint:
    """Return a callback that writes ``folder/checkpoints/last.ckpt`` every ``every`` steps."""
    return ModelCheckpoint(folder / "checkpoints", "last", every_n_train_steps=every, enable_version_counter=False)


def run(trainer: lightning.Trainer, module: lightning.LightningModule, folder: Path, **data: Any) -> None:
    """Train, resuming from ``folder/checkpoints/last.ckpt`` if it exists, and write that checkpoint at the end."""
    last = folder / "checkpoints" / "last.ckpt"
    with interruptible():
        trainer.fit(module, ckpt_path=str(last) if last.exists() else None, weights_only=True, **data)
    trainer.save_checkpoint(last, weights_only=False)
