"""The contract of a prompt set, and the one row format that every set is turned into.

A row has five columns: ``prompt_id`` (unique in its set), ``category`` (what tables are grouped by), ``turns``
(what the user says, one text a turn), ``context`` (messages before the first turn, such as a system prompt) and
``chat`` (whether it is made of chat messages). A set with several turns is answered turn by turn, with the model's own
answers in the context of the next turn.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from specexp.core.checked import Checked

if TYPE_CHECKING:
    from datasets import Dataset

COLUMNS = ("prompt_id", "category", "turns", "context", "chat")


class PromptSetError(ValueError):
    """A prompt set cannot be read; the message is one sentence with the file and the row or key.

    Args:
        sentence: what is wrong.
        key: the argument of :class:`~specexp.data.workload.Workload` that is to blame; empty where it is what a file
            holds.
    """

    def __init__(self, sentence: str, key: tuple[str, ...] = ()) -> None:
        super().__init__(sentence)
        self.key = key


class PromptSet(metaclass=Checked):
    """Prompts to decode. The constructor of an implementation is its configuration schema.

    Constructing one reads nothing, so that a configuration is checked without touching data; ``load`` reads.

    Attributes:
        prompt_tokens: how many first tokens of a text are the prompt, for sets of raw text; None for sets whose texts
            are prompts as they stand. The cut needs a tokenizer, so :class:`~specexp.data.workload.Workload` makes it.

    Example::

        class Greetings(PromptSet):
            def load(self) -> Dataset:
                return prompt_rows([PromptRow("0", "greeting", ["Who are you?"])], where="Greetings")
    """

    prompt_tokens: int | None = None

    @property
    def label(self) -> str:
        """What errors call it."""
        return type(self).__name__

    @classmethod
    def reader_of(cls, given: str) -> str | None:
        """The class that reads a path or hub name given in place of a class; None where it names a class."""
        last = given.rpartition(".")[2]
        is_path = "." in given and not last[:1].isupper()  # classes are written so, endings of files are not
        if any(mark in given for mark in "/\\~") or is_path or Path(given).exists():
            return "OwnPrompts"
        return None

    def with_field(self, field: str) -> PromptSet:
        """The same prompts, read from another field of the rows.

        Raises:
            ValueError: the set knows its fields.
        """
        raise ValueError(
            f"field is for prompts of your own; {type(self).__name__} knows its fields: leave it out"
        )

    def first(self, count: int | None) -> Dataset:
        """At least the first ``count`` prompts, all if None; a set that can reads no more than these."""
        return self.load()

    def remarks(self) -> list[str]:
        """What of the rows was not obeyed when they were last read, in sentences."""
        return []

    @abstractmethod
    def load(self) -> Dataset:
        """All prompts in the order of the file, with the columns ``prompt_id: str``, ``category: str``,
        ``turns: list[str]``, ``context`` (a list of ``role`` and ``content``) and ``chat: bool``, as
        :func:`prompt_rows` makes them; the same rows at every call.

        Raises:
            PromptSetError: the source is missing, unreadable, empty or of another format.
        """


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


def prompt_rows(rows: Iterable[PromptRow], where: str) -> Dataset:
    """Collect rows into a data set with the common columns, in the given order.

    Args:
        rows: at least one row, each with a new ``prompt_id``.
        where: the source as a person would name it in an error, a path or a class name.

    Raises:
        PromptSetError: there is no row, or two rows share a ``prompt_id``.

    Example::

        prompt_rows([PromptRow("0", "qa", ["Who wrote Emma?"])], where="questions.jsonl")[0]["turns"]
        # ["Who wrote Emma?"]
    """
    columns: dict[str, list[Any]] = {column: [] for column in COLUMNS}
    first_seen: dict[str, int] = {}
    for number, row in enumerate(rows, start=1):
        earlier = first_seen.setdefault(row.prompt_id, number)
        if earlier != number:
            raise PromptSetError(
                f"{where}: rows {earlier} and {number} share the prompt id {row.prompt_id!r}; ids are unique.",
            )
        for column, value in zip(COLUMNS, row, strict=True):
            columns[column].append(value)
    if not first_seen:
        raise PromptSetError(f"{where}: the data set is empty; at least one prompt is needed.")
    from datasets import Dataset, Features, List, Value  # takes a second: what is wrong is told before

    text = Value("string")
    features = Features(
        prompt_id=text,
        category=text,
        turns=List(text),
        context=List({"role": text, "content": text}),
        chat=Value("bool"),
    )
    return Dataset.from_dict(columns, features=features)
