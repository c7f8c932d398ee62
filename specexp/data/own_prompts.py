"""A user's own prompts: a file, a folder or a hub data set whose fields are recognised."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from specexp.core.messages import shown
from specexp.data.prompt_set import Message, PromptRow, PromptSet, PromptSetError, prompt_rows
from specexp.data.source import Row, is_text, read_rows

if TYPE_CHECKING:
    from datasets import Dataset

FIELDS = (
    *("prompt", "text", "question", "instruction", "article", "turns"),
    *("messages", "conversations", "conversation", "body"),
)
"""Fields that prompts are read from by default."""
_IDS = ("prompt_id", "question_id", "task_id", "custom_id", "session_id", "id")

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "model": "assistant",
}
"""Role of a chat template, by its name in files."""
REQUESTED = (
    *("max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p", "n", "stop", "seed"),
    *("frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias", "logprobs", "stream"),
    *("tools", "tool_choice", "functions", "response_format", "suffix"),
)
"""Fields of a request, besides its prompt, that a run does not obey."""


class OwnPrompts(PromptSet):
    """Prompts of your own; ``data.prompts: my.jsonl`` is short for it.

    The field that holds them is recognised in the first row: ``prompt``, ``text``, ``question``, ``instruction`` (with
    its ``input``), ``article``, ``turns``, ``messages``, ``conversations``, or the ``body`` of an OpenAI request; where
    there are two, or none, ``data.field`` names it. The value decides the kind of prompt: a text, a list of texts
    (turns), or chat messages, which are a prompt up to the user's last one, with the system prompt and earlier answers;
    an answer after it is left out. Ids are taken from ``prompt_id``, ``question_id``, ``task_id``, ``custom_id``,
    ``session_id`` or ``id``, the category from ``category``.

    So traffic is read as other tools keep it: logs and batch files of OpenAI requests, input of ``vllm bench serve``
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
        requested = ", ".join(f"{name} ({count})" for name, count in self._ignored.most_common())
        return [
            f"{self.path}: what its requests ask beside their prompts is not obeyed: {requested}; generation and "
            "verifier say how much is generated, and how."
        ]

    def _prompts(self, rows: Iterable[Row]) -> Iterator[PromptRow]:
        id_field = None
        for row in _requests(rows):
            if self.field is None:
                self.field = _recognised_field(row)
            if row.number == 1:
                id_field = next((name for name in _IDS if row.values.get(name) is not None), None)
            found = _conversation(row, self.field)
            self._ignored.update(found.ignored)
            has_id = id_field is not None and row.values.get(id_field) is not None
            category = row.values.get("category")
            yield PromptRow(
                row.label(str(id_field)) if has_id else str(row.number - 1),
                str(category) if is_text(category) else "own",
                found.turns,
                found.context,
                found.chat,
            )


def _requests(rows: Iterable[Row]) -> Iterator[Row]:
    """One row a request: AIPerf's sessions and their ``payloads`` are flattened, other rows are unchanged.

    A request of a later turn holds the earlier ones with their answers, so each is a prompt by itself.
    """
    number = 0
    for row in rows:
        sessions: Any = row.values.get("data")
        if not (_are_objects(sessions) and any("payloads" in one for one in sessions)):
            sessions = None
        for index, session in enumerate(sessions or [row.values], start=1):
            place = f"session {index}" if sessions else row.place or f"row {row.number}"
            held = session.get("payloads")
            if "payloads" not in session:
                number += 1
                yield Row(row.where, number, session, place)
                continue
            if not _are_objects(held):
                raise Row(row.where, index, session, place).error("payloads", "a list of requests", held)
            for turn, payload in enumerate(held, start=1):
                number += 1
                values = {"custom_id": f"{session.get('session_id', index)}/{turn}", "body": payload}
                yield Row(row.where, number, values, f"{place}, request {turn}")


def _are_objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) for one in value)


def _recognised_field(row: Row) -> str:
    """The field of a row that holds the prompt."""
    present = [name for name in FIELDS if name in row.values]
    found = [name for name in present if row.values[name]] or present
    if len(found) == 1:
        return found[0]
    chosen = (found or list(row.values) or ["NAME"])[0]
    if found:
        why = f" has {' and '.join(map(repr, found))}, and a prompt is read from one of them"
    else:
        names = ", ".join(map(str, row.values)) or "none"
        why = f" has the fields {names}, and a prompt is read from one of {', '.join(FIELDS)}"
    rows: Any = row.values.get(chosen)
    if not found and _are_objects(rows) and any(name in rows[0] for name in FIELDS):
        raise row.refusal(f"{why}: save the array in {chosen!r} alone, as a file of its own.")
    raise row.refusal(f"{why}: choose it with --data.field {chosen}.")


@dataclass(frozen=True)
class _Conversation:
    turns: list[str]
    context: list[Message] = field(default_factory=list)
    chat: bool = False
    ignored: tuple[str, ...] = ()


def _conversation(row: Row, key: str) -> _Conversation:
    """The prompt in a field of a row.

    A text is one turn, a list of texts one turn each, a list of messages (``role, content`` or ``from, value``) a
    conversation up to the user's last one, and an object with ``messages`` or ``prompt`` a request.
    """
    found = _read(row, key, row.values.get(key))
    ignored = (*(name for name in REQUESTED if row.values.get(name) is not None), *found.ignored)
    system = next((name for name in ("system", "system_prompt") if is_text(row.values.get(name))), None)
    if system is not None:
        first: Message = {"role": "system", "content": row.text(system)}
        return _Conversation(found.turns, [first, *found.context], True, ignored)
    if key == "instruction" and row.values.get("input"):  # Alpaca's; most instructions have none
        found = replace(found, turns=[f"{found.turns[0]}\n\n{row.text('input')}", *found.turns[1:]])
    return replace(found, ignored=ignored)


def _read(row: Row, key: str, value: Any) -> _Conversation:
    if is_text(value):
        return _Conversation([value])
    if _are_objects(value):
        if all(is_text(one.get("text")) and not one.keys() & {"role", "from"} for one in value):  # AIPerf
            return _Conversation([one["text"] for one in value])
        messages = [_message(row, key, number, one) for number, one in enumerate(value, start=1)]
        while messages and messages[-1]["role"] != "user":  # the recorded answer
            messages.pop()
        if not messages:
            raise row.error(key, "at least one message of the user", value)
        return _Conversation([messages[-1]["content"]], messages[:-1], chat=True)
    if isinstance(value, list) and value and all(map(is_text, value)):
        return _Conversation(list(value))
    if isinstance(value, dict):
        return _request(row, key, value)
    if value is None and key not in row.values:
        raise row.refusal(f" has no {key!r} (its fields are {', '.join(map(str, row.values))}).")
    raise row.error(key, "a text that is not blank, a list of such texts, or a list of chat messages", value)


def _request(row: Row, key: str, body: dict[str, Any]) -> _Conversation:
    inner = next((name for name in ("messages", "prompt") if body.get(name) is not None), None)
    if inner is None:
        raise row.refusal(
            f", key {key!r} has the fields {', '.join(map(str, body)) or 'of nothing'}; of requests those with "
            "messages or prompt are read."
        )
    if inner == "prompt" and isinstance(body[inner], list) and not is_text(next(iter(body[inner]), None)):
        raise row.error(f"{key}.{inner}", "a text, not the ids of tokens", body[inner])
    ignored = tuple(name for name in body if name not in (inner, "model", "user", "metadata"))
    return replace(_read(row, f"{key}.{inner}", body[inner]), ignored=ignored)


def _message(row: Row, key: str, number: int, given: dict[str, Any]) -> Message:
    where = f", key {key!r}: message {number}"
    name = given.get("role", given.get("from"))
    role = ROLES.get(str(name))
    if role is None:
        raise row.refusal(f"{where} is of {shown(name)}; roles are {', '.join(ROLES)}.")
    content = given.get("content", given.get("value"))
    if isinstance(content, list):  # OpenAI's parts
        other = [part for part in content if not isinstance(part, dict) or part.get("type") != "text"]
        if other:
            raise row.refusal(f"{where} holds {shown(other[0])}; only text is read.")
        content = "".join(str(part.get("text", "")) for part in content)
    if not is_text(content):
        if role == "assistant" and given.get("tool_calls"):
            raise row.refusal(f"{where} is a call of tools; only text is read.")
        raise row.refusal(f"{where} has no text, but {shown(content)}.")
    return Message(role=role, content=str(content))
