"""The keyed noise of our verifiers as a logits processor, so that Hugging Face's loops emit the same tokens."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import LogitsProcessor

from specexp.core.noise import gumbel
from specexp.verifiers import KeyedSampling

_LOWEST = -1e30
_POSITIONS_KEPT = 64


class KeyedNoise(LogitsProcessor):  # type: ignore[misc]
    """Turns a greedy ``generate`` into keyed sampling: the argmax of ``s_t + g_t`` is the sample.

    Removed tokens (top-k, top-p) get a very low finite score: prompt lookup asks the processor with made-up
    scores which candidates are forbidden, and takes ``-inf`` for an answer.

    Args:
        verifier: Verifier whose scores the noise is added to; its temperature is above 0.
        key: Noise stream of the sequence, ``place_key(seed, sequence, "target")``.

    Example:
        >>> noise = KeyedNoise(KeyedSampling(0.7), place_key(0, "prompt#0", "target"))  # doctest: +SKIP
        >>> model.generate(ids, do_sample=False, logits_processor=[noise])  # doctest: +SKIP
    """

    def __init__(self, verifier: KeyedSampling, key: tuple[int, int]) -> None:
        self.verifier = verifier
        self.key = key
        # generate asks for a position up to three times (candidate check, draft, target); our loop pays once
        self._noise: dict[int, NDArray[np.float32]] = {}

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """``[1, V]`` scores of the token after ``input_ids`` ``[1, t]``."""
        position = input_ids.shape[1]
        if position not in self._noise:
            if len(self._noise) >= _POSITIONS_KEPT:
                self._noise.clear()
            self._noise[position] = gumbel(self.key, position, scores.shape[1])
        noisy = self.verifier.processed_scores(scores[0]) + self._noise[position]
        return torch.from_numpy(noisy).to(scores.device).clamp_(min=_LOWEST)[None]
