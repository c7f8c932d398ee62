"""Engines behind OpenAI's API: started by a command or already running, and sent completion requests."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field
from typing_extensions import override

from specexp.engines.engine import EngineAnswer, EngineError, ForeignEngine, RunningEngine
from specexp.engines.openai_client import COMPLETIONS, Streamed, complete, model_of
from specexp.engines.server import StartedServer, free_port

if TYPE_CHECKING:
    from specexp.models.pair import ModelPair


Ask = Callable[[Sequence[int], Callable[[], bool]], object]
"""Requests the answer to a prompt, until the second argument returns True."""


@contextmanager
def background_requests(ask: Ask, token_ids: Sequence[int], others: int) -> Iterator[None]:
    """Keep a number of other requests going.

    The n-th of them repeats the same prompt without its last n tokens. So every setting is measured with the same
    load, and no two requests are equal to a server that caches prompts.
    """
    ended = threading.Event()

    def keep_asking(shortened: Sequence[int]) -> None:
        while not ended.is_set():
            try:
                ask(shortened, ended.is_set)
            except EngineError:  # the measured request reports it
                return

    with ThreadPoolExecutor(max(1, others)) as pool:
        for number in range(1, others + 1):
            pool.submit(keep_asking, token_ids[: max(1, len(token_ids) - number)])
        try:
            yield
        finally:
            ended.set()


_ENDING_SECONDS = 0.5  # for a server that failed to end
Seconds = Annotated[float, Field(gt=0, le=3600)]
Requests = Annotated[int, Field(ge=1, le=1024)]


class HttpEngine(ForeignEngine):
    """An engine behind OpenAI's API.

    Attributes:
        takes_token_ids: Whether a prompt may be token ids, which are unambiguous.
        path: Path of the requests.
        url: Address of a running server; None if :meth:`words` starts one.
        body: Fields of every request.
        model: Model name in requests; None for the only model of the server.
        concurrency: Number of requests at once, with the measured one.
        start_seconds: Limit for the start of the server.
        answer_seconds: Limit for an answer.
    """

    takes_token_ids: ClassVar[bool] = False
    path: ClassVar[str] = COMPLETIONS
    url: str | None = None
    body: Mapping[str, Any] = {}
    model: str | None = None
    start_seconds: float = 120
    answer_seconds: float = 120
    concurrency: int = 1

    def fields(self, eos: frozenset[int]) -> Mapping[str, Any]:
        """Return the fields of every request besides :attr:`body`."""
        return {}

    @abstractmethod
    def words(self, port: int, pair: ModelPair) -> list[str]:
        """The command that starts the server."""

    @override
    def start(self, pair: ModelPair) -> RunningEngine:
        return _Endpoint(self, pair)


class _Endpoint(RunningEngine):
    def __init__(self, engine: HttpEngine, pair: ModelPair) -> None:
        self._tokenizer = pair.tokenizer
        self._server: StartedServer | None = None
        self.url = (engine.url or "").rstrip("/").removesuffix("/v1")
        if engine.url is None:
            port = free_port()
            self.url = f"http://127.0.0.1:{port}"
            self._server = StartedServer(engine.words(port, pair), self.url, engine.start_seconds)
        try:
            self.model = model_of(self.url, engine.model, engine.answer_seconds)
        except EngineError:
            self.close()
            raise

    @override
    def answer(
        self, engine: ForeignEngine, token_ids: Sequence[int], max_new_tokens: int, eos: frozenset[int]
    ) -> EngineAnswer:
        assert isinstance(engine, HttpEngine)
        fields = {"max_tokens": max_new_tokens, "temperature": 0, **engine.fields(eos), **engine.body}

        def ask(token_ids: Sequence[int], stopped: Callable[[], bool] = lambda: False) -> Streamed:
            prompt = list(token_ids) if engine.takes_token_ids else self._tokenizer.decode(list(token_ids))
            body = {"model": self.model, "prompt": prompt, **fields}
            return complete(self.url, body, engine.answer_seconds, stopped, engine.path)

        try:
            with background_requests(ask, token_ids, engine.concurrency - 1):
                found = ask(token_ids)
        except EngineError as error:
            if self._server is not None and self._server.ended(_ENDING_SECONDS):
                raise EngineError(f"the server ended ({self._server.last_lines()}): {error}") from error
            raise
        tokens = found.token_ids or self._tokenizer(found.text, add_special_tokens=False).input_ids
        if not tokens or not found.times:
            raise EngineError(f"{self.url} answered with no text")
        steps, speculation = len(found.times), found.speculation
        prefill_seconds, decode_seconds = found.split()
        reason = "length" if found.finish_reason == "length" else "eos"
        ends = self._tokenizer.eos_token_id
        if reason == "eos" and ends in eos and tokens[-1] not in eos:  # streams omit the token that ends them
            tokens = [*tokens, ends]
        return EngineAnswer(
            list(tokens),
            reason,
            prefill_seconds=prefill_seconds,
            decode_seconds=decode_seconds,
            first_tokens=1,
            steps=speculation.get("num_spec_steps", steps - 1) + 1,
            accepted_drafts=speculation.get("num_accepted_draft_tokens", max(0, len(tokens) - steps)),
            drafted_nodes=speculation.get("num_draft_tokens", 0),
            memory_bytes=None if self._server is None else self._server.memory_bytes(),
        )

    @override
    def close(self) -> None:
        if self._server is not None:
            self._server.close()
