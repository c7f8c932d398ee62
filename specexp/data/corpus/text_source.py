"""The contract of a source of training text: named texts in three splits, under a licence that model cards repeat."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import ClassVar, NamedTuple

from specexp.core.checked import Checked
from specexp.data.corpus.split import Split
from specexp.data.tasks.task import Ending


class Text(NamedTuple):
    """One document: what it is of (a module, a file, a problem), and itself."""

    name: str
    text: str


class Probe(NamedTuple):
    """A held-out problem as a reasoning task asks it, whole prompt and all, and what its answer is worth.

    Attributes:
        kind: what tables call the question.
        prompt: what a model continues.
        is_right: whether a continuation, cut at ``ending``, is right; None where it cannot be read.
        ending: where it ends.
    """

    kind: str
    prompt: str
    is_right: Callable[[str], bool | None]
    ending: Ending


class TextSource(metaclass=Checked):
    """Where training text comes from. The constructor of an implementation is its configuration schema.

    Constructing one reads nothing. Splits share no module, no file and no problem.

    Attributes:
        licence: of the texts, with the attribution it asks for.
        written: whether people wrote the texts, so that copies of held-out ones may lie elsewhere in the corpus and
            are looked for; generated texts share their wording on purpose.
    """

    licence: ClassVar[str]
    written: ClassVar[bool] = True

    @abstractmethod
    def texts(self, split: Split) -> Iterator[Text]:
        """The documents of a split, the same at every call."""

    def probes(self, split: Split) -> Iterator[Probe]:
        """Problems of a split whose answers can be checked, the same at every call; none of most sources."""
        return iter(())


def split_of_name(name: str) -> Split:
    """A split by the hash of a name: 3 % each for validation and test.

    Example:
        >>> {split_of_name(str(number)) for number in range(300)} == {"train", "validation", "test"}
        True
    """
    place = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]) % 100
    return "test" if place < 3 else "validation" if place < 6 else "train"
