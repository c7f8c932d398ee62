"""Training rows: a corpus of several text sources, as batches of token ids.

A document is ``bos text eos``. Documents are drawn by source and joined into rows of equal length. A token without a
loss, such as one of a randomly drawn question, is stored as its bitwise complement, ``~id``.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning
import torch
from torch.utils.data import DataLoader, IterableDataset
from typing_extensions import override

from experiments.pair.corpus.text_source import Text, TextSource
from specexp.data.training_text import Split, fingerprint

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase


def build_corpus(sources: Mapping[str, TextSource]) -> datasets.DatasetDict:
    """Return the three splits with the columns ``source`` (its key), ``name`` and ``text``.

    A training text that a person wrote is left out if it is a copy of a held-out text of any source. Of equal texts,
    the first is kept.
    """
    import datasets

    held: dict[Split, dict[str, list[Text]]] = {
        split: {name: held_out_texts(source, split) for name, source in sources.items()}
        for split in ("validation", "test")
    }
    copies = Copies(
        text for texts in held.values() for name in texts if sources[name].written for text in texts[name]
    )
    train = {
        name: [text for text in source.texts("train") if not source.written or copies.is_new(text.text)]
        for name, source in sources.items()
    }
    return datasets.DatasetDict(
        {
            split: datasets.Dataset.from_list(
                [{"source": source, **text._asdict()} for source in texts for text in texts[source]]
            )
            for split, texts in {"train": train, **held}.items()
        }
    )


def held_out_texts(source: TextSource, split: Split) -> list[Text]:
    """Return the texts of a held-out split without duplicates, in one fixed shuffled order."""
    copies = Copies()
    texts = [text for text in source.texts(split) if not source.written or copies.is_new(text.text)]
    random.Random(0).shuffle(texts)
    return texts


class Copies:
    """A filter that finds copies of held-out texts and of earlier texts.

    A copy has a known `fingerprint`, or at least three longer lines of which 60 % occur in held-out texts.
    """

    def __init__(self, held_out: Iterable[Text] = ()) -> None:
        self._known: set[str] = set()
        self._lines: set[str] = set()
        for text in held_out:
            self._known.add(fingerprint(text.text))
            self._lines.update(_long_lines(text.text))

    def is_new(self, text: str) -> bool:
        """Return whether a text is new, and remember it."""
        mark, lines = fingerprint(text), _long_lines(text)
        copied = sum(line in self._lines for line in lines)
        if mark in self._known or (len(lines) >= 3 and copied >= 0.6 * len(lines)):
            return False
        self._known.add(mark)
        return True


@dataclass(eq=False)
class MixedRows(IterableDataset[torch.Tensor]):
    """An endless, reproducible stream of batches ``[batch_size, row_length]`` of token ids.

    A source is chosen for every document so that the shares of *tokens* approach ``weights``. Each pass through a
    source has a new shuffled order. Batch ``i`` depends only on the arguments, so a stream from ``first_batch`` on
    continues an earlier one exactly. Several processes share the stream: each has its own ``first_batch`` and takes
    every ``every``-th batch.
    """

    documents: dict[str, list[list[int]]]
    weights: dict[str, float]
    batch_size: int
    row_length: int
    seed: int = 0
    first_batch: int = 0
    every: int = 1

    def __iter__(self) -> Iterator[torch.Tensor]:
        size = self.batch_size * self.row_length
        buffer: list[int] = []
        batch = 0
        for document in self._stream():
            buffer += document
            while len(buffer) >= size:
                # Skipped batches are built too, so that batch i is the same in every process.
                if batch >= self.first_batch and (batch - self.first_batch) % self.every == 0:
                    yield torch.tensor(buffer[:size]).view(self.batch_size, self.row_length)
                del buffer[:size]
                batch += 1

    def _stream(self) -> Iterator[list[int]]:
        rng = random.Random(self.seed)
        passes = {origin: self._passes(origin) for origin in sorted(self.documents) if self.documents[origin]}
        taken = dict.fromkeys(passes, 0.0)
        while True:
            # The source that is furthest behind its share, with a little noise to avoid a fixed cycle.
            origin = min(taken, key=lambda name: taken[name] / self.weights.get(name, 1e-9) + rng.random())
            document = next(passes[origin])
            taken[origin] += len(document)
            yield document

    def _passes(self, origin: str) -> Iterator[list[int]]:
        for number in itertools.count():
            order = list(range(len(self.documents[origin])))
            random.Random(f"{self.seed}/{origin}/{number}").shuffle(order)
            for index in order:
                yield self.documents[origin][index]


class CorpusRows(lightning.LightningDataModule):
    """The training rows of a corpus, which is built once and cached in ``cache_dir``.

    Args:
        cache_dir: Folder of the corpus; remove it to build the corpus again.
        sources: Sources of the text by name.
        tokenizer_from: Folder of the tokenizer.
        weights: Share of the training tokens by source; a source without a weight is not used. Default: equal shares.
        row_length: Tokens per row.
        batch_size: Rows per batch.
        validation_rows: Rows of each source's held-out text in the validation loss.
        seed: Seed of the order of the documents.
    """

    def __init__(
        self,
        cache_dir: str,
        sources: dict[str, TextSource],
        tokenizer_from: str,
        weights: dict[str, float] | None = None,
        row_length: int = 1024,
        batch_size: int = 4,
        validation_rows: int = 8,
        seed: int = 0,
    ) -> None:
        super().__init__()
        unknown = sorted((weights or {}).keys() - sources.keys())
        if unknown:
            raise ValueError(f"weights must name sources ({', '.join(sources)}), got {unknown[0]!r}")
        self.cache_dir, self.tokenizer_from = Path(cache_dir), tokenizer_from
        self.sources, self.weights = sources, weights or dict.fromkeys(sources, 1.0)
        self.row_length, self.batch_size = row_length, batch_size
        self.validation_rows, self.seed = validation_rows, seed
        self._documents: dict[str, list[list[int]]] = {}
        self._validation: dict[str, list[int]] = {}

    @override
    def prepare_data(self) -> None:
        if not (self.cache_dir / "corpus").exists():
            self.cache_dir.mkdir(parents=True, exist_ok=True)
            # Rename it only when it is complete, so that an interrupted build leaves no corpus.
            partial = self.cache_dir / f"corpus.{os.getpid()}"
            build_corpus(self.sources).save_to_disk(partial)
            partial.rename(self.cache_dir / "corpus")

    @override
    def setup(self, stage: str | None = None) -> None:
        tokenizer, eos = self.tokenizer(), self.tokenizer().eos_token_id

        def encoded(split: str, source: str) -> list[list[int]]:
            rows = self._rows(split, source)
            if not len(rows):
                return []
            texts = list(rows["text"])
            found = tokenizer(texts, verbose=False, return_offsets_mapping=True)
            whole = zip(texts, rows["given"], found["input_ids"], found["offset_mapping"], strict=True)
            return [[*_marked(*row), eos] for row in whole]

        self._documents = {name: encoded("train", name) for name in self.weights}
        self._validation = {
            name: [token for ids in encoded("validation", name) for token in ids] for name in self.sources
        }

    def texts(self, split: str, source: str) -> list[str]:
        """Return the texts of one source, after `prepare_data`."""
        return list(self._rows(split, source)["text"])

    def _rows(self, split: str, source: str) -> datasets.Dataset:
        import datasets

        rows = datasets.load_from_disk(str(self.cache_dir / "corpus"))[split]
        return rows.select([row for row, name in enumerate(rows["source"]) if name == source])

    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Return the tokenizer."""
        from transformers import AutoTokenizer

        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(self.tokenizer_from)
        return tokenizer

    @override
    def train_dataloader(self) -> DataLoader[torch.Tensor]:
        """Return the stream of batches, beginning with the module's next one. Processes share its batches."""
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


def _marked(
    text: str, given: Iterable[str], ids: Sequence[int], offsets: Sequence[tuple[int, int]]
) -> Iterator[int]:
    """Yield the ids of a text; tokens wholly inside a given piece become their complements."""
    spans, start = [(-1, -1)], 0
    for piece in given:
        start = text.index(piece, start)
        spans.append((start, start := start + len(piece)))
    spans.reverse()
    begin, end = spans.pop()
    for token, (first, last) in zip(ids, offsets, strict=True):
        while spans and first >= end:
            begin, end = spans.pop()
        # Special tokens have an empty span, and tokens across a border are not given.
        yield ~token if begin <= first < last <= end else token


def _long_lines(text: str) -> list[str]:
    # Short lines, such as a lone "return", occur in unrelated texts.
    return [line.strip() for line in text.splitlines() if len(line.strip()) > 20]
