"""The keyed noise of our verifiers as a logits processor, so that Hugging Face's loops emit the same tokens."""

from __future__ import annotations

import torch
from transformers import LogitsProcessor

from specexp.core.noise import GumbelStream
from specexp.verifiers import KeyedSampling

_LOWEST = -1e30


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
        self._noise = GumbelStream(key)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """``[1, V]`` scores of the token after ``input_ids`` ``[1, t]``."""
        noise = self._noise.at(input_ids.shape[1], 1, scores.shape[1]).numpy()
        noisy = self.verifier.processed_scores(scores[0]) + noise[0]
        return torch.from_numpy(noisy).to(scores.device).clamp_(min=_LOWEST)[None]
