"""Training rows for heads: texts joined into batches of token ids."""

from __future__ import annotations

import itertools
import random
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import lightning
import torch
from pydantic import Field
from torch.utils.data import DataLoader, IterableDataset
from typing_extensions import override

from specexp.base.messages import first_line
from specexp.data.source import read_table
from specexp.data.training_text import Split, documents_of, fingerprint, python_files, split_of

HELD_OUT = 33
"""One of so many texts of a user's file is held out for validation."""


class TextRows(lightning.LightningDataModule):
    """Rows of token ids for `specexp.fit`; each text ends with the EOS token.

    Args:
        tokenizer_from: Folder or hub id of the target's tokenizer.
        texts: File or data set with a column ``text``; by default the functions and small modules of the interpreter's
            standard library, of which whole modules are held out.
        row_length: Tokens per row.
        batch_size: Rows per batch.
        validation_rows: Most rows of the validation loss.
        seed: Seed of the order of the texts.
    """

    def __init__(
        self,
        tokenizer_from: str,
        texts: str | None = None,
        row_length: Annotated[int, Field(ge=2)] = 256,
        batch_size: Annotated[int, Field(ge=1)] = 4,
        validation_rows: Annotated[int, Field(ge=1)] = 8,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.tokenizer_from, self.texts = tokenizer_from, texts
        self.row_length, self.batch_size = row_length, batch_size
        self.validation_rows, self.seed = validation_rows, seed
        self._documents: list[list[int]] = []
        self._validation = torch.empty(0, row_length, dtype=torch.long)

    def tokenizer(self) -> Any:
        """Return the tokenizer; raises ValueError if it cannot be loaded."""
        from transformers import AutoTokenizer

        try:
            return AutoTokenizer.from_pretrained(self.tokenizer_from)
        except OSError as error:
            why = f"must be a folder or hub id with a tokenizer, got {self.tokenizer_from!r}"
            raise ValueError(f"tokenizer_from {why} ({first_line(error)})") from error

    @override
    def prepare_data(self) -> None:
        """Open the tokenizer and the texts, so that a mistake in them is found before training begins."""
        self.tokenizer()
        if self.texts is not None:
            own_texts(self.texts)

    @override
    def setup(self, stage: str | None = None) -> None:
        tokenizer = self.tokenizer()
        train, held_out = library_texts() if self.texts is None else own_texts(self.texts)

        def encoded(texts: list[str]) -> list[list[int]]:
            return [[*ids, tokenizer.eos_token_id] for ids in tokenizer(texts, verbose=False)["input_ids"]]

        self._documents = encoded(train)
        ids = torch.tensor([token for text in encoded(held_out) for token in text], dtype=torch.long)
        count = min(len(ids) // self.row_length, self.validation_rows)
        self._validation = ids[: count * self.row_length].view(count, self.row_length)

    @override
    def train_dataloader(self) -> DataLoader[torch.Tensor]:
        """Return the stream of batches, beginning with the module's next one. Processes share its batches."""
        module: Any = self.trainer.lightning_module if self.trainer else None
        rank, processes = (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)
        first = getattr(module, "batches_done", 0) * processes + rank
        return DataLoader(
            RowStream(self._documents, self.batch_size, self.row_length, self.seed, first, processes),
            batch_size=None,
        )

    @override
    def val_dataloader(self) -> DataLoader[torch.Tensor]:
        """Return the held-out rows; none if the held-out texts do not fill one."""
        return DataLoader(self._validation, batch_size=self.batch_size)  # type: ignore[arg-type]


class RowStream(IterableDataset[torch.Tensor]):
    """An endless, reproducible stream of batches ``[batch_size, row_length]`` of token ids.

    Each pass through the documents has an order of its own. Batch ``i`` depends on the arguments alone, so a stream
    from ``first_batch`` on continues an earlier one. Several processes share the stream: each has its own
    ``first_batch`` and takes every ``every``-th batch.
    """

    def __init__(
        self,
        documents: Sequence[list[int]],
        batch_size: int,
        row_length: int,
        seed: int = 0,
        first_batch: int = 0,
        every: int = 1,
    ) -> None:
        self.documents, self.seed = documents, seed
        self.shape = batch_size, row_length
        self.first_batch, self.every = first_batch, every

    def __iter__(self) -> Iterator[torch.Tensor]:
        size, tokens = self.shape[0] * self.shape[1], self._tokens()
        next(itertools.islice(tokens, self.first_batch * size, self.first_batch * size), None)
        while True:
            yield torch.tensor(list(itertools.islice(tokens, size))).view(self.shape)
            skipped = (self.every - 1) * size
            next(itertools.islice(tokens, skipped, skipped), None)

    def _tokens(self) -> Iterator[int]:
        for number in itertools.count():
            order = list(range(len(self.documents)))
            random.Random(f"{self.seed}/{number}").shuffle(order)
            for index in order:
                yield from self.documents[index]


def library_texts(root: Path | None = None) -> tuple[list[str], list[str]]:
    """Return the texts of the standard library for training and for validation, without copies of held-out ones.

    ``root`` is the library's folder, by default that of the running interpreter.
    """
    texts: dict[Split, dict[str, str]] = {"train": {}, "validation": {}, "test": {}}
    for module, path in python_files(root or Path(sysconfig.get_paths()["stdlib"])):
        for document in documents_of(path, module):
            texts[split_of(module)].setdefault(fingerprint(document.text), document.text)
    held_out = texts["validation"].keys() | texts["test"].keys()
    return [text for mark, text in texts["train"].items() if mark not in held_out], list(texts["validation"].values())


def own_texts(path: str) -> tuple[list[str], list[str]]:
    """Return the texts of a file or data set for training and for validation, without copies."""
    texts = {fingerprint(text): text for row in read_table(path, "text") for text in [row.text("text")]}
    held_out = [text for mark, text in texts.items() if int(mark, 16) % HELD_OUT == 0]
    return [text for mark, text in texts.items() if int(mark, 16) % HELD_OUT], held_out
