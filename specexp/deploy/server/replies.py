"""OpenAI's objects of completions and chats, whole or piece by piece."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import override

from specexp.deploy.server.output import Chosen, Ended, OutputStep
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


def speculative_decoding(ended: Ended, most_drafted: int) -> dict[str, Any]:
    """Return figures of drafting for an output, in vLLM's schema of ``metrics.speculative_decoding``.

    All nodes of a tree count as drafted, and its depth as its length; the acceptance length includes the bonus token.
    ``most_drafted`` is the limit of a tree's nodes.
    """
    steps = [step for step in ended.steps if step.drafted]
    drafted, accepted = sum(step.drafted for step in steps), sum(step.accepted for step in steps)
    by_length: dict[str, list[int]] = {}
    for length in sorted({step.depth for step in steps}):
        by_length[str(length)] = _histogram([step for step in steps if step.depth == length])
    return {
        "mean_acceptance_length": 1 + accepted / len(steps) if steps else None,
        "draft_acceptance_rate": accepted / drafted if drafted else None,
        "acceptance_histogram": _histogram(steps),
        "acceptance_histogram_by_draft_length": by_length,
        "num_spec_steps": len(steps),
        "num_draft_tokens": drafted,
        "num_accepted_draft_tokens": accepted,
        "num_spec_tokens": most_drafted,
    }


def _histogram(steps: Sequence[OutputStep]) -> list[int]:
    """Steps by how many drafted tokens were accepted, from none on."""
    tally = Counter(step.accepted for step in steps)
    return [tally[number] for number in range(max(tally, default=-1) + 1)]
