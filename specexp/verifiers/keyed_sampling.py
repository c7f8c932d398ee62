"""Keyed sampling, which draws exact samples from the target, independent of the drafts."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Annotated

from pydantic import Field
from typing_extensions import override

from specexp.core.context import Context
from specexp.core.contracts import ArgmaxVerifier, DeterministicVerifier
from specexp.core.sampling import Processors, highest

if TYPE_CHECKING:
    import torch

    from specexp.core.runtime import TokenRule


class KeyedSampling(DeterministicVerifier):
    """Outputs ``argmax(s_t + g_t)`` at position t.

    ``s_t`` are the target's log-probabilities after temperature, top-k and top-p (``transformers``' own processors, in
    that order). ``g_t`` is Gumbel noise keyed by (seed, sequence, t). Every token is an exact sample, and the output
    depends only on target, prompt, seed and sequence. Token equality with plain decoding can therefore be tested at any
    temperature.

    Args:
        temperature: temperature of the target; 0 is greedy decoding.
        top_k: keep only this many of the most probable tokens.
        top_p: keep only the smallest set of most probable tokens with at least this total probability.
    """

    keyed_scores = True
    processors: Processors

    def __init__(
        self,
        temperature: Annotated[float, Field(ge=0, le=100)] = 0.7,
        top_k: Annotated[int, Field(ge=1)] | None = None,
        top_p: Annotated[float, Field(gt=0, le=1)] | None = None,
    ) -> None:
        self.temperature = self.noise_temperature = temperature
        self.top_k = top_k
        self.top_p = top_p
        self.processors = Processors(temperature, top_k, top_p)

    @override
    def scores(self, logits: torch.Tensor, noise: torch.Tensor | None) -> torch.Tensor:
        return logits if noise is None else self.processors.scores(logits).float() + noise

    @override
    def target_token(self, context: Context, logits: torch.Tensor, position: int) -> int:
        if self.temperature == 0:
            return highest(logits)
        noise = context.target_noise(position, 1, logits.numel(), logits.device)
        return highest(self.scores(logits[None], noise)[0])

    @property
    @override
    def law(self) -> Hashable:
        own = type(self) is KeyedSampling  # a subclass may have another rule
        return (KeyedSampling, *self.processors.settings.values()) if own else None


def adds_only_noise(verifier: TokenRule) -> bool:
    """Return whether a verifier takes the argmax of the logits, or of logits / temperature plus the target's noise."""
    if isinstance(verifier, KeyedSampling):
        return verifier.law is not None and verifier.top_k is None and verifier.top_p in (None, 1.0)
    return verifier.law is ArgmaxVerifier
