"""The server's routes, Prometheus metrics and access log."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from time import monotonic, time
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from fastapi.routing import APIRoute
from fastapi.sse import EventSourceResponse, format_sse_event
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from pydantic_core import from_json
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send
from typing_extensions import override

from specexp.base.messages import did_you_mean, restated, shown
from specexp.deploy.server.decoding_thread import DecodingThread, Ended
from specexp.deploy.server.request_schema import (
    AnyRequest,
    ChatRequest,
    CompletionRequest,
    Limits,
    RequestError,
    refusal_of,
)
from specexp.deploy.server.served_request import ServedRequest
from specexp.deploy.server.texts import Texts

log = logging.getLogger("specexp.serve")
access = logging.getLogger("specexp.deploy.server.access")
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_BODY_SECONDS = 30.0  # without a limit, a client that sends single bytes could hold a connection open forever
_SHORT_BODY = 10_000
"""Bodies of up to this many bytes are tokenized in the event loop, because a thread would take longer."""
_CANCELLED = 499
"""Status logged if the client disconnects before the response is complete, as in nginx."""


class Figures:
    """A server's metrics for Prometheus."""

    def __init__(self, thread: DecodingThread) -> None:
        self.registry = CollectorRegistry()
        about: dict[str, Any] = {"namespace": "specexp", "registry": self.registry}
        seconds = {**about, "buckets": _SECONDS}
        self.requests = Counter("requests", "Number of requests, by HTTP status.", ["status"], **about)
        self.cancelled = Counter("cancelled", "Number of requests that the client cancelled.", **about)
        self.prompt_tokens = Counter("prompt_tokens", "Number of prompt tokens.", **about)
        self.cached = Counter("cached_prompt_tokens", "Number of prompt tokens found in the cache.", **about)
        self.new_tokens = Counter("generated_tokens", "Number of generated tokens.", **about)
        self.steps = Counter("steps", "Number of decoding steps, summed over outputs.", **about)
        self.drafted = Counter("drafted_tokens", "Number of drafted tokens (tree nodes).", **about)
        self.accepted = Counter("accepted_tokens", "Number of accepted draft tokens.", **about)
        self.first_token = Histogram("first_token_seconds", "Time to the first token in seconds.", **seconds)
        self.request = Histogram("request_seconds", "Time to the last token in seconds.", **seconds)
        Gauge("lanes_running", "Number of outputs being decoded.", **about).set_function(lambda: thread.running)
        Gauge("outputs_waiting", "Number of outputs in the queue.", **about).set_function(lambda: thread.waiting)

    def add(self, end: Ended) -> None:
        """Add the counts of a completed output."""
        self.cached.inc(end.cached)
        self.new_tokens.inc(len(end.result.token_ids))
        self.steps.inc(end.result.steps)
        self.drafted.inc(end.result.drafted_nodes)
        self.accepted.inc(end.result.accepted_drafts)


@dataclass
class Server:
    """The HTTP application that serves one model.

    ``name`` is the model's name in requests. Requests must contain the API key ``key``, unless it is None.
    """

    thread: DecodingThread
    texts: Texts
    name: str
    limits: Limits = field(default_factory=Limits)
    key: str | None = None

    def __post_init__(self) -> None:
        self.figures = Figures(self.thread)
        self.created = int(time())

    def app(self) -> FastAPI:
        """Return the ASGI application."""
        app = FastAPI(title="specexp", docs_url=None, redoc_url=None, openapi_url=None)
        app.state.server = self  # FastAPI constructs _Route, which reads the server from here
        for kind in (HTTPException, RequestValidationError):
            app.add_exception_handler(kind, self._refuse)
        app.add_exception_handler(Exception, self._fail)
        read = ["GET", "HEAD"]
        app.add_api_route("/health", self._health, methods=read)
        app.add_api_route("/metrics", self._metrics, methods=read)
        api = APIRouter(prefix="/v1", route_class=_Route)
        api.add_api_route("/models", self._models, methods=read)
        api.add_api_route("/models/{name:path}", self._model, methods=read)
        api.add_api_route("/completions", self._completions, methods=["POST"])
        api.add_api_route("/chat/completions", self._chat, methods=["POST"])
        app.include_router(api)
        return app

    async def _health(self) -> Response:
        alive = self.thread.alive
        about = {"status": "ok" if alive else "shuts down", **self.thread.target.provenance()}
        return JSONResponse(about, 200 if alive else 503)

    async def _metrics(self) -> Response:
        text = generate_latest(self.figures.registry)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _models(self) -> Response:
        return JSONResponse({"object": "list", "data": [self._about()]})

    async def _model(self, name: str) -> Response:
        self._check_name(name)
        return JSONResponse(self._about())

    async def _completions(self, body: CompletionRequest, request: Request) -> Response:
        return await self._answer(body, request)

    async def _chat(self, body: ChatRequest, request: Request) -> Response:
        return await self._answer(body, request)

    def _about(self) -> dict[str, Any]:
        about = {"id": self.name, "object": "model", "created": self.created, "owned_by": "specexp"}
        return {**about, "max_model_len": self.thread.target.context_limit}

    async def _answer(self, parsed: AnyRequest, request: Request) -> Response:
        if parsed.model is not None:
            self._check_name(parsed.model)
        short = len(await request.body()) <= _SHORT_BODY
        prompts = self.texts.prompts(parsed) if short else await asyncio.to_thread(self.texts.prompts, parsed)
        served = ServedRequest(parsed, prompts, self.thread, self.texts, self.limits, self.name)
        served.submit()
        if parsed.stream:
            return _Events(self._events(served, request), lambda: self._end(served, request, 200))
        disconnected = asyncio.create_task(_wait_for_disconnect(request))
        answer = asyncio.create_task(served.answer())
        status = _CANCELLED  # unless the response is ready before the client disconnects
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

    async def _events(self, served: ServedRequest, request: Request) -> AsyncIterator[bytes]:
        """Yield the response as server-sent events. An error after the first chunk is sent as an event."""
        try:
            async for chunk in served.chunks():
                yield format_sse_event(data_str=json.dumps(chunk, ensure_ascii=False))
        except RequestError as error:
            yield format_sse_event(data_str=json.dumps(error.body))
            self._end(served, request, error.status_code)
            return
        yield format_sse_event(data_str="[DONE]")

    def _end(self, served: ServedRequest, request: Request, status: int) -> None:
        """Free a request's lanes, and count and log its end. Repeated calls have no effect."""
        if served.logged:  # a failed stream calls this twice: for the error, and when the response is closed
            return
        served.logged = True
        served.cancel()
        ended = [one for one in served.ended if one is not None]
        if len(ended) < len(served.outputs) and status == 200:  # the client closed the stream
            status = _CANCELLED
        figures = self.figures
        usage = served.usage()
        seconds = monotonic() - served.began
        figures.requests.labels(status=str(status)).inc()
        figures.cancelled.inc(status == _CANCELLED)
        figures.prompt_tokens.inc(usage["prompt_tokens"])
        for one in ended:
            figures.add(one)
        first_token = None
        if ended:
            first_token = round(min(one.first_token for one in ended) - served.began, 6)
            figures.first_token.observe(first_token)
            figures.request.observe(seconds)
        steps = sum(one.result.steps for one in ended)
        new_tokens = usage["completion_tokens"]
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
        """Log a request as one line of JSON, without its prompt or output."""
        client = request.client.host if request.client is not None else None
        about = {"time": round(time(), 3), "client": client, "path": request.url.path[:200], "status": status}
        access.info(json.dumps({**about, **figures}))

    def authorise(self, request: Request) -> None:
        """Raise a RequestError unless the request contains the API key."""
        given = request.headers.get("authorization", "")
        # compare_digest takes constant time, which prevents guessing the key by timing
        if self.key is not None and not hmac.compare_digest(given.encode(), f"Bearer {self.key}".encode()):
            raise RequestError(401, "the API key is missing or wrong: send the header 'Authorization: Bearer KEY'")

    def _check_name(self, name: str) -> None:
        if name != self.name:
            near = did_you_mean(name[:100], [self.name])
            raise RequestError(404, f"model must be {self.name!r}, got {shown(name)}{near}", "model")

    async def _refuse(self, request: Request, error: Exception) -> Response:
        if isinstance(error, RequestValidationError):
            error = refusal_of(error)
        assert isinstance(error, HTTPException)
        if not isinstance(error, RequestError):  # an error that FastAPI raised, such as 404
            routes = ("/v1/completions", "/v1/chat/completions", "/v1/models", "/health", "/metrics")
            path = shown(request.url.path)
            sentence = {
                404: f"the path {path} does not exist{did_you_mean(request.url.path[:100], routes)}",
                405: f"{path} does not support the method {request.method[:20]}",
            }.get(error.status_code, error.detail)
            error = RequestError(error.status_code, sentence)
        if error.status_code not in (500, 504):  # _end() has already logged these two
            self.figures.requests.labels(status=str(error.status_code)).inc()
            self._log(request, error.status_code, error=error.key)
        return JSONResponse(error.body, error.status_code, headers=error.headers)

    async def _fail(self, request: Request, error: Exception) -> Response:
        log.error("a request failed with an unexpected error", exc_info=error)
        return JSONResponse(RequestError(500, "the server failed: see the server's log").body, 500)


class _Request(Request):
    """A request that checks its body, which must be JSON, within the size limit, and complete in time."""

    _data: bytes | None = None

    @override
    async def body(self) -> bytes:
        if self._data is None:
            self._data = await self._read(self.app.state.server.limits.body_bytes)
        return self._data

    @override
    async def json(self) -> Any:
        # unlike json.loads, from_json rejects lone surrogates, which cannot be encoded as UTF-8
        with restated(ValueError, lambda error: RequestError(400, f"the body must be valid JSON ({error})")):
            return from_json(await self.body())

    async def _read(self, limit: int) -> bytes:
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":  # browsers can send other types cross-site without a preflight request
            raise RequestError(415, f"the content type must be application/json, got {kind[:60]!r}")
        data = bytearray()
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                async for part in self.stream():
                    data += part
                    if len(data) > limit:
                        raise RequestError(413, f"the body must have at most {limit} bytes")
        except TimeoutError as error:
            raise RequestError(408, f"the body did not arrive within {_BODY_SECONDS:g} seconds") from error
        except ClientDisconnect as error:
            raise RequestError(400, "the client disconnected before the body was complete") from error
        return bytes(data)


class _Route(APIRoute):
    """A route that checks the API key before reading the body."""

    @override
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def authorised(request: Request) -> Response:
            request.app.state.server.authorise(request)
            return await handle(_Request(request.scope, request.receive))

        return authorised


class _Events(EventSourceResponse):
    """A stream of server-sent events that calls ``end`` when it finishes or the client disconnects."""

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
