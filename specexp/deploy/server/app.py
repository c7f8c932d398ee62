"""The routes of the server."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from time import monotonic, time
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from fastapi.sse import EventSourceResponse, format_sse_event
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from specexp.core.messages import did_you_mean, shown
from specexp.deploy.server.engine import Engine
from specexp.deploy.server.output import Ended
from specexp.deploy.server.requests import (
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    Limits,
    RequestError,
    read_body,
    read_request,
)
from specexp.deploy.server.served_request import ServedRequest
from specexp.deploy.server.texts import Texts

log = logging.getLogger("specexp.serve")
access = logging.getLogger("specexp.deploy.server.access")


_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class Figures:
    """Counters of a server, as Prometheus reads them."""

    def __init__(self, running: Callable[[], float], waiting: Callable[[], float]) -> None:
        self._registry = CollectorRegistry()
        about: dict[str, Any] = {"namespace": "specexp", "registry": self._registry}
        self.requests = Counter("requests", "Requests answered, by HTTP status.", ["status"], **about)
        self.cancelled = Counter("cancelled", "Requests whose client went away.", **about)
        self.prompt_tokens = Counter("prompt_tokens", "Tokens of prompts.", **about)
        self.cached_tokens = Counter("cached_prompt_tokens", "Of these, tokens a lane held already.", **about)
        self.new_tokens = Counter("generated_tokens", "Tokens generated.", **about)
        self.steps = Counter("steps", "Steps of outputs; lanes of one pass count each.", **about)
        self.drafted = Counter("drafted_tokens", "Nodes drafted.", **about)
        self.accepted = Counter("accepted_tokens", "Drafted nodes that became output.", **about)
        self.first_token = Histogram(
            "first_token_seconds", "Until the first token.", buckets=_SECONDS, **about
        )
        self.whole = Histogram("request_seconds", "Until the last token.", buckets=_SECONDS, **about)
        Gauge("lanes_running", "Outputs that have a lane.", **about).set_function(running)
        Gauge("outputs_waiting", "Outputs that wait for a lane.", **about).set_function(waiting)

    def count(self, ended: Ended) -> None:
        """Add an output that is complete."""
        self.cached_tokens.inc(ended.cached)
        self.new_tokens.inc(len(ended.result.token_ids))
        self.steps.inc(ended.result.steps)
        self.drafted.inc(ended.result.drafted_nodes)
        self.accepted.inc(ended.result.accepted_drafts)

    def text(self) -> bytes:
        """All of them, in Prometheus' text format."""
        return generate_latest(self._registry)


@dataclass
class Server:
    """The server of one model; ``name`` is the model's name in requests, without a ``key`` anyone may ask."""

    engine: Engine
    texts: Texts
    name: str
    limits: Limits = field(default_factory=Limits)
    key: str | None = None

    def __post_init__(self) -> None:
        self.figures = Figures(lambda: self.engine.running, lambda: self.engine.waiting)
        self.since = int(time())

    def app(self) -> FastAPI:
        """The application for an ASGI server."""
        app = FastAPI(title="specexp", docs_url=None, redoc_url=None, openapi_url=None)
        app.add_exception_handler(RequestError, self._refused)
        app.add_exception_handler(HTTPException, self._no_route)
        app.add_exception_handler(Exception, self._failed)
        app.add_api_route("/health", self._health, methods=["GET"])
        app.add_api_route("/metrics", self._metrics, methods=["GET"])
        app.add_api_route("/v1/models", self._models, methods=["GET"])
        app.add_api_route("/v1/models/{name:path}", self._model, methods=["GET"])
        app.add_api_route("/v1/completions", self._completions, methods=["POST"], response_model=None)
        app.add_api_route("/v1/chat/completions", self._chat, methods=["POST"], response_model=None)
        return app

    async def _health(self) -> JSONResponse:
        alive = self.engine.alive
        about = {"status": "ok" if alive else "shuts down", **self.engine.target.provenance()}
        return JSONResponse(about, 200 if alive else 503)

    async def _metrics(self) -> PlainTextResponse:
        return PlainTextResponse(self.figures.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _models(self, request: Request) -> dict[str, Any]:
        self._authorise(request)
        return {"object": "list", "data": [self._about()]}

    async def _model(self, request: Request, name: str) -> dict[str, Any]:
        self._authorise(request)
        self._check_name(name)
        return self._about()

    async def _completions(self, request: Request) -> Response:
        return await self._answer(request, CompletionRequest)

    async def _chat(self, request: Request) -> Response:
        return await self._answer(request, ChatRequest)

    def _about(self) -> dict[str, Any]:
        limit = self.engine.target.context_limit
        return {
            "id": self.name, "object": "model", "created": self.since, "owned_by": "specexp",
            "max_model_len": limit,
        }  # fmt: skip

    async def _answer(self, request: Request, kind: type[GenerationRequest]) -> Response:
        self._authorise(request)
        body = await read_body(request, self.limits.body_bytes)
        asked, prompts = await asyncio.to_thread(self._read, body, kind)
        served = ServedRequest(asked, prompts, self.engine, self.texts, self.limits, self.name)
        served.submit()
        if asked.stream:
            return Events(self._frames(served, request), lambda: self._over(served, request, 200))
        gone = asyncio.create_task(_gone(request))
        whole = asyncio.create_task(served.whole())
        status = 499  # nobody was there to hear it
        try:
            await asyncio.wait((gone, whole), return_when=asyncio.FIRST_COMPLETED)
            if not whole.done():
                return Response(status_code=status)
            status = 200 if whole.exception() is None else _status(whole.exception())
            return JSONResponse(whole.result())
        finally:
            for task in (gone, whole):
                task.cancel()
            self._over(served, request, status)

    def _read(
        self, body: dict[str, Any], kind: type[GenerationRequest]
    ) -> tuple[GenerationRequest, list[list[int]]]:
        """The request, and its prompts as token ids."""
        asked = read_request(body, kind)
        if asked.model is not None:
            self._check_name(asked.model)
        if isinstance(asked, ChatRequest):
            return asked, [self.texts.chat_ids(asked.messages)]
        assert isinstance(asked, CompletionRequest)
        prompts = [self.texts.ids(one) if isinstance(one, str) else one for one in asked.prompts]
        return asked, prompts

    async def _frames(self, served: ServedRequest, request: Request) -> AsyncIterator[bytes]:
        """Server-sent events; what goes wrong after the first is one of them."""
        try:
            async for piece in served.pieces():
                yield format_sse_event(data_str=json.dumps(piece, ensure_ascii=False))
        except RequestError as error:
            yield format_sse_event(data_str=json.dumps(error.body))
            self._over(served, request, error.status)
            return
        yield format_sse_event(data_str="[DONE]")

    def _over(self, served: ServedRequest, request: Request, status: int) -> None:
        """Log the end of a request once, and free its lanes."""
        if served.logged:
            return
        served.logged = True
        served.cancel()
        complete = all(one.ended is not None for one in served.told)
        if not complete and status == 200:
            status = 499
        if status == 499:
            self.figures.cancelled.inc()
        ended = [one.ended for one in served.told if one.ended is not None]
        for one in ended:
            self.figures.count(one)
        seconds, usage = monotonic() - served.began, served.usage()
        self.figures.requests.labels(status=str(status)).inc()
        self.figures.prompt_tokens.inc(usage["prompt_tokens"])
        if served.first_token is not None:
            self.figures.first_token.observe(served.first_token)
            self.figures.whole.observe(seconds)
        steps = sum(one.result.steps for one in ended)
        self._log(
            request,
            status,
            id=served.reply.about["id"],
            seconds=round(seconds, 6),
            first_token_seconds=None if served.first_token is None else round(served.first_token, 6),
            waited_seconds=round(max((one.waited for one in ended), default=0.0), 6),
            prompt_tokens=usage["prompt_tokens"],
            cached_tokens=usage["prompt_tokens_details"]["cached_tokens"],
            new_tokens=usage["completion_tokens"],
            tokens_per_step=round(usage["completion_tokens"] / steps, 3) if steps else None,
            outputs=len(served.told),
            stream=bool(served.asked.stream),
            speculative=served.asked.speculative is not False,
            finish=served.finish,
        )

    def _log(self, request: Request, status: int, **figures: Any) -> None:
        """A line of JSON; no prompt and no output is in it."""
        client = request.client.host if request.client is not None else None
        about = {"time": round(time(), 3), "client": client, "path": request.url.path[:200], "status": status}
        access.info(json.dumps({**about, **figures}))

    def _authorise(self, request: Request) -> None:
        if self.key is None:
            return
        given = request.headers.get("authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {self.key}".encode()):
            raise RequestError(401, "the key is missing or wrong: send it as Authorization: Bearer KEY")

    def _check_name(self, name: str) -> None:
        if name != self.name:
            near = did_you_mean(name[:100], [self.name])
            raise RequestError(404, f"model is {shown(name)}, which is not served here{near}", "model")

    async def _refused(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestError)
        if error.status not in (500, 504):  # those of a request under way are told where it ends
            self.figures.requests.labels(status=str(error.status)).inc()
            self._log(request, error.status, error=error.key)
        return JSONResponse(error.body, error.status, headers=error.headers)

    async def _no_route(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        routes = ("/v1/completions", "/v1/chat/completions", "/v1/models", "/health", "/metrics")
        path, method = shown(request.url.path), request.method[:20]
        sentence = f"there is no {path} here{did_you_mean(request.url.path[:100], routes)}"
        if error.status_code == 405:
            sentence = f"{path} does not take {method}"
        return await self._refused(request, RequestError(error.status_code, sentence))

    async def _failed(self, request: Request, error: Exception) -> Response:
        log.error("a request failed", exc_info=error)
        return JSONResponse(RequestError(500, "the server failed, and its log says why").body, 500)


class Events(EventSourceResponse):
    """Server-sent events that call ``over`` once at the end, also if the client went away."""

    def __init__(self, frames: AsyncIterator[bytes], over: Callable[[], None]) -> None:
        super().__init__(frames, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self._over = over

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._over()


async def _gone(request: Request) -> None:
    """Until the client went away."""
    receive: Callable[[], Awaitable[Any]] = request.receive
    while (await receive())["type"] != "http.disconnect":
        pass


def _status(error: BaseException | None) -> int:
    return error.status if isinstance(error, RequestError) else 500
