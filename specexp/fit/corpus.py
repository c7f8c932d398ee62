"""The corpus of the embedded pair: texts of several sources in three splits.

What people wrote and also occurs in a held-out text, wherever it is found, is not training text.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from specexp.data.corpus.sources import fingerprint
from specexp.data.corpus.split import Split
from specexp.data.corpus.text_source import Text, TextSource

if TYPE_CHECKING:
    import datasets


def build_corpus(sources: Mapping[str, TextSource]) -> datasets.DatasetDict:
    """The three splits as data sets with the columns ``source`` (its name here), ``name`` and ``text``.

    Of equal texts of several sources the first source's is kept.
    """
    import datasets

    held: dict[Split, dict[str, list[Text]]] = {
        split: {name: held_out_texts(source, split) for name, source in sources.items()}
        for split in ("validation", "test")
    }
    everything = [
        text for texts in held.values() for name in texts if sources[name].written for text in texts[name]
    ]
    copies = Copies(everything)
    train = {
        name: [text for text in source.texts("train") if not source.written or copies.is_new(text.text)]
        for name, source in sources.items()
    }
    return datasets.DatasetDict({split: _dataset(texts) for split, texts in {"train": train, **held}.items()})


def held_out_texts(source: TextSource, split: Split) -> list[Text]:
    """The texts of a source that are held out in a split, without duplicates, in one fixed shuffled order."""
    copies = Copies()
    texts = [text for text in source.texts(split) if not source.written or copies.is_new(text.text)]
    random.Random(0).shuffle(texts)
    return texts


class Copies:
    """Tells new texts from copies of held-out ones and of those seen before.

    A copy has an equal `fingerprint`, or at least 60 % of its longer lines are lines of held-out texts.
    """

    def __init__(self, held_out: Iterable[Text] = ()) -> None:
        self._seen: set[str] = set()
        self._lines: set[str] = set()
        for text in held_out:
            self._seen.add(fingerprint(text.text))
            self._lines.update(_long_lines(text.text))

    def is_new(self, text: str) -> bool:
        """Whether a text is no copy; it is one from now on."""
        mark = fingerprint(text)
        lines = list(_long_lines(text))
        copied = sum(line in self._lines for line in lines)
        if mark in self._seen or (len(lines) >= 3 and copied >= 0.6 * len(lines)):
            return False
        self._seen.add(mark)
        return True


def _long_lines(text: str) -> Iterator[str]:
    return (line.strip() for line in text.splitlines() if len(line.strip()) > 20)


def _dataset(texts: Mapping[str, list[Text]]) -> datasets.Dataset:
    import datasets

    rows = [
        {"source": source, "name": one.name, "text": one.text} for source in texts for one in texts[source]
    ]
    return datasets.Dataset.from_list(rows)
