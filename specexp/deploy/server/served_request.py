"""A request under way: the engine's events are collected in the event loop until all outputs have ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from secrets import randbits, token_hex
from time import monotonic, time
from typing import Any

from specexp.deploy.server.engine import ClosedError, Engine, FullError
from specexp.deploy.server.output import Chosen, Ended, GivenUp, Heard, Output, Piece
from specexp.deploy.server.replies import Chat, Completion, Reply, finish_reason, speculative_decoding
from specexp.deploy.server.requests import (
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    Limits,
    RequestError,
)
from specexp.deploy.server.texts import Texts, Written
from specexp.verifiers import KeyedSampling

_COMPLETION_TOKENS = 16
"""Limit of a completion whose request names none, as OpenAI has it; a chat's is the model's context."""


@dataclass
class Told:
    """The part of an output that has arrived."""

    text: str = ""
    tokens: int = 0
    chosen: list[Chosen] = field(default_factory=list)
    ended: Ended | None = None


class ServedRequest:
    """One request, from its body to its last piece; ``prompts`` are token ids.

    Raises:
        RequestError: a prompt does not fit, or too much is asked for.

    Attributes:
        seed: key of its randomness: the same seed gives the same answer.
        told: by output.
        first_token: seconds until the first token; None before it.
        logged: whether its end was logged.
    """

    def __init__(
        self,
        asked: GenerationRequest,
        prompts: Sequence[Sequence[int]],
        engine: Engine,
        texts: Texts,
        limits: Limits,
        model: str,
    ) -> None:
        self.asked = asked
        self.prompts = prompts
        self.began = monotonic()
        self.first_token: float | None = None
        self.logged = False
        self.seed = randbits(62) if asked.seed is None else asked.seed
        kind: type[Reply] = Chat if isinstance(asked, ChatRequest) else Completion
        self.reply = kind(texts, token_hex(12), int(time()), model)
        self._engine = engine
        self._texts = texts
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[tuple[int, Heard]] = asyncio.Queue()
        count = len(prompts) * (asked.n or 1)
        if not 0 < count <= limits.outputs:
            raise RequestError(
                400, f"{count} outputs are asked for, prompts times n; allowed are 1 to {limits.outputs}", "n"
            )
        if asked.sequence is not None and count > 1:
            raise RequestError(
                400, f"sequence names one output, and the request has {count}: leave it out", "sequence"
            )
        for place, prompt in enumerate(prompts):
            self._check(prompt, place, limits)
        deadline = self.began + min(asked.deadline or limits.seconds, limits.seconds)
        self.outputs = [self._output(number, deadline) for number in range(count)]
        self.told = [Told() for _ in self.outputs]

    @property
    def finish(self) -> str:
        """Why it ended: of several outputs the first one's reason; empty while it goes on."""
        ended = self.told[0].ended
        return "" if ended is None else finish_reason(ended.reason)

    def submit(self) -> None:
        """Hand the outputs to the engine.

        Raises:
            RequestError: it takes in nothing more.
        """
        try:
            self._engine.submit(self.outputs)
        except FullError as full:
            raise RequestError(
                503,
                f"{self._engine.waiting} outputs wait already: ask again in {full.retry_after} s",
                retry_after=full.retry_after,
            ) from full
        except ClosedError as error:
            raise RequestError(503, "the server shuts down: ask another one", retry_after=1) from error

    def cancel(self) -> None:
        """Free the lanes at the next step, since the client is gone."""
        for output in self.outputs:
            output.cancelled = True

    async def whole(self) -> dict[str, Any]:
        """The answer in one piece.

        Raises:
            RequestError: it was not complete in time, or the server failed.
        """
        async for _ in self._heard():
            pass
        told = enumerate(self.told)
        choices = [
            self.reply.choice(number, one.text, self._chosen(one), self._why(one)) for number, one in told
        ]
        return self.reply.complete(choices, {"usage": self.usage(), **self._extra()})

    async def pieces(self) -> AsyncIterator[dict[str, Any]]:
        """The answer piece by piece: text as it comes, why each output ended, and last the counts, where asked for.

        Raises:
            RequestError: as :meth:`whole`, after some pieces.
        """
        counts = {"usage": None} if self.asked.include_usage else {}
        begun: set[int] = set()
        async for number, heard in self._heard():
            one, chosen, reason, text = self.told[number], None, None, ""
            if isinstance(heard, Piece):
                text = heard.text
                chosen = None if self.asked.best_tokens is None else heard.chosen
                if not text and not chosen:
                    continue
            else:
                reason = self._why(one)
            extra = {**counts} if self._going_on or self.asked.include_usage else {**counts, **self._extra()}
            yield self.reply.piece(
                [self.reply.delta(number, text, chosen, reason, number not in begun)], extra
            )
            begun.add(number)
        if self.asked.include_usage:
            yield self.reply.piece([], {"usage": self.usage(), **self._extra()})

    def usage(self) -> dict[str, Any]:
        """Tokens of the prompts, each counted once, and of all outputs."""
        prompt, new = sum(map(len, self.prompts)), sum(one.tokens for one in self.told)
        cached = sum(one.ended.cached for one in self.told[:: self.asked.n or 1] if one.ended is not None)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": new,
            "total_tokens": prompt + new,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    @property
    def _going_on(self) -> bool:
        return any(one.ended is None for one in self.told)

    async def _heard(self) -> AsyncIterator[tuple[int, Piece | Ended]]:
        while self._going_on:
            number, heard = await self._queue.get()
            if isinstance(heard, GivenUp):
                raise self._failure(heard)
            one = self.told[number]
            if isinstance(heard, Piece):
                if self.first_token is None and heard.tokens:
                    self.first_token = monotonic() - self.began
                one.text += heard.text
                one.tokens += len(heard.tokens)
                one.chosen += heard.chosen
            else:
                one.ended = heard
            yield number, heard

    def _failure(self, failed: GivenUp) -> RequestError:
        if failed.why == "deadline":
            seconds = self.outputs[0].deadline - self.began
            return RequestError(
                504,
                f"the output was not complete within {seconds:g} s, when {failed.made} tokens of it were there: ask "
                "for fewer, or give it a later deadline",
            )
        if failed.why == "shutdown":
            sentence = (
                f"the server shut down when {failed.made} tokens of the output were there: ask another one"
            )
            return RequestError(504, sentence)
        return RequestError(500, f"the server failed, and its log says why, beside {self.reply.about['id']}")

    def _extra(self) -> dict[str, Any]:
        """Additions to OpenAI's schema: the seed, and in vLLM's schema figures of drafting."""
        metrics = None
        if len(self.told) == 1 and self.told[0].ended is not None:
            builder = self._engine.parts.builder
            most = builder.max_nodes if builder is not None and self.outputs[0].speculative else 0
            metrics = {"speculative_decoding": speculative_decoding(self.told[0].ended, most)}
        return {"seed": self.seed, "metrics": metrics}

    def _chosen(self, one: Told) -> list[Chosen] | None:
        return None if self.asked.best_tokens is None else one.chosen

    def _why(self, one: Told) -> str:
        assert one.ended is not None
        return finish_reason(one.ended.reason)

    def _check(self, prompt: Sequence[int], place: int, limits: Limits) -> None:
        most, key = limits.prompt_tokens, "messages" if isinstance(self.asked, ChatRequest) else "prompt"
        if most is not None and len(prompt) > most:
            raise RequestError(
                400, f"prompt {place + 1} has {len(prompt)} tokens; at most {most} are allowed", key
            )
        try:
            self._engine.target.check_request(prompt, 1)
        except ValueError as error:
            raise RequestError(400, f"prompt {place + 1}: {error}", key) from error

    def _output(self, number: int, deadline: float) -> Output:
        asked = self.asked
        prompt = self.prompts[number // (asked.n or 1)]
        most = asked.most_tokens
        if most is None:
            chat = not isinstance(asked, CompletionRequest)
            most = self._engine.target.context_limit if chat else _COMPLETION_TOKENS

        def hear(heard: Heard) -> None:
            self._loop.call_soon_threadsafe(self._queue.put_nowait, (number, heard))

        return Output(
            prompt=tuple(prompt),
            seed=self.seed,
            sequence=number if asked.sequence is None else asked.sequence,
            max_new_tokens=most,
            verifier=KeyedSampling(
                1.0 if asked.temperature is None else asked.temperature, asked.top_k, asked.top_p
            ),
            written=Written(self._texts.text, asked.stop_strings),
            hear=hear,
            log_probs=asked.best_tokens,
            speculative=asked.speculative is not False,
            deadline=deadline,
        )
