"""Rows of the conversations that the target wrote, for a corpus in which a drafter looks up (REST)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from safetensors import safe_open
from typing_extensions import override

from experiments.heads.text_rows import TextRows
from specexp.models.pair import load_tokenizer


class ShardRows(TextRows):
    """Rows of token ids of the conversations in a folder of shards (`experiments.smollm2.conversations`).

    Args:
        target: As ``pair.target``, the model that wrote them.
        shards: The folder.
        row_length: Tokens per row.
        batch_size: Rows per batch.
    """

    def __init__(
        self,
        target: str,
        shards: str,
        row_length: Annotated[int, Field(ge=2)] = 512,
        batch_size: Annotated[int, Field(ge=1)] = 16,
    ) -> None:
        super().__init__(target, row_length=row_length, batch_size=batch_size)
        self.shards = Path(shards)

    @override
    def tokenizer(self) -> Any:
        """Return the target's tokenizer."""
        return load_tokenizer(self.tokenizer_from)

    @override
    def setup(self, stage: str | None = None) -> None:
        files = sorted(self.shards.glob("*.safetensors"))
        if not files:
            raise FileNotFoundError(f"{self.shards}: must be a folder of shards (*.safetensors), and has none")
        self._documents = [text for file in files for text in conversations_of(file)]


def conversations_of(shard: Path) -> Iterator[list[int]]:
    """Yield the token ids of each conversation, without the template's prefix, which all have in common."""
    with safe_open(shard, "pt") as file:  # the hidden states stay in the file
        ids, lengths, starts = (file.get_tensor(name) for name in ("ids", "lengths", "turn_from"))
    for text, start in zip(torch.split(ids, lengths.tolist()), starts.tolist(), strict=True):
        yield text[start:].tolist()
