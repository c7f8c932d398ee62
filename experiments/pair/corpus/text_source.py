"""Sources of training text, with splits that share nothing."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import ClassVar, NamedTuple

from specexp.base.checked import Checked
from specexp.data.tasks.task import Ending
from specexp.data.training_text import Split

_OPENING_CHARACTERS = 600


class Text(NamedTuple):
    """A document of training text.

    ``name`` is its module, file or problem. ``given`` are the parts of ``text``, in order, that have no training loss.
    """

    name: str
    text: str
    given: tuple[str, ...] = ()


class Probe(NamedTuple):
    """A held-out problem that can be checked.

    ``is_right`` checks a continuation of ``prompt`` that was cut at ``ending``; it returns None if it cannot be parsed.
    """

    kind: str
    prompt: str
    is_right: Callable[[str], bool | None]
    ending: Ending


class TextSource(metaclass=Checked):
    """A source of training text. A subclass's constructor is its configuration schema and must not read files.

    Different splits must not share modules, files or problems.

    Attributes:
        licence: licence of the texts, with the required attribution.
        written: whether people wrote the texts (they were not generated). If true, copies of held-out texts are removed
            from the training text.
    """

    licence: ClassVar[str]
    written: ClassVar[bool] = True

    @abstractmethod
    def texts(self, split: Split) -> Iterator[Text]:
        """Yield the documents of a split; every call yields the same ones."""

    def probes(self, split: Split) -> Iterator[Probe]:
        """Yield the problems of a split, for sources that have problems; the default yields none."""
        return iter(())


def split_of_name(name: str) -> Split:
    """Return the split of a name by its hash: 3 % of names are in validation, 3 % in test."""
    place = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]) % 100
    return "test" if place < 3 else "validation" if place < 6 else "train"


def opening(text: str) -> str:
    """Return the beginning of a text as a prompt: its first lines, about 40 % of it but at most 600 characters.

    The prompt ends where a token starts, since tokenizers join successive line breaks, and a blank with the next word.
    It is therefore cut before a line that is not blank or, in a text of one line, before a blank.

    Example:
        >>> opening("one\\ntwo\\n\\nthree\\nfour\\nfive\\n"), opening("one line alone")
        ('one\\ntwo\\n\\n', 'one')
    """
    kept = ""
    for line in text.splitlines(keepends=True):
        if kept and line.strip() and len(kept) + len(line) > min(_OPENING_CHARACTERS, 0.4 * len(text)):
            break
        kept += line
    return kept if len(kept) < len(text) else text[: len(text) // 2].rsplit(maxsplit=1)[0]
