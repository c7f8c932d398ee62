"""Somebody's own prompts: a file, a folder or a hub data set whose fields are recognised."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import override

from specexp.data.conversation import read_conversation
from specexp.data.prompt_set import PromptRow, PromptSet, PromptSetError, prompt_rows
from specexp.data.row import Row
from specexp.data.source import read_rows

if TYPE_CHECKING:
    from datasets import Dataset


def requests_of(rows: Iterable[Row]) -> Iterator[Row]:
    """One row a request: sessions under ``data`` and their ``payloads`` are taken apart, other rows are as they were.

    A request of a later turn holds the earlier ones with their answers, so that each is a prompt by itself.

    Raises:
        PromptSetError: A session holds no requests.
    """
    number = 0
    for row in _sessions(rows):
        for one in _payloads(row):
            number += 1
            yield Row(one.where, number, one.values, one.place or f"row {row.number}")


def _sessions(rows: Iterable[Row]) -> Iterator[Row]:
    for row in rows:
        held = row.values.get("data")
        if not (isinstance(held, list) and held and all(isinstance(one, dict) for one in held)):
            yield row
            continue
        if not any("payloads" in one for one in held):
            yield row
            continue
        for number, session in enumerate(held, start=1):
            yield Row(row.where, number, session, f"session {number}")


def _payloads(row: Row) -> Iterator[Row]:
    if "payloads" not in row.values:
        yield row
        return
    held = row.values["payloads"]
    if not isinstance(held, list) or not held or not all(isinstance(one, dict) for one in held):
        raise row.error("payloads", "a list of requests", held)
    session = row.values.get("session_id", row.number)
    for number, payload in enumerate(held, start=1):
        place = f"{row.place or f'row {row.number}'}, request {number}"
        yield Row(row.where, row.number, {"custom_id": f"{session}/{number}", "body": payload}, place)


FIELDS = (
    *("prompt", "text", "question", "instruction", "article", "turns"),
    *("messages", "conversations", "conversation", "body"),
)
"""Fields that prompts are read from where none is named."""
_IDS = ("prompt_id", "question_id", "task_id", "custom_id", "session_id", "id")


class OwnPrompts(PromptSet):
    """Prompts of your own; ``data.prompts: my.jsonl`` is short for it.

    The field that holds them is recognised in the first row: ``prompt``, ``text``, ``question``, ``instruction`` (with
    its ``input``), ``article``, ``turns``, ``messages``, ``conversations``, or the ``body`` of an OpenAI request; where
    there are two, or none, ``data.field`` names it. What kind of prompt it is tells its value: a text, a list of texts
    (turns), or chat messages, which are a prompt up to the user's last one, system prompt and earlier answers included;
    an answer that stands behind it is left out. Ids are taken from ``prompt_id``, ``question_id``, ``task_id``,
    ``custom_id``, ``session_id`` or ``id``, the category from ``category``.

    So traffic is read as other tools keep it: logs and batch files of OpenAI requests, what ``vllm bench serve`` takes
    (``custom`` and ShareGPT), AIPerf's single and multi-turn files and the ``inputs.json`` that its runs leave.

    Args:
        path: a file (``.jsonl``, ``.json``, ``.csv``, ``.parquet``; ``.txt``: one prompt a line, without its line
            break; also compressed), its URL, a folder that ``datasets`` saved, or a hub data set.
        subset: the subset of a hub data set; a file has none.
        split: the split of a hub data set or saved folder; a file has none.

    Example::

        OwnPrompts("my.jsonl").load()[0]["turns"]  # ["Why is the sky blue?"]
    """

    def __init__(self, path: str, subset: str | None = None, split: str = "train") -> None:
        self.path = path
        self.subset = subset
        self.split = split
        self.field: str | None = None
        self._ignored: Counter[str] = Counter()

    @property
    @override
    def label(self) -> str:
        return self.path

    @override
    def with_field(self, field: str) -> OwnPrompts:
        other = copy.copy(self)
        other.field = field
        return other

    @override
    def load(self) -> Dataset:
        return self.first(None)

    @override
    def first(self, count: int | None) -> Dataset:
        for name, given in (("subset", self.subset is not None), ("split", self.split != "train")):
            if given and Path(self.path).is_file():
                raise PromptSetError(
                    f"{self.path}: a file has no {name}s, so {getattr(self, name)!r} means nothing; leave it out.",
                    ("prompts", "init_args", name),
                )
        source = read_rows(self.path, subset=self.subset, split=self.split, streaming=count is not None)
        self._ignored.clear()
        return prompt_rows(self._prompts(islice(source, count)), where=self.path)

    @override
    def remarks(self) -> list[str]:
        if not self._ignored:
            return []
        asked = ", ".join(f"{name} ({count})" for name, count in self._ignored.most_common())
        return [
            f"{self.path}: what its requests ask beside their prompts is not obeyed: {asked}; generation and verifier "
            "say how much is generated, and how."
        ]

    def _prompts(self, rows: Iterable[Row]) -> Iterator[PromptRow]:
        id_field = None
        for row in requests_of(rows):
            if self.field is None:
                self.field = recognised_field(row)
            if row.number == 1:
                id_field = next((name for name in _IDS if row.values.get(name) is not None), None)
            found = read_conversation(row, self.field)
            self._ignored.update(found.ignored)
            has_id = id_field is not None and row.values.get(id_field) is not None
            category = row.values.get("category")
            yield PromptRow(
                row.label(str(id_field)) if has_id else str(row.number - 1),
                category if isinstance(category, str) and category.strip() else "own",
                found.turns,
                found.context,
                found.chat,
            )


def recognised_field(row: Row) -> str:
    """The field of a row that holds the prompt.

    Raises:
        PromptSetError: there are several, or none.
    """
    present = [name for name in FIELDS if name in row.values]
    found = [name for name in present if row.values[name]] or present
    if len(found) == 1:
        return found[0]
    names = ", ".join(map(str, row.values)) or "none"
    chosen = found or list(row.values) or ["NAME"]
    if found:
        why = f" has {' and '.join(map(repr, found))}, and a prompt is read from one of them"
    else:
        why = f" has the fields {names}, and a prompt is read from one of {', '.join(FIELDS)}"
    rows = row.values.get(chosen[0])
    if not found and isinstance(rows, list) and rows and any(name in rows[0] for name in FIELDS):
        raise row.refusal(f"{why}: save the array in {chosen[0]!r} alone, as a file of its own.")
    raise row.refusal(f"{why}: choose it with --data.field {chosen[0]}.")
