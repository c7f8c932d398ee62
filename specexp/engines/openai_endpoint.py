"""Any server that speaks OpenAI's API: started by a command, or running already."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field
from typing_extensions import override

from specexp.engines.engine import EngineAnswer, EngineError, ForeignEngine, RunningEngine
from specexp.engines.openai_client import complete, models
from specexp.engines.server import StartedServer, filled, free_port

if TYPE_CHECKING:
    from specexp.pairs.pair import ModelPair

_ENDING_SECONDS = 0.5
"""What a server that broke off may take to end."""
_Seconds = Annotated[float, Field(gt=0, le=3600)]


class OpenAIEndpoint(ForeignEngine):
    """vLLM, SGLang, TensorRT-LLM, ``transformers serve``, ``specexp.serve``: whatever a command starts.

    The command is a template: ``{port}`` is filled with a free port, ``{target}`` with the pair's target, and every
    other
    name with a setting. No shell runs it, and nothing of it outlives the study. Settings in the command need a restart,
    those in ``body`` none.

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

    Raises:
        EngineError: Nothing, or both, of command and url are given; or nothing tells how speculation is left out.
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
        start_seconds: _Seconds = 120,
        answer_seconds: _Seconds = 120,
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

    @override
    def plain(self) -> OpenAIEndpoint:
        return OpenAIEndpoint(
            (self.plain_command or self.command) if self.command else None,
            url=(self.plain_url or self.url) if self.url else None,
            settings=self.settings if self.command and not self.plain_command else {},
            body={**self.body, **(self.plain_body or {})} if self.plain_body is not None else {},
            plain_body={},
            model=self.model,
            start_seconds=self.start_seconds,
            answer_seconds=self.answer_seconds,
        )

    @override
    def deployed_settings(self) -> dict[str, Any]:
        told = {"command": self.command, "url": self.url, **self.settings, "body": self.body or None}
        return {name: value for name, value in told.items() if value is not None}

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
    def start(self, pair: ModelPair) -> RunningEngine:
        return _Endpoint(self, pair)


class _Endpoint(RunningEngine):
    def __init__(self, engine: OpenAIEndpoint, pair: ModelPair) -> None:
        self._tokenizer = pair.tokenizer
        self._server: StartedServer | None = None
        self.url = (engine.url or "").rstrip("/").removesuffix("/v1")
        if engine.command is not None:
            port = free_port()
            self.url = f"http://127.0.0.1:{port}"
            words = filled(engine.command, {**engine.settings, "port": port, "target": pair.name})
            self._server = StartedServer(words, self.url, engine.start_seconds)
        try:
            self.model = engine.model or self._only_model(engine.answer_seconds)
        except EngineError:
            self.close()
            raise

    def _only_model(self, seconds: float) -> str:
        found = models(self.url, seconds)
        if len(found) != 1:
            listed = f"the models {', '.join(found)}" if found else "no model"
            raise EngineError(f"{self.url} lists {listed}: name one as model")
        return found[0]

    @override
    def answer(
        self, engine: ForeignEngine, token_ids: Sequence[int], max_new_tokens: int, eos: frozenset[int]
    ) -> EngineAnswer:
        assert isinstance(engine, OpenAIEndpoint)
        body = {
            "model": self.model,
            "prompt": self._tokenizer.decode(list(token_ids)),
            "max_tokens": max_new_tokens,
            "temperature": 0,
            **engine.body,
        }
        try:
            found = complete(self.url, body, engine.answer_seconds)
        except EngineError as error:
            if self._server is not None and self._server.ended(_ENDING_SECONDS):
                raise EngineError(f"the server ended ({self._server.last_lines()}): {error}") from error
            raise
        tokens = self._tokenizer(found.text, add_special_tokens=False).input_ids
        if not tokens or not found.times:
            raise EngineError(f"{self.url} answered with no text")
        steps, told = len(found.times), found.speculation
        return EngineAnswer(
            list(tokens),
            "length" if found.finish_reason == "length" else "eos",
            prefill_seconds=found.times[0],
            decode_seconds=found.times[-1] - found.times[0],
            first_tokens=1,
            steps=told.get("num_spec_steps", steps - 1) + 1,
            accepted_drafts=told.get("num_accepted_draft_tokens", max(0, len(tokens) - steps)),
            drafted_nodes=told.get("num_draft_tokens", 0),
        )

    @override
    def close(self) -> None:
        if self._server is not None:
            self._server.close()
