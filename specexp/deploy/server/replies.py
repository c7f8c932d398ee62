"""OpenAI's objects of completions and chats, whole or piece by piece."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import override

from specexp.deploy.server.output import Chosen
from specexp.deploy.server.texts import Texts

_REASONS = {"eos": "stop", "stop": "stop", "length": "length", "context": "length"}


def finish_reason(reason: str) -> str:
    """OpenAI's word for why an output ended; the model's own limit counts as length."""
    return _REASONS[reason]


class Reply(ABC):
    """The objects of one request; ``created`` in seconds since 1970."""

    prefix: str
    whole: str
    chunk: str

    def __init__(self, texts: Texts, number: str, created: int, model: str) -> None:
        self.texts = texts
        self.about = {"id": f"{self.prefix}-{number}", "created": created, "model": model}

    def complete(self, choices: Sequence[Mapping[str, Any]], extra: Mapping[str, Any]) -> dict[str, Any]:
        """The answer in one piece."""
        return {**self.about, "object": self.whole, "choices": list(choices), **extra}

    def piece(self, choices: Sequence[Mapping[str, Any]], extra: Mapping[str, Any]) -> dict[str, Any]:
        """A piece of an answer."""
        return {**self.about, "object": self.chunk, "choices": list(choices), **extra}

    @abstractmethod
    def choice(self, number: int, text: str, chosen: Sequence[Chosen] | None, reason: str) -> dict[str, Any]:
        """An output that has ended."""

    @abstractmethod
    def delta(
        self, number: int, text: str, chosen: Sequence[Chosen] | None, reason: str | None, first: bool
    ) -> dict[str, Any]:
        """What is new of an output."""


class Completion(Reply):
    """``/v1/completions``."""

    prefix = "cmpl"
    whole = chunk = "text_completion"

    @override
    def choice(self, number: int, text: str, chosen: Sequence[Chosen] | None, reason: str) -> dict[str, Any]:
        return self.delta(number, text, chosen, reason, True)

    @override
    def delta(
        self, number: int, text: str, chosen: Sequence[Chosen] | None, reason: str | None, first: bool
    ) -> dict[str, Any]:
        log_probs = None if chosen is None else self._log_probs(chosen)
        return {"index": number, "text": text, "logprobs": log_probs, "finish_reason": reason}

    def _log_probs(self, chosen: Sequence[Chosen]) -> dict[str, Any]:
        tokens = [self.texts.token(one.token) for one in chosen]
        starts = [sum(map(len, tokens[:place])) for place in range(len(tokens))]
        return {
            "tokens": tokens,
            "token_logprobs": [one.log_prob for one in chosen],
            "top_logprobs": [
                {self.texts.token(token): log_prob for token, log_prob in one.best} for one in chosen
            ],
            "text_offset": starts,
        }


class Chat(Reply):
    """``/v1/chat/completions``."""

    prefix = "chatcmpl"
    whole, chunk = "chat.completion", "chat.completion.chunk"

    @override
    def choice(self, number: int, text: str, chosen: Sequence[Chosen] | None, reason: str) -> dict[str, Any]:
        message = {"role": "assistant", "content": text, "refusal": None}
        log_probs = self._log_probs(chosen)
        return {"index": number, "message": message, "logprobs": log_probs, "finish_reason": reason}

    @override
    def delta(
        self, number: int, text: str, chosen: Sequence[Chosen] | None, reason: str | None, first: bool
    ) -> dict[str, Any]:
        delta = {"role": "assistant", "content": text} if first else {"content": text}
        log_probs = self._log_probs(chosen)
        return {"index": number, "delta": delta, "logprobs": log_probs, "finish_reason": reason}

    def _log_probs(self, chosen: Sequence[Chosen] | None) -> dict[str, Any] | None:
        if chosen is None:
            return None
        content = [
            {
                **self._told(one.token, one.log_prob),
                "top_logprobs": [self._told(token, log_prob) for token, log_prob in one.best],
            }
            for one in chosen
        ]
        return {"content": content, "refusal": None}

    def _told(self, token: int, log_prob: float) -> dict[str, Any]:
        text = self.texts.token(token)
        return {"token": text, "logprob": log_prob, "bytes": list(text.encode())}
