"""A training that continues from its last checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from specexp.bench.trainer import interruptible


def checkpoints_in(folder: Path, every: int) -> ModelCheckpoint:
    """Return the callback that writes ``folder/checkpoints/last.ckpt`` every so many steps."""
    return ModelCheckpoint(
        folder / "checkpoints", "last", every_n_train_steps=every, enable_version_counter=False
    )


def run(trainer: Trainer, module: LightningModule, folder: Path, **data: Any) -> None:
    """Train from ``folder/checkpoints/last.ckpt`` on, if it exists, and write it again at the end."""
    last = folder / "checkpoints" / "last.ckpt"
    with interruptible():
        trainer.fit(module, ckpt_path=str(last) if last.exists() else None, weights_only=True, **data)
    trainer.save_checkpoint(last, weights_only=False)
