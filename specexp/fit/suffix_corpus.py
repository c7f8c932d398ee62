"""A corpus of training rows in which a drafter looks up sequences of tokens."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import lightning
import torch
from pydantic import Field
from typing_extensions import override

from specexp.drafters.suffix_index import corpus_arrays

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class SuffixCorpus(lightning.LightningModule):
    """Collects rows of token ids ``[batch, length]``, and exports them as a ``suffix-corpus``.

    Args:
        tokens: Number of tokens to keep. A drafter needs 8 bytes per token.
    """

    def __init__(self, tokens: Annotated[int, Field(ge=1)] = 1_000_000) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.tokens = tokens
        self._rows: list[torch.Tensor] = []
        # Lightning counts optimizer steps, so a dummy optimizer is needed.
        self._clock = torch.nn.Parameter(torch.zeros(()))

    @property
    def batches_done(self) -> int:
        """Number of batches kept."""
        return len(self._rows)

    @property
    def kept(self) -> int:
        """Number of tokens kept."""
        return sum(rows.numel() for rows in self._rows)

    @override
    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD([self._clock], lr=0.0)

    @override
    def training_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        if self.kept < self.tokens:
            self._rows.append(batch.to("cpu", torch.int32))
        self.trainer.should_stop = self.kept >= self.tokens
        optimizer: Any = self.optimizers()
        optimizer.step()

    @override
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["rows"] = list(self._rows)

    @override
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self._rows = list(checkpoint["rows"])

    def export(self, tokenizer: PreTrainedTokenizerBase, folder: str | Path) -> None:
        """Write a ``suffix-corpus`` artifact with one text per row."""
        from specexp.artifacts import fingerprint
        from specexp.config.artifacts import save_artifact

        rows = [row for rows in self._rows for row in rows.tolist()]
        save_artifact(
            Path(folder),
            "suffix-corpus",
            {"corpus.safetensors": corpus_arrays(rows)},
            {"metrics": {"tokens": self.kept}},
            fingerprint(tokenizer=tokenizer),
        )
