"""Training rows: whole documents, each ``bos text eos``, drawn by source and joined into rows of equal
length."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning
import torch
from torch.utils.data import DataLoader, IterableDataset
from typing_extensions import override

from specexp.data.corpus.text_source import TextSource

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase


_TOKENIZER_CHARACTERS = 24_000_000
"""What a tokenizer of 4,096 tokens is trained on; more of the same changes rare tokens alone."""


class MixedRows(IterableDataset[torch.Tensor]):
    """An endless, reproducible stream of batches ``[batch_size, row_length]`` of token ids.

    A source is drawn for every document so that the *token* shares approach ``weights``; each source is
    passed through in a new shuffled order every time. Batch ``i`` depends on the arguments alone, so a stream
    that starts at ``first_batch`` continues an earlier one exactly, and processes that take every ``every``-th batch
    from a first one of their own share the stream out.
    """

    def __init__(
        self,
        documents: dict[str, list[list[int]]],
        weights: dict[str, float],
        *,
        batch_size: int,
        row_length: int,
        seed: int = 0,
        first_batch: int = 0,
        every: int = 1,
    ) -> None:
        self.documents = {origin: documents[origin] for origin in sorted(documents) if documents[origin]}
        self.weights = weights
        self.batch_size = batch_size
        self.row_length = row_length
        self.seed = seed
        self.first_batch = first_batch
        self.every = every

    def __iter__(self) -> Iterator[torch.Tensor]:
        size = self.batch_size * self.row_length
        buffer: list[int] = []
        batch = 0
        for document in self._stream():
            buffer += document
            while len(buffer) >= size:
                if batch >= self.first_batch and (batch - self.first_batch) % self.every == 0:
                    yield torch.tensor(buffer[:size]).view(self.batch_size, self.row_length)
                del buffer[:size]
                batch += 1

    def _stream(self) -> Iterator[list[int]]:
        rng = random.Random(self.seed)
        passes = {origin: self._passes(origin) for origin in self.documents}
        taken = dict.fromkeys(self.documents, 0.0)
        while True:
            # The origin that lags furthest behind its share, with a little noise so that there is no fixed
            # cycle.
            origin = min(taken, key=lambda name: taken[name] / self.weights.get(name, 1e-9) + rng.random())
            document = next(passes[origin])
            taken[origin] += len(document)
            yield document

    def _passes(self, origin: str) -> Iterator[list[int]]:
        for number in range(1_000_000):
            order = list(range(len(self.documents[origin])))
            random.Random(f"{self.seed}/{origin}/{number}").shuffle(order)
            for index in order:
                yield self.documents[origin][index]


class CorpusRows(lightning.LightningDataModule):
    """The corpus of `build_corpus` as rows, with its tokenizer; both are made once and kept in ``cache_dir``.

    Args:
        cache_dir: Where the corpus and the tokenizer are kept; remove it to build them again.
        sources: Where the text comes from, each under a name.
        weights: Share of the training tokens by source; one that is not named gives none. All get the same where it is
            absent.
        row_length: Tokens per row.
        batch_size: Rows per batch.
        validation_rows: So many rows of every source's held-out text make up the validation losses while training.
        vocab_size: Size of a tokenizer that has to be trained.
        tokenizer_from: Folder of a tokenizer to be used as it is; one is trained on the corpus when absent.
        seed: Seed of the order of the documents.
    """

    def __init__(
        self,
        cache_dir: str,
        sources: dict[str, TextSource],
        weights: dict[str, float] | None = None,
        row_length: int = 1024,
        batch_size: int = 4,
        validation_rows: int = 8,
        vocab_size: int = 4096,
        tokenizer_from: str | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        unknown = sorted((weights or {}).keys() - sources.keys())
        if unknown:
            raise ValueError(f"weights names {unknown[0]!r}, but the sources are {', '.join(sources)}")
        self.cache_dir = Path(cache_dir)
        self.sources = sources
        self.weights = weights or dict.fromkeys(sources, 1.0)
        self.row_length = row_length
        self.batch_size = batch_size
        self.validation_rows = validation_rows
        self.vocab_size = vocab_size
        self.tokenizer_from = tokenizer_from
        self.seed = seed
        self._documents: dict[str, list[list[int]]] = {}
        self._validation: dict[str, list[int]] = {}

    @override
    def prepare_data(self) -> None:
        """Builds corpus and tokenizer, where they are not there yet."""
        from experiments.pair.tokenizer import train_tokenizer
        from specexp.fit.corpus import build_corpus

        if not (self.cache_dir / "corpus").exists():
            self.cache_dir.mkdir(parents=True, exist_ok=True)
            corpus = build_corpus(self.sources)
            partial = self.cache_dir / f"corpus.{os.getpid()}"
            corpus.save_to_disk(partial)
            partial.rename(self.cache_dir / "corpus")
        if self.tokenizer_from is None and not (self.cache_dir / "tokenizer").exists():
            tokenizer = train_tokenizer(self._tokenizer_texts(), vocab_size=self.vocab_size)
            tokenizer.save_pretrained(self.cache_dir / "tokenizer")

    @override
    def setup(self, stage: str | None = None) -> None:
        corpus = self.corpus()
        tokenizer = self.tokenizer()
        self._documents = {name: _encode(tokenizer, _texts(corpus["train"], name)) for name in self.weights}
        self._validation = {
            name: [token for ids in _encode(tokenizer, _texts(corpus["validation"], name)) for token in ids]
            for name in self.sources
        }

    def corpus(self) -> datasets.DatasetDict:
        """The corpus as text, after `prepare_data`."""
        import datasets

        loaded = datasets.load_from_disk(str(self.cache_dir / "corpus"))
        assert isinstance(loaded, datasets.DatasetDict)
        return loaded

    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer, after `prepare_data`."""
        from transformers import AutoTokenizer

        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            self.tokenizer_from or self.cache_dir / "tokenizer"
        )
        return tokenizer

    @override
    def train_dataloader(self) -> DataLoader[torch.Tensor]:
        """The stream of batches, from the first one that the trained module has not seen; several processes share it
        out, so that a step of theirs learns from the rows of one process whose batches are as many times larger."""
        module: Any = self.trainer.lightning_module if self.trainer else None
        rank, processes = (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)
        rows = MixedRows(
            self._documents,
            self.weights,
            batch_size=self.batch_size,
            row_length=self.row_length,
            seed=self.seed,
            first_batch=getattr(module, "batches_done", 0) * processes + rank,
            every=processes,
        )
        return DataLoader(rows, batch_size=None)

    @override
    def val_dataloader(self) -> DataLoader[torch.Tensor]:
        rows = [
            torch.tensor(tokens[start : start + self.row_length])
            for tokens in self._validation.values()
            for start in range(0, len(tokens) - self.row_length + 1, self.row_length)[: self.validation_rows]
        ]
        return DataLoader(torch.stack(rows), batch_size=self.batch_size)  # type: ignore[arg-type]

    def _tokenizer_texts(self) -> Iterator[str]:
        """Texts by the shares of the training tokens; a source that is too small for its share comes again."""
        rows = self.corpus()["train"]
        for name, weight in self.weights.items():
            left = _TOKENIZER_CHARACTERS * weight / sum(self.weights.values())
            texts = _texts(rows, name)
            random.Random(name).shuffle(texts)
            for text in itertools.cycle(texts):
                left -= len(text)
                if left < 0:
                    break
                yield text


def _texts(rows: datasets.Dataset, source: str) -> list[str]:
    """The texts of one source."""
    return [text for text, name in zip(rows["text"], rows["source"], strict=True) if name == source]


def _encode(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> list[list[int]]:
    if not texts:
        return []
    eos = tokenizer.eos_token_id
    return [[*ids, eos] for ids in tokenizer(texts, verbose=False)["input_ids"]]
