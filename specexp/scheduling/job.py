"""What an execution strategy is given to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Job:
    """A sequence to decode.

    Attributes:
        prompt: ``[p]`` token ids, at least one. Jobs of one run with the same prompt share its prefill.
        sequence: the place its randomness is keyed by; the same one gives the same output again. Different in a run.
        max_new_tokens: greatest number of tokens to generate.
        stop: whether the output ends with these new tokens; None leaves that to EOS and the limit.
    """

    prompt: tuple[int, ...]
    sequence: int | str
    max_new_tokens: int = 128
    stop: Callable[[Sequence[int]], bool] | None = None
