"""The user's own prompts, from a file, a folder or a hub data set. The fields are recognized automatically."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from typing_extensions import override

from specexp.base.messages import did_you_mean, restated
from specexp.data.chat import Message, read_messages
from specexp.data.prompt_set import (
    PromptRow,
    PromptSet,
    PromptSetError,
    UnusableRow,
    prompt_rows,
    unusable_rows,
)
from specexp.data.source import Row, is_text, read_rows

if TYPE_CHECKING:
    from datasets import Dataset

FIELDS = (
    *("prompt", "text", "question", "instruction", "article", "turns"),
    *("messages", "conversations", "conversation", "body"),
)
"""The fields from which prompts are read by default."""
_IDS = ("prompt_id", "question_id", "task_id", "custom_id", "session_id", "id")
REQUESTED = (
    *("max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p", "n", "stop", "seed"),
    *("frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias", "logprobs", "stream"),
    *("tools", "tool_choice", "functions", "response_format", "suffix"),
)
"""Request fields that are ignored, with a notice, because a study sets decoding parameters itself."""


class OwnPrompts(PromptSet):
    """Your own prompts. ``data.prompts: my.jsonl`` is the short form.

    The field with the prompts is detected from the first row. It is ``prompt``, ``text``, ``question``, ``instruction``
    (with its ``input``), ``article``, ``turns``, ``messages``, ``conversations``, or the ``body`` of an OpenAI request.
    If the row has several of these fields or none, set ``data.field``. A prompt is a text, a list of texts (turns), or
    chat messages up to the user's last one, including the system prompt and earlier answers. The prompt id is read from
    ``prompt_id``, ``question_id``, ``task_id``, ``custom_id``, ``session_id`` or ``id``, and the category from
    ``category``, or from the field named by ``data.category``. With ``structured_outputs``, the answer must satisfy a
    constraint, such as ``{"json": SCHEMA}`` (see :func:`~specexp.constraints.grammar.constraint_of`).

    Supported files are logs and batches of OpenAI requests, and input for ``vllm bench serve`` (``custom`` and
    ShareGPT). AIPerf's single-turn and multi-turn files and the ``inputs.json`` of an AIPerf run also work.

    Args:
        path: a file, its URL, a folder saved by ``datasets``, or the name of a hub data set. Files may be ``.jsonl``,
            ``.json``, ``.csv``, ``.parquet`` or ``.txt`` (one prompt per line), optionally compressed.
        subset: subset of a hub data set; not allowed for files.
        split: split of a hub data set or saved folder; not allowed for files.
    """

    def __init__(self, path: str, subset: str | None = None, split: str = "train") -> None:
        self.path = path
        self.subset = subset
        self.split = split
        self.field: str | None = None
        self.category: str | None = None
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
    def with_category(self, field: str) -> OwnPrompts:
        other = copy.copy(self)
        other.category = field
        return other

    @override
    def load(self) -> Dataset:
        rows = self.first(None)
        if self.unusable:
            raise unusable_rows(self.unusable, len(rows) + len(self.unusable))
        return rows

    @override
    def first(self, count: int | None) -> Dataset:
        for name, default in (("subset", None), ("split", "train")):
            if (given := getattr(self, name)) != default and Path(self.path).is_file():
                raise PromptSetError(
                    f"{self.path}: {name} must be left out for a file, got {given!r}",
                    ("prompts", "init_args", name),
                )
        source = read_rows(self.path, subset=self.subset, split=self.split, streaming=count is not None)
        self._ignored.clear()
        self.unusable: list[UnusableRow] = []
        rows = list(islice(self._prompts(source), count))
        if self.unusable and not rows:
            raise unusable_rows(self.unusable, len(self.unusable))
        return prompt_rows(rows, where=self.path)

    @override
    def remarks(self) -> list[str]:
        if not self._ignored:
            return []
        requested = ", ".join(f"{name} ({count})" for name, count in self._ignored.most_common())
        return [
            f"{self.path}: the requests' fields {requested} are ignored; configure generation and verifier instead."
        ]

    def _prompts(self, rows: Iterable[Row]) -> Iterator[PromptRow]:
        id_field = ""
        for row in _requests(rows):
            if self.field is None:
                self.field = _recognized_field(row)
            if row.number == 1:
                id_field = next((name for name in _IDS if row.values.get(name) is not None), "")
            if self.category not in (None, *row.values) and row.number == 1:
                near = did_you_mean(self.category, row.values)
                raise PromptSetError(f"{row.where}: row 1 has no field {self.category!r}{near}", ("category",))
            kind = row.values.get(self.category or "category")
            form = row.values.get("structured_outputs")
            if not isinstance(form, dict | None):
                raise row.error("structured_outputs", "an object such as {json: SCHEMA}", form)
            try:
                found = _conversation(row, self.field)
            except UnusableRow as error:
                if error.key:  # the field is wrong, not the row
                    raise
                self.unusable.append(error)
                continue
            self._ignored.update(found.ignored)
            yield PromptRow(
                row.label(id_field) if id_field and row.values.get(id_field) is not None else str(row.number - 1),
                str(kind) if is_text(kind) or isinstance(kind, int) else "own",
                found.turns,
                found.context,
                found.chat,
                form,
            )


def _requests(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield one row per request. AIPerf sessions are split into their requests (``payloads``).

    The request for a later turn contains the earlier turns and answers, so each request is a separate prompt.
    """
    number = 0
    for row in rows:
        sessions: Any = row.values.get("data")
        if not (_are_objects(sessions) and any("payloads" in one for one in sessions)):
            sessions = [row.values] if "payloads" in row.values else []
        if not sessions:
            number += 1
            yield Row(row.where, number, row.values, row.place)
        for index, session in enumerate(sessions, start=1):
            place, payloads = f"session {index}", session.get("payloads")
            if not _are_objects(payloads):
                raise Row(row.where, index, session, place).error("payloads", "a list of requests", payloads)
            for turn, payload in enumerate(payloads, start=1):
                number += 1
                values = {"custom_id": f"{session.get('session_id', index)}/{turn}", "body": payload}
                yield Row(row.where, number, values, f"{place}, request {turn}")


def _are_objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) for one in value)


def _recognized_field(row: Row) -> str:
    present = [name for name in FIELDS if name in row.values]
    found = [name for name in present if row.values[name]] or present
    if len(found) == 1:
        return found[0]
    names = found or list(map(str, row.values))
    texts = [name for name in names if is_text(row.values.get(name))]
    example = max(texts, key=lambda name: len(str(row.values[name])), default="NAME")
    if not found and len(names) == 1:
        (only,) = names
        mark = next((mark for mark in ";\t|" if mark in only), None)
        if ".csv" in row.where and mark is not None:
            raise PromptSetError(f"{row.where}: columns must be separated by commas, got {only!r}")
        if _are_objects(row.values[only]):
            raise PromptSetError(
                f"{row.where}: the rows must be the file's own list, got an object with the field {only!r}; save that "
                "list alone"
            )
    for name in () if found else filter(str.isidentifier, names):
        if near := get_close_matches(name, FIELDS, 1, 0.8):
            raise row.refusal(
                f" has the field {name!r}; did you mean {near[0]!r}? rename it, or set --data.field {name}"
            )
    raise row.refusal(
        f" has the fields {', '.join(names[:8]) or 'none'}, but must have exactly one of {', '.join(FIELDS)}: set, for "
        f"example, --data.field {example}"
    )


class _Conversation(NamedTuple):
    turns: list[str]
    context: list[Message] = []  # noqa: RUF012 (never changed)
    chat: bool | None = None
    ignored: tuple[str, ...] = ()


def _conversation(row: Row, key: str) -> _Conversation:
    found = _read(row, key, row.values.get(key))
    ignored = (*(name for name in REQUESTED if row.values.get(name) is not None), *found.ignored)
    system = next((name for name in ("system", "system_prompt") if is_text(row.values.get(name))), None)
    if system is not None:
        first: Message = {"role": "system", "content": row.text(system)}
        return _Conversation(found.turns, [first, *found.context], True, ignored)
    if key == "instruction" and row.values.get("input"):  # Alpaca's format, in which the input may be empty
        found = found._replace(turns=[f"{found.turns[0]}\n\n{row.text('input')}", *found.turns[1:]])
    return found._replace(ignored=ignored)


def _read(row: Row, key: str, value: Any) -> _Conversation:
    """Read a field's value: a text, a list of texts (turns), a list of messages, or a request with one of these."""
    if is_text(value):
        return _Conversation([value])
    if _are_objects(value):
        if all(is_text(one.get("text")) and not one.keys() & {"role", "from"} for one in value):  # AIPerf
            return _Conversation([one["text"] for one in value])
        messages = _messages(row, key, value)
        while messages and messages[-1]["role"] in ("assistant", "system"):  # the recorded answer
            messages.pop()
        if not messages:
            raise row.error(key, "at least one message of the user", value)
        if messages[-1]["role"] == "tool":
            raise row.refusal(f", key {key!r} must end with a message of the user, got a tool's result")
        return _Conversation([messages[-1]["content"]], messages[:-1], chat=True)
    if isinstance(value, list) and value and all(map(is_text, value)):
        return _Conversation(list(value))
    if isinstance(value, dict):
        return _request(row, key, value)
    if key not in row.values:
        error = row.refusal(f" must have the field {key!r}, got {', '.join(map(str, row.values))}")
        error.key = ("field",) if row.number == 1 else ()  # a recognized field is in the first row
        raise error
    raise row.error(key, "a text that is not blank, a list of such texts, or a list of chat messages", value)


def _request(row: Row, key: str, body: dict[str, Any]) -> _Conversation:
    given = {name: value for name, value in body.items() if value is not None}
    inner = next((name for name in ("messages", "prompt") if name in given), None)
    if inner is None:
        raise row.refusal(
            f", key {key!r} must be a request with messages or prompt, got the fields {', '.join(given) or 'none'}"
        )
    if inner == "prompt" and isinstance(given[inner], list) and not is_text(next(iter(given[inner]), None)):
        raise row.error(f"{key}.{inner}", "a text (token ids are not supported)", given[inner])
    ignored = tuple(name for name in given if name not in (inner, "model", "user", "metadata"))
    found = _read(row, f"{key}.{inner}", given[inner])
    # a server does not change the prompt of a completion request
    return found._replace(ignored=ignored, chat=False if inner == "prompt" else found.chat)


def _messages(row: Row, key: str, given: list[dict[str, Any]]) -> list[Message]:
    names = {"from": "role", "value": "content"}  # ShareGPT's
    renamed = [
        # datasets gives all messages the same fields, and fills missing ones with None
        {names.get(name, name): value for name, value in one.items() if value is not None}
        for one in given
    ]
    with restated(ValueError, lambda error: row.refusal(f", {key}.{error}")):
        return read_messages(renamed)
