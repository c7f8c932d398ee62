"""What a field of somebody's own file holds: a text, turns, chat messages, or a request to an OpenAI-like server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from specexp.core.messages import shown
from specexp.data.prompt_set import Message
from specexp.data.row import Row, is_text

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "model": "assistant",
}
"""Role that a template knows, by what files call it."""
REQUESTED = (
    *("max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p", "n", "stop", "seed"),
    *("frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias", "logprobs", "stream"),
    *("tools", "tool_choice", "functions", "response_format", "suffix"),
)
"""What a request asks of a server beside its prompt; a run does not obey it."""


@dataclass(frozen=True)
class Conversation:
    """What is asked.

    Attributes:
        turns: What the user says, one text a turn.
        context: Messages before the first turn.
        chat: Whether it is made of messages.
        ignored: Names of what a request asked beside it.
    """

    turns: list[str]
    context: list[Message] = field(default_factory=list)
    chat: bool = False
    ignored: tuple[str, ...] = ()


def read_conversation(row: Row, key: str) -> Conversation:
    """What a field of a row asks, told by its value: a text is one turn, a list of texts one turn each, a list of
    messages (``role, content`` or ``from, value``) a conversation up to the user's last one, and an object with
    ``messages`` or ``prompt`` a request.

    Raises:
        PromptSetError: it holds nothing of this, or something without text.
    """
    ignored = tuple(name for name in REQUESTED if row.values.get(name) is not None)
    found = _read(row, key, row.values.get(key))
    system = next((name for name in ("system", "system_prompt") if is_text(row.values.get(name))), None)
    if system is not None:
        first: Message = {"role": "system", "content": row.text(system)}
        return Conversation(found.turns, [first, *found.context], True, (*ignored, *found.ignored))
    extra = _input_of(row) if key == "instruction" else ""
    return Conversation(
        [found.turns[0] + extra, *found.turns[1:]], found.context, found.chat, (*ignored, *found.ignored)
    )


def _input_of(row: Row) -> str:
    """What an Alpaca-like instruction is to work on, most have nothing."""
    return f"\n\n{row.text('input')}" if row.values.get("input") else ""


def _read(row: Row, key: str, value: Any) -> Conversation:
    if isinstance(value, str) and is_text(value):
        return Conversation([value])
    if isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
        if all(
            is_text(one.get("text")) and not one.keys() & {"role", "from"} for one in value
        ):  # AIPerf's turns
            return Conversation([one["text"] for one in value])
        return _messages(row, key, value)
    if isinstance(value, list) and value and all(is_text(one) for one in value):
        return Conversation(list(value))
    if isinstance(value, dict):
        return _request(row, key, value)
    if value is None and key not in row.values:
        raise row.refusal(f" has no {key!r} (its fields are {', '.join(map(str, row.values))}).")
    raise row.error(key, "a text that is not blank, a list of such texts, or a list of chat messages", value)


def _request(row: Row, key: str, body: dict[str, Any]) -> Conversation:
    """The prompt of a request; what it asks beside that is told, not obeyed."""
    inner = next((name for name in ("messages", "prompt") if body.get(name) is not None), None)
    if inner is None:
        raise row.refusal(
            f", key {key!r} has the fields {', '.join(map(str, body)) or 'of nothing'}; of requests those with "
            "messages or prompt are read."
        )
    if inner == "prompt" and isinstance(body[inner], list) and not is_text(next(iter(body[inner]), None)):
        raise row.error(f"{key}.{inner}", "a text, not the ids of tokens", body[inner])
    found = _read(row, f"{key}.{inner}", body[inner])
    ignored = tuple(name for name in body if name not in (inner, "model", "user", "metadata"))
    return Conversation(found.turns, found.context, found.chat, ignored)


def _messages(row: Row, key: str, given: list[dict[str, Any]]) -> Conversation:
    messages = [_message(row, key, number, one) for number, one in enumerate(given, start=1)]
    while messages and messages[-1]["role"] != "user":  # the answer that the file has for it
        messages.pop()
    if not messages:
        raise row.error(key, "at least one message of the user", given)
    return Conversation([messages[-1]["content"]], messages[:-1], chat=True)


def _message(row: Row, key: str, number: int, given: dict[str, Any]) -> Message:
    who = given.get("role", given.get("from"))
    role = ROLES.get(str(who))
    if role is None:
        raise row.refusal(
            f", key {key!r}: message {number} is of {shown(who)}; roles are {', '.join(ROLES)}."
        )
    content = given.get("content", given.get("value"))
    if isinstance(content, list):  # OpenAI's parts
        other = [part for part in content if not isinstance(part, dict) or part.get("type") != "text"]
        if other:
            raise row.refusal(f", key {key!r}: message {number} holds {shown(other[0])}; only text is read.")
        content = "".join(str(part.get("text", "")) for part in content)
    if not is_text(content):
        if role == "assistant" and given.get("tool_calls"):
            raise row.refusal(f", key {key!r}: message {number} is a call of tools; only text is read.")
        raise row.refusal(f", key {key!r}: message {number} has no text, but {shown(content)}.")
    return Message(role=role, content=str(content))
