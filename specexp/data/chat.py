"""Chat messages: their schema, shared by prompt files and the server, and their rendering with a chat template."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal, Required, TypedDict

from jinja2 import Environment, TemplateError
from jinja2.meta import find_undeclared_variables
from pydantic import BaseModel, Discriminator, Tag, TypeAdapter, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from specexp.base.checked import refusal, violation
from specexp.base.messages import did_you_mean, shown

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ROLES = {"developer": "system", "human": "user", "gpt": "assistant", "model": "assistant"} | {
    role: role for role in ("system", "user", "assistant", "tool")
}
"""Maps each role name found in files and requests to its role in chat templates."""
_UNSUPPORTED = (
    "image", "images", "audio", "audios", "video", "videos", "files", "attachments", "function_call",
)  # fmt: skip
"""Fields of messages in other formats that hold content."""


_RESERVED = ("messages", "add_generation_prompt", "continue_final_message", "chat_template", "tokenize")
"""Arguments of ``apply_chat_template`` and variables of templates that :func:`rendered` sets."""


class Message(TypedDict, total=False):
    """A message in a conversation, with the fields that chat templates read."""

    role: Required[str]
    content: Required[str]
    name: str
    reasoning_content: str
    tool_calls: list[dict[str, Any]]
    tool_call_id: str


class _TextPart(BaseModel, strict=True):
    type: Literal["text", "input_text", "output_text"]
    text: str


class _Function(BaseModel, strict=True):
    name: str
    arguments: str | dict[str, Any] = ""


class _ToolCall(BaseModel, strict=True):
    id: str | None = None
    type: Literal["function"] = "function"
    function: _Function


# violation() drops tags in parentheses from an error's key
_Content = Annotated[
    Annotated[str, Tag("(text)")] | Annotated[list[_TextPart], Tag("(other)")],
    Discriminator(lambda value: "(other)" if isinstance(value, list) else "(text)"),
]


class ChatMessage(BaseModel, strict=True):
    """A chat message of a prompt file or a request. Other fields do not matter, unless they hold content."""

    role: Literal[tuple(ROLES)]  # type: ignore[valid-type]
    content: _Content  # only an assistant's tool call may lack it, and a user's must not be blank
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[_ToolCall] = []
    tool_call_id: str | None = None  # the call that a tool's message answers

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        if lost := next((name for name in _UNSUPPORTED if given.get(name)), None):
            why = f" is not supported, got {shown(given[lost])}; leave it out"
            raise refusal((lost,), PydanticCustomError("sentence", "{why}", {"why": why}))
        found = {name: value for name, value in given.items() if value is not None or name == "content"}
        calls = ROLES.get(str(found.get("role"))) == "assistant" and found.get("tool_calls")
        return {**found, "content": found.get("content") or ""} if calls else found

    @model_validator(mode="after")
    def _check_text(self) -> ChatMessage:
        if ROLES[self.role] == "user" and not self.text.strip():
            raise ValueError("content must be a text that is not blank")
        return self

    @property
    def text(self) -> str:
        """The content as a single string."""
        return self.content if isinstance(self.content, str) else "".join(one.text for one in self.content)

    def message(self) -> Message:
        """Return the message as chat templates read it: arguments of tool calls are mappings."""
        found = Message(role=ROLES[self.role], content=self.text)
        for name in ("name", "reasoning_content", "tool_call_id"):
            if (value := getattr(self, name)) is not None:
                found[name] = value
        for call in self.tool_calls:
            one = call.model_dump(exclude_none=True)
            with suppress(ValueError, TypeError):  # a model may have written invalid JSON
                one["function"]["arguments"] = json.loads(one["function"]["arguments"])
            found.setdefault("tool_calls", []).append(one)
        return found


_MESSAGES = TypeAdapter(list[ChatMessage])


def read_messages(given: list[Any]) -> list[Message]:
    """Return messages as chat templates read them. Raises ValueError with the index, the key and the value at fault."""
    try:
        return [one.message() for one in _MESSAGES.validate_python(given)]
    except ValidationError as error:
        key, sentence = violation(error, given)
        raise ValueError(f"{'.'.join(key)}{sentence}") from error


def rendered(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    arguments: Mapping[str, Any] | None = None,
) -> str:
    """Return a chat as text, up to the start of the answer. Studies and the server both use this.

    If the last message is the assistant's, the text ends inside it, and the answer continues it. ``arguments`` are
    variables of the template, such as ``enable_thinking``. Raises ValueError if the template does not render tools'
    messages, or any error, since templates are programs.
    """
    template = template_text(tokenizer, arguments)
    calls = any("tool_calls" in one for one in messages)
    results = any(one["role"] == "tool" for one in messages)
    if (calls and "tool_calls" not in template) or (results and "tool" not in template):
        raise ValueError("the chat template does not render tool calls")
    continues = messages[-1]["role"] == "assistant"
    text: Any = tokenizer.apply_chat_template(
        [dict(message) for message in messages],
        tokenize=False,
        add_generation_prompt=not continues,
        continue_final_message=continues,
        **(arguments or {}),
    )
    return str(text)


def template_text(tokenizer: PreTrainedTokenizerBase, arguments: Mapping[str, Any] | None = None) -> str:
    """Return the source of the tokenizer's chat template; of several, of the one that the arguments select."""
    return str(tokenizer.get_chat_template(tools=(arguments or {}).get("tools")))


def template_name(tokenizer: PreTrainedTokenizerBase, arguments: Mapping[str, Any]) -> str:
    """Return the name of the chat template that is used, if the tokenizer has several; otherwise an empty text."""
    if not isinstance(tokenizer.chat_template, dict):
        return ""
    with suppress(ValueError):  # rendering raises the error about a missing default
        used = template_text(tokenizer, arguments)
        return next(str(name) for name, text in tokenizer.chat_template.items() if text == used)
    return ""


def check_template_arguments(tokenizer: PreTrainedTokenizerBase, arguments: Mapping[str, Any]) -> None:
    """Raise ValueError for an argument that is reserved, or that the tokenizer's chat template does not read."""
    if not arguments:
        return
    if not tokenizer.chat_template:
        raise ValueError("chat_template_kwargs must be left out, since the tokenizer has no chat template")
    for name in _RESERVED:
        if name in arguments:
            raise ValueError(f"chat_template_kwargs.{name} must be left out, since specexp sets it")
    text = re.sub(r"{%-?\s*(end)?generation\s*-?%}", "", template_text(tokenizer, arguments))  # tags of transformers
    with suppress(TemplateError):  # rendering raises it
        variables = find_undeclared_variables(Environment(extensions=["jinja2.ext.loopcontrols"]).parse(text))
        for name in arguments.keys() - variables:
            why = f" has no effect, since the tokenizer's chat template does not use it{did_you_mean(name, variables)}"
            raise ValueError(f"chat_template_kwargs.{name}{why}")
