"""A training against a budget of time or steps, whose learning rate follows what is spent."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning
import torch
from typing_extensions import override

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class BudgetedTraining(lightning.LightningModule):
    """What is spent is kept in the checkpoint, and ends the training.

    Optimisers give their groups a ``peak_lr``; batches are rows of token ids ``[batch, length]``.

    Args:
        minutes: Wall-clock budget of training; no limit when absent.
        max_steps: Limit on optimiser steps; no limit when absent. One of the two must be given.
        plateau: Share of the budget after which the learning rate goes down; 1 ends on the plateau.
    """

    def __init__(self, minutes: float | None, max_steps: int | None, plateau: float) -> None:
        super().__init__()
        if minutes is None and max_steps is None:
            raise ValueError("a training needs a budget, but neither minutes nor max_steps was given")
        self.minutes = minutes
        self.max_steps = max_steps
        self.plateau = plateau
        self.batches_done = 0
        self.tokens_done = 0
        self.seconds_done = 0.0
        self._last_tick: float | None = None

    def export(self, tokenizer: PreTrainedTokenizerBase, folder: str | Path) -> None:
        """Write what was trained.

        Args:
            tokenizer: Of the data.
            folder: Where it goes.
        """
        raise NotImplementedError

    @property
    def progress(self) -> float:
        """Share of the budget spent, 0 to 1."""
        by_time = 0.0 if self.minutes is None else self.seconds_done / (60 * self.minutes)
        by_steps = 0.0 if self.max_steps is None else self.batches_done / self.max_steps
        return min(1.0, max(by_time, by_steps))

    def lr_scale(self) -> float:
        """Factor on the peak learning rates at this moment."""
        rise = min(1.0, (self.batches_done + 1) / 60)
        fall = 1.0 if self.progress < self.plateau else (1.0 - self.progress) / max(1e-9, 1.0 - self.plateau)
        return rise * (1.0 if self.plateau == 1.0 else max(fall, 0.005))

    @override
    def on_train_start(self) -> None:
        """Starts the clock of the budget; a spent one ends the training at once."""
        self.trainer.should_stop = self.progress >= 1.0
        self._last_tick = time.monotonic()

    @override
    def on_train_batch_start(self, batch: torch.Tensor, batch_idx: int) -> None:
        self.tokens_done += batch.numel() * self.trainer.world_size
        scale = self.lr_scale()
        for group in self.trainer.optimizers[0].param_groups:
            group["lr"] = group["peak_lr"] * scale

    @override
    def on_train_batch_end(self, outputs: Any, batch: torch.Tensor, batch_idx: int) -> None:
        """Books what was spent and ends the training with the budget."""
        self.batches_done += 1
        now = time.monotonic()
        self.seconds_done += now - (self._last_tick or now)
        self._last_tick = now
        # One clock for all processes: else they part in their rates and their end.
        if self.minutes is not None:
            self.seconds_done = self.trainer.strategy.broadcast(self.seconds_done)
        self.log("train/lr_scale", self.lr_scale())
        if self.batches_done % 20 == 0 and self.trainer.is_global_zero:
            loss = float(self.trainer.callback_metrics.get("train/loss", math.nan))
            validation = float(self.trainer.callback_metrics.get("validation/loss", math.nan))
            print(
                f"step {self.batches_done}  tokens {self.tokens_done}  minutes {self.seconds_done / 60:.1f}  "
                f"loss {loss:.3f}  validation {validation:.4f}",
                flush=True,
            )
        if self.progress >= 1.0:
            self.trainer.should_stop = True

    @override
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        # Callbacks that save run before `on_train_batch_end`: the trainer's own count is the right one.
        batches = self.trainer.global_step
        checkpoint["spent"] = {"batches": batches, "tokens": self.tokens_done, "seconds": self.seconds_done}

    @override
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        spent = checkpoint["spent"]
        self.batches_done = spent["batches"]
        self.tokens_done = spent["tokens"]
        self.seconds_done = spent["seconds"]
