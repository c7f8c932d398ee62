"""A running request. In the event loop, it turns the decoding thread's updates into responses in OpenAI's format."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from secrets import randbits, token_hex
from time import monotonic, time
from typing import Any

import numpy as np
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from specexp.base.messages import restated, shown
from specexp.constraints.grammar import ConstraintError, constraint_of
from specexp.core.constraint import Constraint
from specexp.core.contracts import DeterministicVerifier
from specexp.deploy.processed_sampling import CountPenalties, ProcessedSampling
from specexp.deploy.server.decoding_thread import (
    DecodingThread,
    Ended,
    GivenUp,
    Output,
    StepCounts,
    TokenLogProbs,
    UnavailableError,
    Update,
)
from specexp.deploy.server.request_schema import AnyRequest, ChatRequest, Limits, RequestError
from specexp.deploy.server.texts import OutputText, Texts, TokenTexts
from specexp.deploy.server.tool_calls import CallText
from specexp.verifiers import KeyedSampling

_COMPLETION_TOKENS = 16
"""OpenAI's default ``max_tokens`` for completions. For chats, the default is the model's context limit."""
_UPDATE_SECONDS = 0.025
"""Minimum time between two chunks of a stream. Waking the event loop for each token would slow decoding down."""


@dataclass(eq=False)
class ServedRequest:
    """The state of a request, from its tokenized prompts to the last chunk of its response.

    Raises RequestError if a prompt is not valid or too long, or there are too many outputs; ``sequence`` allows one.
    """

    request: AnyRequest
    prompts: Sequence[Sequence[int]]
    thread: DecodingThread
    texts: Texts
    limits: Limits
    model: str

    def __post_init__(self) -> None:
        request = self.request
        self.began = monotonic()
        self.logged = False  # whether the end of the request has been logged
        self.seed = randbits(62) if request.seed is None else request.seed
        self.is_chat = isinstance(request, ChatRequest)
        self.id = f"{'chatcmpl' if self.is_chat else 'cmpl'}-{token_hex(12)}"
        self._about = {"id": self.id, "created": int(time()), "model": self.model}
        self._updates: asyncio.Queue[tuple[int, Update]] = asyncio.Queue()
        self._new_tokens = 0
        count = len(self.prompts) * request.n
        if count > self.limits.outputs:
            sentence = f"the number of prompts times n must be at most {self.limits.outputs}, got {count}"
            raise RequestError(400, sentence, "n")
        if request.sequence is not None and count > 1:
            sentence = f"sequence is only for requests of one output, and this request has {count}: leave it out"
            raise RequestError(400, sentence, "sequence")
        for number, prompt in enumerate(self.prompts, 1):
            self._check_prompt(prompt, number)
        deadline = self.began + min(request.deadline or self.limits.seconds, self.limits.seconds)
        self.outputs = [self._output(number, deadline) for number in range(count)]  # n for each prompt
        self.ended: list[Ended | None] = [None] * count  # None while an output is incomplete
        self._token_texts = [TokenTexts(self.texts, request.skip_special_tokens) for _ in range(count)]
        choice = request.calls if isinstance(request, ChatRequest) else None
        self._call_texts = [CallText(choice) for _ in range(count)]
        self._named = isinstance(request, ChatRequest) and request.function is not None

    def _check_prompt(self, prompt: Sequence[int], number: int) -> None:
        limit = self.limits.prompt_tokens
        key = "messages" if self.is_chat else "prompt"
        if limit is not None and len(prompt) > limit:
            raise RequestError(400, f"prompt {number} must have at most {limit} tokens, got {len(prompt)}", key)
        with restated(ValueError, lambda error: RequestError(400, f"prompt {number}: {error}", key)):
            self.thread.target.check_request(prompt, 1)

    def _output(self, number: int, deadline: float) -> Output:
        request = self.request
        context = self.thread.target.context_limit
        key, given = "max_tokens", request.max_tokens
        if isinstance(request, ChatRequest) and given is None:
            key, given = "max_completion_tokens", request.max_completion_tokens
        if given is not None and given > context:  # as in vLLM; up to there, the end of the context ends the output
            sentence = f"{key} must be at most the model's context length, which is {context} tokens, got {given}"
            raise RequestError(400, sentence, key)
        wake = asyncio.get_running_loop().call_soon_threadsafe  # notify is called in the decoding thread
        limit = given or (context if self.is_chat else _COMPLETION_TOKENS)
        if request.min_tokens > limit:
            sentence = f"min_tokens must be at most max_tokens, which is {limit}, got {request.min_tokens}"
            raise RequestError(400, sentence, "min_tokens")
        prompt = tuple(self.prompts[number // request.n])
        ends = self._stop_tokens()
        decode = partial(self.texts.text, special=not request.skip_special_tokens)
        return Output(
            prompt=prompt,
            seed=self.seed,
            sequence=number if request.sequence is None else request.sequence,
            max_new_tokens=limit,
            verifier=self._verifier(len(prompt), ends),
            text=OutputText(decode, request.stop, request.min_tokens),
            eos_token_ids=ends,
            notify=lambda update: wake(self._updates.put_nowait, (number, update)),
            update_seconds=_UPDATE_SECONDS if request.stream else None,
            log_probs=request.top_log_probs,
            speculative=request.speculative,
            deadline=deadline,
            constraint=self._constraint(),
        )

    def _constraint(self) -> Constraint | None:
        if self.request.constraint is None:
            return None
        if self.request.min_tokens:
            raise RequestError(400, "min_tokens must be left out if the output has a given form", "min_tokens")
        field, spec = self.request.constraint
        size = self.thread.target.vocab_size
        try:
            return constraint_of(spec, self.texts.tokenizer, size, self.thread.eos_token_ids)
        except ConstraintError as error:
            steps = error.key[field != "structured_outputs" :]
            if field == "tools" and steps:  # anyOf, number, properties, arguments, ...
                steps = (steps[1], "function", "parameters", *steps[4:])
            key = ".".join((field, *steps))[:200]
            raise RequestError(400, f"{key}: {error}", key) from error

    def _stop_tokens(self) -> frozenset[int]:
        """Return the tokens that end an output: EOS, ``stop_token_ids``, and stop strings that are special tokens."""
        request, special = self.request, self.texts.special_ids
        size = self.thread.target.vocab_size
        for key in ("stop_token_ids", "logit_bias"):
            if (highest := max(getattr(request, key), default=0)) >= size:
                sentence = f"{key}: the model's vocabulary has ids 0 to {size - 1}, got {highest}"
                raise RequestError(400, sentence, key)
        for text in request.stop if request.skip_special_tokens else ():
            inside = [one for one in special.values() if one in text]
            if inside and text not in inside:  # it would never be found in the text
                sentence = f"stop: texts do not show the special token {inside[0]!r}: give it alone, got {shown(text)}"
                raise RequestError(400, sentence, "stop")
        eos = frozenset() if request.ignore_eos else self.thread.eos_token_ids
        return eos.union(request.stop_token_ids, (token for token, text in special.items() if text in request.stop))

    def _verifier(self, prompt_length: int, ends: frozenset[int]) -> DeterministicVerifier:
        """Return the verifier of an output. Its processors have the order of ``transformers``."""
        request, sampling = self.request, self.request.processors
        processors = LogitsProcessorList()
        if bias := {(token,): float(number) for token, number in request.logit_bias.items()}:
            processors.append(SequenceBiasLogitsProcessor(bias))
        if request.repetition_penalty != 1:
            processors.append(RepetitionPenaltyLogitsProcessor(float(request.repetition_penalty)))
        if request.presence_penalty or request.frequency_penalty:
            processors.append(CountPenalties(prompt_length, request.presence_penalty, request.frequency_penalty))
        if (least := request.min_tokens) and ends:
            processors.append(MinNewTokensLengthLogitsProcessor(prompt_length, least, sorted(ends)))
        min_p = request.min_p if sampling.temperature else 0
        if not processors and not min_p:
            return KeyedSampling(sampling.temperature, sampling.top_k, sampling.top_p)
        processors += [*sampling.warpers, *([MinPLogitsWarper(float(min_p))] if min_p else [])]
        verifier = ProcessedSampling()
        verifier.set_up(processors, sampling.temperature)
        return verifier

    def submit(self) -> None:
        """Pass the outputs to the decoding thread. Raises RequestError if it takes no more or shuts down."""
        with restated(UnavailableError, lambda error: RequestError(503, str(error), retry_after=error.retry_after)):
            self.thread.submit(self.outputs)

    def cancel(self) -> None:
        """Cancel all outputs. The decoding thread frees their lanes before its next step."""
        for output in self.outputs:
            output.cancelled = True

    async def answer(self) -> dict[str, Any]:
        """Return the complete response once all outputs have ended.

        Raises RequestError if an output missed its deadline, or the server failed or shut down.
        """
        choices: dict[int, dict[str, Any]] = {}
        async for number, update in self._news():
            fields = self._call_texts[number].add(update.text, _finish_reason(update.end))
            for call in fields.get("tool_calls", ()):
                del call["index"]  # only chunks have it
            message = {"role": "assistant", "content": None, "refusal": None, **fields}
            choices[number] = self._choice(number, update, {"message": message})
        kind = "chat.completion" if self.is_chat else "text_completion"
        ordered = [choices[number] for number in sorted(choices)]
        return {**self._about, "object": kind, "choices": ordered, "usage": self.usage(), **self._extra()}

    async def chunks(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the response in chunks, the last with the token counts if ``include_usage`` is set.

        Raises the errors of :meth:`answer`; some chunks may already have been yielded.
        """
        options = self.request.stream_options
        include_usage = options.include_usage
        about = {**self._about, "object": "chat.completion.chunk" if self.is_chat else "text_completion"}
        begun: set[int] = set()
        async for number, update in self._news():
            if not update.text and not update.log_probs and update.end is None:  # all text is still held back
                continue
            fields = self._call_texts[number].add(update.text, _finish_reason(update.end))
            if not fields and not update.log_probs and update.end is None:
                continue
            role = {} if number in begun else {"role": "assistant"}
            begun.add(number)
            choice = self._choice(number, update, {"delta": {**role, **fields}})
            extra = {} if include_usage or None in self.ended else self._extra()
            usage = {"usage": self.usage() if options.continuous_usage_stats else None} if include_usage else {}
            yield {**about, "choices": [choice], **usage, **extra}
        if include_usage:
            yield {**about, "choices": [], "usage": self.usage(), **self._extra()}

    def usage(self) -> dict[str, Any]:
        """Return the request's token counts. Each prompt is counted once, regardless of ``n``."""
        prompt = sum(map(len, self.prompts))
        new = self._new_tokens
        # only the first output of each prompt: the other outputs reuse its prefill
        cached = sum(one.cached for one in self.ended[:: self.request.n] if one is not None)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": new,
            "total_tokens": prompt + new,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    @property
    def finish_reason(self) -> str:
        """OpenAI's ``finish_reason`` for the first output; empty until it is complete."""
        return _finish_reason(self.ended[0]) or ""

    async def _news(self) -> AsyncIterator[tuple[int, Update]]:
        """Yield updates until all outputs have ended."""
        while None in self.ended:
            number, update = await self._updates.get()
            self._new_tokens += len(update.tokens)
            if isinstance(update.end, GivenUp):
                raise self._error(update.end)
            self.ended[number] = update.end
            yield number, update

    def _error(self, given_up: GivenUp) -> RequestError:
        if given_up.why == "deadline":
            seconds = self.outputs[0].deadline - self.began
            return RequestError(
                504,
                f"the output was not complete within the deadline of {seconds:g} s (it had {given_up.tokens} tokens): "
                "request fewer tokens, or set a later deadline",
            )
        if given_up.why == "shutdown":
            sentence = f"the server shut down when the output had {given_up.tokens} tokens: use another server"
            return RequestError(504, sentence)
        return RequestError(500, f"the server failed to complete request {self.id}: see the server's log")

    def _extra(self) -> dict[str, Any]:
        """Return the fields added to OpenAI's schema: the seed, and speculation metrics in vLLM's schema."""
        metrics = None
        if len(self.ended) == 1 and self.ended[0] is not None:
            builder = self.thread.parts.builder if self.request.speculative else None
            max_nodes = 0 if builder is None else builder.max_nodes
            metrics = {"speculative_decoding": speculative_decoding(self.ended[0].steps, max_nodes)}
        return {"seed": self.seed, "metrics": metrics}

    def _choice(self, number: int, update: Update, chat: Mapping[str, Any]) -> dict[str, Any]:
        """Return an entry of ``choices``, which contains the fields of ``chat`` if the request is a chat."""
        log_probs = None
        if self.request.top_log_probs is not None and (update.log_probs or not self.request.stream):
            listed = self._chat_log_probs if self.is_chat else self._log_probs
            log_probs = listed(self._token_texts[number], update.log_probs)
        content = chat if self.is_chat else {"text": update.text}
        reason = _finish_reason(update.end)
        if reason == "stop" and self._call_texts[number].calls and not self._named:  # as in OpenAI's API
            reason = "tool_calls"
        return {"index": number, **content, "logprobs": log_probs, "finish_reason": reason}

    def _log_probs(self, texts: TokenTexts, tokens: Sequence[TokenLogProbs]) -> dict[str, Any]:
        rows = []
        for one in tokens:
            names = {one.token: texts.text_of(one.token)}
            for token, _ in one.best:  # an equal text must not hide another token's entry
                text = texts.text_of(token)
                taken = not text or text in names.values()
                names.setdefault(token, f"token_id:{token}" if taken else text)
            top = {names[token]: log_prob for token, log_prob in (*one.best, (one.token, one.log_prob))}
            rows.append((names[one.token], one.log_prob, top, texts.add(one.token)))
        columns = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
        return {name: [row[place] for row in rows] for place, name in enumerate(columns)}

    def _chat_log_probs(self, texts: TokenTexts, tokens: Sequence[TokenLogProbs]) -> dict[str, Any]:
        def entry(token: int, log_prob: float) -> dict[str, Any]:
            return {
                "token": texts.text_of(token),
                "logprob": log_prob,
                "bytes": list(texts.bytes_of(token)),
            }

        content = []
        for one in tokens:
            content.append({**entry(one.token, one.log_prob), "top_logprobs": [entry(*pair) for pair in one.best]})
            texts.add(one.token)
        return {"content": content, "refusal": None}


def _finish_reason(end: Ended | GivenUp | None) -> str | None:
    if not isinstance(end, Ended):
        return None
    return "stop" if end.result.finish_reason in ("eos", "stop") else "length"


def speculative_decoding(steps: Sequence[StepCounts], max_nodes: int) -> dict[str, Any]:
    """Return an output's speculation metrics in vLLM's schema, ``metrics.speculative_decoding``.

    All nodes of a draft tree count as drafted tokens, and its depth is the draft length. The acceptance length includes
    the bonus token.
    """
    table = np.array([step for step in steps if step.drafted], dtype=int).reshape(-1, 3)  # [steps, 3]
    drafted, depths, accepted = table.T
    nodes, tokens, count = int(drafted.sum()), int(accepted.sum()), len(table)
    return {
        "mean_acceptance_length": 1 + tokens / count if count else None,
        "draft_acceptance_rate": tokens / nodes if count else None,
        # entry k counts the steps with k accepted tokens
        "acceptance_histogram": np.bincount(accepted).tolist(),
        "acceptance_histogram_by_draft_length": {
            str(depth): np.bincount(accepted[depths == depth]).tolist() for depth in np.unique(depths)
        },
        "num_spec_steps": count,
        "num_draft_tokens": nodes,
        "num_accepted_draft_tokens": tokens,
        "num_spec_tokens": max_nodes,
    }
