"""The routes of the server, its figures for Prometheus, and its access log."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from time import monotonic, time
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from fastapi.sse import EventSourceResponse, format_sse_event
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from specexp.core.messages import did_you_mean, shown
from specexp.deploy.server.engine import Engine
from specexp.deploy.server.request_schema import (
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    Limits,
    RequestError,
    read_request,
)
from specexp.deploy.server.served_request import ServedRequest
from specexp.deploy.server.texts import Texts

log = logging.getLogger("specexp.serve")
access = logging.getLogger("specexp.deploy.server.access")
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_BODY_SECONDS = 30.0
_SHORT_BODY = 10_000
"""Bytes up to which a body is tokenized in the event loop: handing it to a thread costs more."""
_CANCELLED = 499
"""nginx's status of a request whose client has disconnected."""


class Figures:
    """The counters of a server in Prometheus' text format."""

    def __init__(self, engine: Engine) -> None:
        self._registry = CollectorRegistry()
        about: dict[str, Any] = {"namespace": "specexp", "registry": self._registry}
        self.requests = Counter("requests", "Requests answered, by HTTP status.", ["status"], **about)
        self.cancelled = Counter("cancelled", "Requests whose client disconnected.", **about)
        self.prompt_tokens = Counter("prompt_tokens", "Tokens of prompts.", **about)
        self.cached_tokens = Counter(
            "cached_prompt_tokens", "Prompt tokens that a lane held already.", **about
        )
        self.new_tokens = Counter("generated_tokens", "Tokens generated.", **about)
        self.steps = Counter("steps", "Steps of outputs; lanes of one pass count each.", **about)
        self.drafted = Counter("drafted_tokens", "Nodes drafted.", **about)
        self.accepted = Counter("accepted_tokens", "Drafted nodes that became output.", **about)
        about["buckets"] = _SECONDS
        self.first_token = Histogram("first_token_seconds", "Until the first token.", **about)
        self.request = Histogram("request_seconds", "Until the last token.", **about)
        del about["buckets"]
        Gauge("lanes_running", "Outputs that have a lane.", **about).set_function(lambda: engine.running)
        Gauge("outputs_waiting", "Outputs that wait for a lane.", **about).set_function(
            lambda: engine.waiting
        )

    def text(self) -> bytes:
        """Return all counters."""
        return generate_latest(self._registry)


@dataclass
class Server:
    """The server of one model: its name in requests, and the key of requests, None to serve everyone."""

    engine: Engine
    texts: Texts
    name: str
    limits: Limits = field(default_factory=Limits)
    key: str | None = None

    def __post_init__(self) -> None:
        self.figures = Figures(self.engine)
        self.created = int(time())

    def app(self) -> FastAPI:
        """Return the application for an ASGI server."""
        app = FastAPI(title="specexp", docs_url=None, redoc_url=None, openapi_url=None)
        app.add_exception_handler(HTTPException, self._refuse)
        app.add_exception_handler(Exception, self._fail)
        app.add_route("/health", self._health)
        app.add_route("/metrics", self._metrics)
        app.add_route("/v1/models", self._models)
        app.add_route("/v1/models/{name:path}", self._model)
        app.add_route("/v1/completions", self._completions, methods=["POST"])
        app.add_route("/v1/chat/completions", self._chat, methods=["POST"])
        return app

    async def _health(self, request: Request) -> Response:
        alive = self.engine.alive
        about = {"status": "ok" if alive else "shuts down", **self.engine.target.provenance()}
        return JSONResponse(about, 200 if alive else 503)

    async def _metrics(self, request: Request) -> Response:
        return PlainTextResponse(self.figures.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _models(self, request: Request) -> Response:
        self._authorise(request)
        return JSONResponse({"object": "list", "data": [self._about()]})

    async def _model(self, request: Request) -> Response:
        self._authorise(request)
        self._check_name(request.path_params["name"])
        return JSONResponse(self._about())

    async def _completions(self, request: Request) -> Response:
        return await self._answer(request, CompletionRequest)

    async def _chat(self, request: Request) -> Response:
        return await self._answer(request, ChatRequest)

    def _about(self) -> dict[str, Any]:
        about = {"id": self.name, "object": "model", "created": self.created, "owned_by": "specexp"}
        return {**about, "max_model_len": self.engine.target.context_limit}

    async def _answer(self, request: Request, kind: type[GenerationRequest]) -> Response:
        self._authorise(request)
        body = await self._body(request)
        if len(body) <= _SHORT_BODY:
            parsed, prompts = self._read(body, kind)
        else:
            parsed, prompts = await asyncio.to_thread(self._read, body, kind)
        served = ServedRequest(parsed, prompts, self.engine, self.texts, self.limits, self.name)
        served.submit()
        if parsed.stream:
            return _Events(self._events(served, request), lambda: self._end(served, request, 200))
        disconnected = asyncio.create_task(_wait_for_disconnect(request))
        answer = asyncio.create_task(served.answer())
        status = _CANCELLED
        try:
            await asyncio.wait((disconnected, answer), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                return Response(status_code=status)
            error = answer.exception()
            status = 200 if error is None else error.status_code if isinstance(error, RequestError) else 500
            return JSONResponse(answer.result())
        finally:
            for task in (disconnected, answer):
                task.cancel()
            self._end(served, request, status)

    async def _body(self, request: Request) -> bytes:
        """Read a body, no more of it than allowed."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":  # other types need no consent of a browser's user
            raise RequestError(415, f"the content type must be application/json, got {kind[:60]!r}")
        data, limit = bytearray(), self.limits.body_bytes
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                async for part in request.stream():
                    data += part
                    if len(data) > limit:
                        raise RequestError(413, f"the body must have at most {limit} bytes")
        except TimeoutError as error:
            raise RequestError(408, f"the body did not arrive within {_BODY_SECONDS:g} seconds") from error
        except ClientDisconnect as error:
            raise RequestError(400, "the body is incomplete") from error
        return bytes(data)

    def _read(self, body: bytes, kind: type[GenerationRequest]) -> tuple[GenerationRequest, list[list[int]]]:
        """The request, and its prompts as token ids."""
        request = read_request(body, kind)
        if request.model is not None:
            self._check_name(request.model)
        if isinstance(request, ChatRequest):
            return request, [self.texts.chat_ids(request.messages)]
        assert isinstance(request, CompletionRequest)
        return request, [self.texts.ids(one) if isinstance(one, str) else one for one in request.prompt]

    async def _events(self, served: ServedRequest, request: Request) -> AsyncIterator[bytes]:
        """Server-sent events; an error after the first chunk is one of them."""
        try:
            async for chunk in served.chunks():
                yield format_sse_event(data_str=json.dumps(chunk, ensure_ascii=False))
        except RequestError as error:
            yield format_sse_event(data_str=json.dumps(error.body))
            self._end(served, request, error.status_code)
            return
        yield format_sse_event(data_str="[DONE]")

    def _end(self, served: ServedRequest, request: Request, status: int) -> None:
        """Count and log the end of a request once, and free its lanes."""
        if served.logged:
            return
        served.logged = True
        served.cancel()
        ended = [one for one in served.ended if one is not None]
        if len(ended) < len(served.outputs) and status == 200:
            status = _CANCELLED
        figures, usage, seconds = self.figures, served.usage(), monotonic() - served.began
        figures.requests.labels(status=str(status)).inc()
        figures.cancelled.inc(status == _CANCELLED)
        figures.prompt_tokens.inc(usage["prompt_tokens"])
        for one in ended:
            figures.cached_tokens.inc(one.cached)
            figures.new_tokens.inc(len(one.result.token_ids))
            figures.steps.inc(one.result.steps)
            figures.drafted.inc(one.result.drafted_nodes)
            figures.accepted.inc(one.result.accepted_drafts)
        first_token = min((one.first_token for one in ended), default=None)
        if first_token is not None:
            first_token = round(first_token - served.began, 6)
            figures.first_token.observe(first_token)
            figures.request.observe(seconds)
        steps, new_tokens = sum(one.result.steps for one in ended), usage["completion_tokens"]
        self._log(
            request,
            status,
            id=served.id,
            seconds=round(seconds, 6),
            first_token_seconds=first_token,
            waited_seconds=round(max((one.waited for one in ended), default=0.0), 6),
            prompt_tokens=usage["prompt_tokens"],
            cached_tokens=usage["prompt_tokens_details"]["cached_tokens"],
            new_tokens=new_tokens,
            tokens_per_step=round(new_tokens / steps, 3) if steps else None,
            outputs=len(served.outputs),
            stream=served.request.stream,
            speculative=served.request.speculative,
            finish=served.finish_reason,
        )

    def _log(self, request: Request, status: int, **figures: Any) -> None:
        """Log a line of JSON, which holds neither prompt nor output."""
        client = request.client.host if request.client is not None else None
        about = {"time": round(time(), 3), "client": client, "path": request.url.path[:200], "status": status}
        access.info(json.dumps({**about, **figures}))

    def _authorise(self, request: Request) -> None:
        given = request.headers.get("authorization", "")
        if self.key is not None and not hmac.compare_digest(given.encode(), f"Bearer {self.key}".encode()):
            raise RequestError(401, "the key is missing or wrong: send it as Authorization: Bearer KEY")

    def _check_name(self, name: str) -> None:
        if name != self.name:
            near = did_you_mean(name[:100], [self.name])
            raise RequestError(404, f"model is {shown(name)}, which is not served here{near}", "model")

    async def _refuse(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if not isinstance(error, RequestError):  # Starlette's own, for an unknown path or method
            routes = ("/v1/completions", "/v1/chat/completions", "/v1/models", "/health", "/metrics")
            path = shown(request.url.path)
            sentence = f"there is no {path} here{did_you_mean(request.url.path[:100], routes)}"
            if error.status_code == 405:
                sentence = f"{path} does not take {request.method[:20]}"
            error = RequestError(error.status_code, sentence)
        if error.status_code not in (500, 504):  # those were logged at the end of the request
            self.figures.requests.labels(status=str(error.status_code)).inc()
            self._log(request, error.status_code, error=error.key)
        return JSONResponse(error.body, error.status_code, headers=error.headers)

    async def _fail(self, request: Request, error: Exception) -> Response:
        log.error("a request failed", exc_info=error)
        return JSONResponse(RequestError(500, "the server failed; its log has the reason").body, 500)


class _Events(EventSourceResponse):
    """Server-sent events that call ``end`` once at the end, also if the client disconnects."""

    def __init__(self, events: AsyncIterator[bytes], end: Callable[[], None]) -> None:
        super().__init__(events, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self._end = end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._end()


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
