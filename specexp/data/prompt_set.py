"""The contract of a prompt set, and the row format of all sets.

A row has five columns:

- ``prompt_id``, unique in its set
- ``category``, the group in tables
- ``turns``, the user's texts, one a turn
- ``context``, messages before the first turn, such as a system prompt
- ``chat``, whether it is made of chat messages

Each turn is answered with the model's own earlier answers in its context.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from specexp.core.checked import Checked

if TYPE_CHECKING:
    from datasets import Dataset


class PromptSetError(ValueError):
    """A prompt set cannot be read; the message is one sentence with the file and the row or key.

    Args:
        key: the wrong argument of :class:`~specexp.data.workload.Workload`; empty if the content of a file is wrong.
    """

    def __init__(self, sentence: str, key: tuple[str, ...] = ()) -> None:
        super().__init__(sentence)
        self.key = key


class Message(TypedDict):
    """One message of a conversation."""

    role: str
    content: str


class PromptRow(NamedTuple):
    """One prompt in the common row format."""

    prompt_id: str
    category: str
    turns: list[str]
    context: list[Message] = []  # noqa: RUF012 (never changed)
    chat: bool = False


class PromptSet(metaclass=Checked):
    """Prompts to decode. The constructor of an implementation is its configuration schema, and reads nothing.

    Attributes:
        prompt_tokens: tokens to which :class:`~specexp.data.workload.Workload` cuts raw texts; None for whole prompts.

    Example::

        class Greetings(PromptSet):
            def load(self) -> Dataset:
                return prompt_rows([PromptRow("0", "greeting", ["Who are you?"])], where="Greetings")
    """

    prompt_tokens: int | None = None

    @property
    def label(self) -> str:
        """Name of the set in errors."""
        return type(self).__name__

    @classmethod
    def reader_of(cls, given: str) -> str | None:
        """Return the class that reads a path or hub name given in place of a class; None if it names a class."""
        # Class names are capitalised, endings of files are not.
        is_file = "." in given and not given.rpartition(".")[2][:1].isupper()
        is_path = is_file or any(mark in given for mark in "/\\~") or Path(given).exists()
        return "OwnPrompts" if is_path else None

    def with_field(self, field: str) -> PromptSet:
        """Return the same prompts, read from another field of the rows; raises ValueError by default."""
        raise ValueError(f"field is for prompts of your own, not for {type(self).__name__}: leave it out")

    def first(self, count: int | None) -> Dataset:
        """Return at least the first ``count`` prompts, all if None."""
        return self.load()

    def remarks(self) -> list[str]:
        """Return sentences about parts of the rows that were ignored in the last reading."""
        return []

    @abstractmethod
    def load(self) -> Dataset:
        """Return all prompts in the order of the file, as :func:`prompt_rows` makes them; the same at every call.

        Raises:
            PromptSetError: the source is missing, unreadable, empty or of another format.
        """


def prompt_rows(rows: Iterable[PromptRow], where: str) -> Dataset:
    """Collect rows into a data set with the common columns; ``where`` is the source in errors.

    Raises:
        PromptSetError: there is no row, or two rows share a ``prompt_id``.
    """
    numbers: dict[str, int] = {}
    collected = []
    for number, row in enumerate(rows, start=1):
        earlier = numbers.setdefault(row.prompt_id, number)
        if earlier != number:
            raise PromptSetError(
                f"{where}: rows {earlier} and {number} share the prompt id {row.prompt_id!r}; ids are unique."
            )
        collected.append(row._asdict())
    if not collected:
        raise PromptSetError(f"{where}: the data set is empty; at least one prompt is needed.")
    from datasets import Dataset, Features, List, Value  # takes a second, so errors are reported first

    text = Value("string")
    message = {"role": text, "content": text}
    features = Features(
        prompt_id=text, category=text, turns=List(text), context=List(message), chat=Value("bool")
    )
    return Dataset.from_list(collected, features=features)
