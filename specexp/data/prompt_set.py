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

from abc import abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from specexp.base.checked import Checked
from specexp.data.chat import Message

if TYPE_CHECKING:
    from datasets import Dataset


class PromptSetError(ValueError):
    """Raised if a prompt set cannot be read. The message is one sentence that names the file and the row or key.

    Args:
        key: path to the invalid argument of :class:`~specexp.data.workload.Workload`; empty if a file is invalid.
    """

    def __init__(self, sentence: str, key: tuple[str, ...] = ()) -> None:
        super().__init__(sentence)
        self.key = key


class PromptRow(NamedTuple):
    """A prompt in the common row format."""

    prompt_id: str
    category: str
    turns: list[str]
    context: list[Message] = []  # noqa: RUF012 (never changed)
    chat: bool | None = None


class PromptSet(metaclass=Checked):
    """A set of prompts. A subclass's constructor defines its configuration schema and must not read files.

    Attributes:
        prompt_tokens: number of tokens to which :class:`~specexp.data.workload.Workload` cuts each raw text; None to
            keep prompts whole.
        continued: whether the prompts are texts to be continued rather than messages to a chat model.

    Example::

        class Greetings(PromptSet):
            def load(self) -> Dataset:
                return prompt_rows([PromptRow("0", "greeting", ["Who are you?"])], where="Greetings")
    """

    prompt_tokens: int | None = None
    continued: bool = False

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

    def first(self, count: int | None) -> Dataset:
        """Return at least the first ``count`` prompts, or all prompts if ``count`` is None."""
        return self.load()

    def remarks(self) -> list[str]:
        """Return sentences about the fields that were ignored when the set was last read."""
        return []

    @abstractmethod
    def load(self) -> Dataset:
        """Return all prompts in source order, as a data set created by :func:`prompt_rows`.

        Every call must return the same prompts.

        Raises:
            PromptSetError: the source is missing, empty or unreadable, or has a different format.
        """


def prompt_rows(rows: Iterable[PromptRow], where: str) -> Dataset:
    """Collect rows into a data set with the common columns. ``where`` names the source in error messages.

    Raises:
        PromptSetError: there are no rows, or two rows share a ``prompt_id``.
    """
    numbers: dict[str, int] = {}
    collected = []
    for number, row in enumerate(rows, start=1):
        earlier = numbers.setdefault(row.prompt_id, number)
        if earlier != number:
            raise PromptSetError(
                f"{where}: prompt ids must be unique, but rows {earlier} and {number} share {row.prompt_id!r}."
            )
        collected.append(row._asdict())
    if not collected:
        raise PromptSetError(f"{where}: the data set is empty; it must hold at least one prompt.")
    from datasets import Dataset, Features, Json, List, Value  # takes a second, so errors are raised first

    text = Value("string")
    features = Features(  # messages have fields of their own, such as tool calls
        prompt_id=text, category=text, turns=List(text), context=List(Json()), chat=Value("bool")
    )
    return Dataset.from_list(collected, features=features)
