"""The base class of prompt sets, and their common row format.

A row has five columns:

- ``prompt_id``: an id that is unique within the set
- ``category``: the group under which results are reported
- ``turns``: the user's texts, one for each turn
- ``context``: the messages before the first turn, such as a system prompt
- ``chat``: true for chat messages, false for a text to be continued, null to let ``data.chat_template`` decide

The model's own answers to earlier turns are part of the context of each later turn.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from specexp.base.checked import Checked
from specexp.constraints.grammar import ConstraintError, grammar_of
from specexp.data.chat import Message

if TYPE_CHECKING:
    from datasets import Dataset


_LISTED = 5  # maximum number of places listed in an error


class PromptSetError(ValueError):
    """Raised if a prompt set cannot be read. The message is one sentence that names the file and the row or key.

    ``key`` leads to the invalid argument of :class:`~specexp.data.workload.Workload`; empty if a file is invalid.
    """

    def __init__(self, sentence: str, key: tuple[str, ...] = ()) -> None:
        super().__init__(sentence)
        self.key = key


class UnusableRow(PromptSetError):  # noqa: N818
    """Raised if a row (``place``, such as ``row 3``) cannot be used. The message is ``where: place`` and ``why``."""

    def __init__(self, where: str, place: str, why: str, key: tuple[str, ...] = ()) -> None:
        super().__init__(f"{where}: {place}{why}", key)
        self.where = where
        self.place = place
        self.why = why

    @property
    def kind(self) -> str:
        """The reason without its numbers and the value, which other rows may share."""
        return re.sub(r"\d+", "#", self.why.partition(", got ")[0])


def unusable_rows(found: Sequence[UnusableRow], total: int) -> PromptSetError:
    """Return one error about all unusable rows of a set with ``total`` rows, grouped by :attr:`UnusableRow.kind`."""
    advice = "; correct the file, or leave such rows out with data.unusable: skip"
    keys = {one.key for one in found}
    if all(keys):  # the reasons have an advice of their own
        advice = ""
    if len(found) == 1 or (len({one.kind for one in found}) == 1 and len(found) == total):
        return found[0] if total == len(found) else PromptSetError(f"{found[0]}{advice}", found[0].key)
    kinds: dict[str, list[UnusableRow]] = {}
    for one in found:
        kinds.setdefault(one.kind, []).append(one)
    reasons = "; ".join(f"{listed([one.place for one in own])}{own[0].why}" for own in kinds.values())
    return PromptSetError(
        f"{found[0].where}: {len(found)} of {total} prompts cannot be used: {reasons}{advice}",
        keys.pop() if len(keys) == 1 else (),
    )


def listed(places: Sequence[str]) -> str:
    """Return the first few places as text.

    Example:
        >>> listed(["row 3", "row 9"]), listed([f"row {number}" for number in range(1, 9)])
        ('rows 3 and 9', 'rows 1, 2, 3, 4, 5 and 3 more')
    """
    word = places[0].partition(" ")[0]
    if len(places) == 1 or not all(place.startswith(f"{word} ") for place in places):
        word, shown = "", list(places)
    else:
        word, shown = f"{word}s ", [place.partition(" ")[2] for place in places]
    *first, last = shown if len(shown) <= _LISTED else [*shown[:_LISTED], f"{len(shown) - _LISTED} more"]
    return f"{word}{', '.join(first)} and {last}" if first else f"{word}{last}"


class PromptRow(NamedTuple):
    """A prompt in the common row format."""

    prompt_id: str
    category: str
    turns: list[str]
    context: list[Message] = []  # noqa: RUF012 (never changed)
    chat: bool | None = None
    structured_outputs: dict[str, Any] | None = None


class PromptSet(metaclass=Checked):
    """A set of prompts. A subclass's constructor defines its configuration schema and must not read files.

    Example::

        class Greetings(PromptSet):
            def load(self) -> Dataset:
                return prompt_rows([PromptRow("0", "greeting", ["Who are you?"])], where="Greetings")
    """

    prompt_tokens: int | None = None  # to which a workload cuts each raw text; None to keep prompts whole
    continued: bool = False  # whether the prompts are texts to be continued rather than messages to a chat model
    unusable: Sequence[UnusableRow] = ()  # the rows that first() left out

    @property
    def label(self) -> str:
        """The name of the set in error messages."""
        return type(self).__name__

    @classmethod
    def reader_of(cls, given: str) -> str | None:
        """Return the name of the class that reads ``given`` if it is a path or hub name; None if it is a class name."""
        # the part after the last dot is capitalized in a class path, but not in a file name
        is_file = "." in given and not given.rpartition(".")[2][:1].isupper()
        is_path = is_file or any(mark in given for mark in "/\\~") or Path(given).exists()
        return "OwnPrompts" if is_path else None

    def with_field(self, field: str) -> PromptSet:
        """Return the same prompt set, read from a different field of the rows. Raises ValueError by default."""
        raise ValueError(f"field is only for OwnPrompts, not for {type(self).__name__}: leave it out")

    def with_category(self, field: str) -> PromptSet:
        """Return the same prompt set, with categories from this field of the rows. Raises ValueError by default."""
        raise ValueError(f"category is only for OwnPrompts, not for {type(self).__name__}: leave it out")

    def first(self, count: int | None) -> Dataset:
        """Return at least the first ``count`` prompts, or all prompts if ``count`` is None."""
        return self.load()

    def remarks(self) -> list[str]:
        """Return sentences about the fields that were ignored when the set was last read."""
        return []

    @abstractmethod
    def load(self) -> Dataset:
        """Return all prompts in source order, as a data set created by :func:`prompt_rows`.

        Every call must return the same prompts. Raises PromptSetError if the source is missing, empty or unreadable, or
        has a different format.
        """


def prompt_rows(rows: Iterable[PromptRow], where: str) -> Dataset:
    """Collect rows into a data set with the common columns. ``where`` names the source in error messages.

    Raises PromptSetError if there are no rows, two rows share a ``prompt_id``, or a constraint cannot be read.
    """
    numbers: dict[str, int] = {}
    collected = []
    for number, row in enumerate(rows, start=1):
        earlier = numbers.setdefault(row.prompt_id, number)
        if earlier != number:
            raise PromptSetError(
                f"{where}: prompt ids must be unique, but rows {earlier} and {number} share {row.prompt_id!r}"
            )
        try:
            if row.structured_outputs is not None:
                grammar_of(row.structured_outputs)
        except ConstraintError as error:
            key = ".".join(("structured_outputs", *error.key))
            raise PromptSetError(f"{where}: prompt {row.prompt_id!r}: {key}: {error}") from error
        collected.append(row._asdict())
    if not collected:
        raise PromptSetError(f"{where}: the data set is empty; it must hold at least one prompt")
    from datasets import Dataset, Features, Json, List, Value  # takes a second, so errors are raised first

    text = Value("string")
    features = Features(  # messages have fields of their own, such as tool calls
        prompt_id=text,
        category=text,
        turns=List(text),
        context=List(Json()),
        chat=Value("bool"),
        structured_outputs=Json(),
    )
    return Dataset.from_list(collected, features=features)
