"""Any server that speaks OpenAI's API: started by a command, or running already."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from copy import copy
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from specexp.engines.engine import EngineError
from specexp.engines.http_engine import HttpEngine, Requests, Seconds
from specexp.engines.server import filled

if TYPE_CHECKING:
    from specexp.models.pair import ModelPair


class OpenAIEndpoint(HttpEngine):
    """vLLM, SGLang, TensorRT-LLM, ``transformers serve``, ``specexp.serve``: whatever a command starts.

    The command is a template: ``{port}`` is filled with a free port, ``{target}`` with the pair's target, and every
    other name with a setting. No shell runs it, and nothing of it outlives the study. Settings in the command need a
    restart, those in ``body`` none.

    Args:
        command: Starts the server with speculation, e.g. ``vllm serve {target} --port {port} --speculative-config
            '{{"method": "ngram", "num_speculative_tokens": {tokens}}}'``.
        plain_command: Starts it without; ``command`` with ``plain_body`` if null.
        url: Of a server that runs already, e.g. ``http://127.0.0.1:8000``; then no command is given.
        plain_url: Of the same server without speculation.
        settings: Values of the names in the command, and in the texts of ``body``.
        body: Fields of every request, e.g. ``{speculative: true}``.
        plain_body: Fields of a request without speculation, e.g. ``{speculative: false}``.
        model: Name of the model in requests; the only one that the server has if null.
        start_seconds: How long the server may take to start.
        answer_seconds: How long an answer may take.
        concurrency: Requests that it answers at once, the measured one among them.

    Raises:
        EngineError: Nothing, or both, of command and url are given; or no way to leave out speculation.
    """

    exported_as = "endpoint"

    def __init__(
        self,
        command: str | None = None,
        plain_command: str | None = None,
        url: str | None = None,
        plain_url: str | None = None,
        settings: Mapping[str, int | float | str] | None = None,
        body: Mapping[str, Any] | None = None,
        plain_body: Mapping[str, Any] | None = None,
        model: str | None = None,
        start_seconds: Seconds = 120,
        answer_seconds: Seconds = 120,
        concurrency: Requests = 1,
    ) -> None:
        if (command is None) == (url is None):
            raise EngineError("OpenAIEndpoint takes exactly one of command and url")
        if command is not None and "{port}" not in command:
            raise EngineError(
                "OpenAIEndpoint: command has no {port}, so two of them would listen on the same one"
            )
        if plain_command is None and plain_url is None and plain_body is None:
            raise EngineError(
                "OpenAIEndpoint: nothing says how speculation is left out: give plain_command, plain_url or plain_body"
            )
        self.settings = dict(settings or {})
        if command is not None:
            filled(command, {**self.settings, "port": 0, "target": ""})
        self.command, self.plain_command, self.url, self.plain_url = command, plain_command, url, plain_url
        self.body, self.plain_body = dict(body or {}), plain_body
        self.model = model
        self.start_seconds, self.answer_seconds = start_seconds, answer_seconds
        self.concurrency = concurrency

    @override
    def plain(self) -> OpenAIEndpoint:
        other = copy(self)
        other.command = (self.plain_command or self.command) if self.command else None
        other.url = (self.plain_url or self.url) if self.url else None
        other.settings = self.settings if self.command and not self.plain_command else {}
        other.body = {} if self.plain_body is None else {**self.body, **self.plain_body}
        return other

    @override
    def deployed_settings(self) -> dict[str, Any]:
        values = {"command": self.command, "url": self.url, **self.settings, "body": self.body or None}
        return {name: value for name, value in values.items() if value is not None}

    @property
    @override
    def version(self) -> str:
        return "as installed"

    @property
    @override
    def restart_key(self) -> Hashable:
        named = [
            (name, value) for name, value in self.settings.items() if f"{{{name}" in (self.command or "")
        ]
        return self.command, self.url, tuple(sorted(named))

    @override
    def words(self, port: int, pair: ModelPair) -> list[str]:
        return filled(self.command or "", {**self.settings, "port": port, "target": pair.name})
