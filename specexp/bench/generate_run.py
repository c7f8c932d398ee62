"""What one call of Hugging Face's ``generate`` did, told from outside: passes, drafts, and when tokens came."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING

import torch
from transformers.generation.streamers import BaseStreamer
from typing_extensions import override

if TYPE_CHECKING:
    from specexp.core.latency import LatencyProfile


class Clock(BaseStreamer):  # type: ignore[misc]
    """Notes when ``generate`` hands over tokens, and how many: first the prompt, then those of each pass."""

    def __init__(self) -> None:
        self.first: float | None = None
        self.counts: list[int] = []

    @override
    def put(self, value: torch.Tensor) -> None:
        if self.first is None and self.counts:
            self.first = perf_counter()
        self.counts.append(value.numel())

    @override
    def end(self) -> None:
        return None


@dataclass
class GenerateRun:
    """One call of ``generate``, counted.

    Attributes:
        prompt_tokens: Tokens it was given.
        fed: ``[1, rows]`` token ids of every target pass: the prompt and its first candidates, then root and
            candidates.
        clock: Noted the tokens as they came.
        token_ids: The new tokens.
        finish_reason: ``eos``, ``length`` or ``context``.
        draft_fed: For every forward pass of the draft model the target passes before it, and the tokens it was fed.
        started: When ``generate`` was called, in seconds of ``perf_counter``.
        finished: When it returned.
    """

    prompt_tokens: int
    fed: list[torch.Tensor] = field(default_factory=list)
    clock: Clock = field(default_factory=Clock)
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str = "length"
    draft_fed: list[tuple[int, int]] = field(default_factory=list)
    started: float = 0.0
    finished: float = 0.0

    @property
    def tokens_of_pass(self) -> list[int]:
        """New tokens of every target pass."""
        return self.clock.counts[1:]

    @property
    def prefill_seconds(self) -> float:
        """Until the first tokens came."""
        return (self.clock.first or self.finished) - self.started

    @property
    def decode_seconds(self) -> float:
        """From the first tokens on."""
        return self.finished - (self.clock.first or self.finished)

    @property
    def steps(self) -> int:
        """Target passes."""
        return len(self.fed)

    @property
    def bonus_tokens(self) -> int:
        """Tokens that no candidate had."""
        return len(self.token_ids) - self.accepted_drafts

    @property
    def draft_passes(self) -> int:
        """Forward passes of the draft model."""
        return len(self.draft_fed)

    def modelled_seconds(self, profile: LatencyProfile) -> float:
        """Seconds of decoding by a profile: of what came after the target's first pass, which is prefill."""
        drafted: dict[int, list[int]] = defaultdict(list)
        for step, tokens in self.draft_fed:
            drafted[step].append(tokens)
        seconds, known = 0.0, self.prompt_tokens - 1  # in the cache before a pass: all but the root
        for step, (rows, new_tokens) in enumerate(zip(self.fed, self.tokens_of_pass, strict=True)):
            if step > 0:
                seconds += profile.step_seconds(rows.shape[1], drafted[step], new_tokens, known)
            known += new_tokens
        return seconds

    def beyond(self, profile: LatencyProfile) -> int:
        """Target passes of decoding with more tokens than the profile states milliseconds for."""
        return sum(profile.exceeded_by(rows.shape[1]) for rows in self.fed[1:])

    @property
    def drafted_nodes(self) -> int:
        """Candidates fed to the target."""
        return sum(len(draft) for draft in self._drafts())

    @property
    def accepted_drafts(self) -> int:
        """Candidates that became output."""
        accepted = start = 0
        for draft, count in zip(self._drafts(), self.tokens_of_pass, strict=True):
            for drafted, token in zip(draft, self.token_ids[start : start + count], strict=False):
                if drafted != token:
                    break
                accepted += 1
            start += count
        return accepted

    def _drafts(self) -> Iterator[list[int]]:
        for number, rows in enumerate(self.fed):
            committed = self.prompt_tokens if number == 0 else 1
            yield [int(token) for token in rows[0, committed:].tolist()]
