"""Resumable training of a model with a token budget, or of a controller on prompts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from pydantic import Field
from typing_extensions import override

from specexp.bench.arm import decode_safely
from specexp.bench.metrics import METRICS
from specexp.bench.trainer import interruptible

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from specexp.bench.arm import LearningArm
    from specexp.bench.arm_spec import Backend
    from specexp.bench.record import PromptRecord
    from specexp.data import Prompt

WARM_UP = 60
"""Number of optimizer steps over which the learning rate rises to its peak."""


class BudgetedTraining(lightning.LightningModule):
    """Training that ends once its token budget is spent. Its state depends only on the batches, not on restarts.

    Batches are rows of token ids ``[batch, length]``, all of the same size.

    Args:
        tokens: Budget of training tokens across all processes.
        plateau: Share of the budget after which the learning rate falls. With 1, it does not fall.
    """

    def __init__(self, tokens: Annotated[int, Field(ge=1)], plateau: float) -> None:
        super().__init__()
        self.tokens = tokens
        self.plateau = plateau
        self._batch_tokens = 0

    def export(self, tokenizer: PreTrainedTokenizerBase, folder: str | Path) -> None:
        """Write the result and the data's tokenizer to a folder."""
        raise NotImplementedError

    @property
    def accumulated(self) -> int:
        """Number of batches per optimizer step."""
        return self.trainer.accumulate_grad_batches if self._trainer else 1

    @property
    def batches_done(self) -> int:
        """Number of batches that each process has trained on, counting only complete optimizer steps."""
        return self.global_step * self.accumulated if self._trainer else 0

    @property
    def tokens_done(self) -> int:
        """Number of tokens trained on across all processes."""
        return self.batches_done * self._batch_tokens

    @property
    def progress(self) -> float:
        """The share of the budget spent so far, from 0 to 1."""
        return min(1.0, self.tokens_done / self.tokens)

    def lr_scale(self) -> float:
        """Return the factor by which the peak learning rates are multiplied in the next step."""
        # Warm-up, a plateau, and a linear decay to 0.5% of the peak.
        rise = min(1.0, (self.global_step + 1) / WARM_UP)
        if self.plateau == 1.0 or self.progress < self.plateau:
            return rise
        return rise * max((1.0 - self.progress) / (1.0 - self.plateau), 0.005)

    @override
    def on_train_start(self) -> None:
        self.trainer.should_stop = self.progress >= 1.0

    @override
    def on_train_batch_start(self, batch: torch.Tensor, batch_idx: int) -> None:
        self._batch_tokens = batch.numel() * self.trainer.world_size
        for group in self.trainer.optimizers[0].param_groups:
            group["lr"] = group.setdefault("initial_lr", group["lr"]) * self.lr_scale()

    @override
    def on_train_batch_end(self, outputs: Any, batch: torch.Tensor, batch_idx: int) -> None:
        self.log("train/lr_scale", self.lr_scale())
        step_ends = (batch_idx + 1) % self.accumulated == 0
        if step_ends and self.global_step % 20 == 0 and self.trainer.is_global_zero:
            found = self.trainer.callback_metrics
            train, validation = (float(found.get(f"{one}/loss", math.nan)) for one in ("train", "validation"))
            line = f"step {self.global_step}  tokens {self.tokens_done}  loss {train:.3f}"
            print(f"{line}  validation {validation:.4f}", flush=True)
        if self.progress >= 1.0:
            self.trainer.should_stop = True

    @override
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["batch_tokens"] = self._batch_tokens

    @override
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self._batch_tokens = checkpoint["batch_tokens"]


_STATE = "specexp"


class ControllerLearning(lightning.LightningModule):
    """Decodes one prompt per training step while the arm's drafter and controller learn.

    The models are not submodules, so a checkpoint contains only the learned state, as tensors and basic Python
    values.

    Attributes:
        done: Number of prompts decoded, including those that failed.
        steps: Total number of decoding steps over all prompts.
        failed: Records of the prompts that could not be decoded.
    """

    def __init__(self, arm: LearningArm, prompts: Sequence[Prompt], backend: Backend) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.arm = arm
        self.prompts = list(prompts)
        self.backend = backend
        self.done, self.steps = 0, 0.0
        self.failed: list[PromptRecord] = []
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
        self.done, self.steps = int(state["done"]), float(state["steps"])
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
