"""Tools that an answer may call: the form of a call, and calls in the answer's text."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from secrets import token_hex
from typing import Annotated, Any, Literal

from pydantic import Field

from specexp.base.checked import Section

_CALL = re.compile(r"<tool_call>(.*?)(</tool_call>|\Z)", re.DOTALL)
MARK = "<tool_call>"
"""The beginning of a call in the output and the chat template of many families: Qwen, Hermes, SmolLM3, Granite."""
_HEAD = re.compile(r'\{"name": "([^"]*)", "arguments": ')


class Function(Section):
    """A function that the client can run. ``parameters`` is the JSON schema of its arguments."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    description: str = ""
    parameters: dict[str, Any] = Field({"type": "object", "properties": {}, "additionalProperties": False})
    strict: bool | None = None


class Tool(Section):
    """A tool in OpenAI's format. As in vLLM, ``type`` may be left out. One to be called has its name alone."""

    type: Literal["function"] = "function"
    function: Function


def call_schema(functions: Sequence[Function], name: str | None) -> dict[str, Any]:
    """Return the JSON schema of a call ``{"name": ..., "arguments": ...}`` of one of several functions, or of ``name``.

    Its ``anyOf`` has a schema for each function, which is false for those that must not be called.
    """
    calls: list[Any] = []
    for number, function in enumerate(functions):
        arguments = {"$id": f"tool:{number}", **function.parameters}  # references stay within a function's schema
        fields = {"name": {"const": function.name}, "arguments": arguments}
        call = {"type": "object", "properties": fields, "required": [*fields], "additionalProperties": False}
        calls.append(call if name in (None, function.name) else False)
    return {"anyOf": calls}


class CallText:
    """Splits an output's text into content and tool calls, in the form of OpenAI's ``delta``, as the text grows.

    ``choice`` is ``auto``, ``required``, or None for an output without calls.
    """

    def __init__(self, choice: str | None) -> None:
        self._choice = choice
        self._waiting = ""  # not given yet
        self._behind_call = False  # nothing but white space has followed the last call
        self.calls = 0

    def add(self, text: str, reason: str | None) -> dict[str, Any]:
        """Return the fields that new text adds to a message. ``reason`` is why the output ended; None if it goes on."""
        if self._choice is None:
            return {"content": text}
        self._waiting += text
        if self._choice == "auto":
            return self._marked(reason)
        name = None
        if not self.calls:
            if (head := _HEAD.match(self._waiting)) is None:
                return {}
            name = head[1]
            self._waiting = self._waiting[head.end() :]
        end = len(self._waiting) - (reason != "length")  # the last brace closes the call, and not its arguments
        arguments = self._waiting[:end]
        self._waiting = self._waiting[end:]
        return {"tool_calls": [self._call(name, arguments)]}

    def _call(self, name: str | None, arguments: str) -> dict[str, Any]:
        """Return a new call, or the continuation of the last one if there is no name."""
        if name is None:
            return {"index": self.calls - 1, "function": {"arguments": arguments}}
        self.calls += 1
        about = {"index": self.calls - 1, "id": f"call_{token_hex(12)}", "type": "function"}
        return {**about, "function": {"name": name, "arguments": arguments}}

    def _marked(self, reason: str | None) -> dict[str, Any]:
        """Give each call once it is complete, and all other text, but no white space behind a call."""
        content, calls = "", list[dict[str, Any]]()
        while True:
            if self._behind_call:
                self._waiting = self._waiting.lstrip()
            found = _CALL.search(self._waiting)
            if found is None or not (found[2] or reason):
                break
            call = _read(found[1])
            self._behind_call = call is not None
            content += self._waiting[: found.end() if call is None else found.start()]
            self._waiting = self._waiting[found.end() :]
            if call is not None:
                calls.append(self._call(*call))
        start = len(self._waiting) if found is None else found.start()
        if found is None and reason is None:  # the end of the text may begin a mark
            start -= max(n for n in range(len(MARK)) if self._waiting.endswith(MARK[:n]))
        self._behind_call &= not self._waiting[:start]
        content = content + self._waiting[:start]
        self._waiting = self._waiting[start:]
        return {"content": content or None, "tool_calls": calls} if calls else {"content": content}


def _read(text: str) -> tuple[str, str] | None:
    """Return the name and the arguments, as JSON, of a call; None if it is not one."""
    try:
        found = json.loads(text)
        return str(found["name"]), json.dumps(found.get("arguments", {}), ensure_ascii=False)
    except (ValueError, KeyError, TypeError):
        return None
