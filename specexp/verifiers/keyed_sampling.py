"""Keyed sampling: exact samples of the target that do not depend on how they were speculated."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from typing_extensions import override

from specexp.core.context import Context
from specexp.core.contracts import DeterministicVerifier
from specexp.core.sampling import Processors, highest

if TYPE_CHECKING:
    import torch


class KeyedSampling(DeterministicVerifier):
    """The token at position t is ``argmax(s_t + g_t)``.

    ``s_t`` are the target's log-probabilities after temperature, top-k and top-p (``transformers``' own processors,
    in that order), ``g_t`` Gumbel noise keyed by (seed, sequence, t). Every token is an exact sample, and the output
    is a function of target, prompt, seed and sequence alone: token equality with plain decoding can be tested at
    every temperature.

    Args:
        temperature: the target's; 0 is greedy decoding.
        top_k: keep only this many of the most probable tokens.
        top_p: keep only the smallest set of most probable tokens with at least this probability.
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
    def noisy_scores(self, context: Context, logits: torch.Tensor, position: int) -> NDArray[np.float32]:
        """Return ``[V]`` processed scores plus the noise of the position: ``s_t + g_t`` up to a constant."""
        scores = self.processed_scores(logits)
        if self.temperature == 0:
            return scores
        return np.asarray(scores + context.target_noise(position, 1, scores.size)[0].numpy())

    @override
    def processed_scores(self, logits: torch.Tensor) -> NDArray[np.float32]:
        """Return ``[V]`` scores ``s_t`` up to a constant, removed tokens ``-inf``; at temperature 0 the logits."""
        if self.temperature == 0:
            return np.asarray(logits.float().numpy(force=True))
        return np.asarray(self.processors.scores(logits[None])[0].float().numpy(force=True))

    @override
    def scores(self, logits: torch.Tensor, noise: torch.Tensor | None) -> torch.Tensor:
        return logits if noise is None else self.processors.scores(logits).float() + noise

    @override
    def target_token(self, context: Context, logits: torch.Tensor, position: int) -> int:
        if self.temperature == 0:
            return highest(logits)
        return int(self.noisy_scores(context, logits, position).argmax())

    @property
    @override
    def law(self) -> Hashable:
        own = type(self) is KeyedSampling  # a subclass may have another rule
        return (KeyedSampling, *self.processors.settings.values()) if own else None
