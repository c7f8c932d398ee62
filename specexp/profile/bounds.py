"""What bounds the passes of a model, measured beside them: the same clock, the same threads, the same minutes."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

import torch
from numpy.typing import NDArray
from torch.nn.functional import linear
from typing_extensions import override

from specexp.profile.passes import TimedPass

if TYPE_CHECKING:
    import numpy as np
    from transformers import PreTrainedModel

    from specexp.engines.llama_cpp import LlamaCppLoop


class WeightReading(TimedPass):
    """All weights once, at the rate of a copy, which reads and writes as many bytes.

    Args:
        model: whose weights.
        token_ids: ``[p]`` text.
    """

    def __init__(self, model: PreTrainedModel, token_ids: NDArray[np.int64]) -> None:
        super().__init__(token_ids, model.config.vocab_size)
        numbers = sum(weight.numel() for weight in model.parameters())
        self._source = torch.ones(numbers, dtype=model.dtype, device=model.device)
        self._copy = torch.empty_like(self._source)

    @override
    def prepare(self, prefix: int) -> None:
        """Nothing: weights are read whatever the cache holds."""

    @override
    def seconds(self, tokens: int) -> float:
        started = perf_counter()
        self._copy.copy_(self._source)
        return (perf_counter() - started) / 2


class MatrixProducts(TimedPass):
    """The products of a pass with all of the model's matrices one after the other, by torch, and nothing else.

    Args:
        model: whose matrices.
        token_ids: ``[p]`` text.
        dtype: what they are multiplied in.
    """

    def __init__(self, model: PreTrainedModel, token_ids: NDArray[np.int64], dtype: torch.dtype) -> None:
        super().__init__(token_ids, model.config.vocab_size)
        layers = (one for one in model.modules() if isinstance(one, torch.nn.Linear))
        self._matrices = [layer.weight.detach().to(dtype) for layer in layers]
        self._inputs: dict[tuple[int, int], torch.Tensor] = {}

    @override
    def prepare(self, prefix: int) -> None:
        """Nothing: the products are the same behind every prefix."""

    @override
    def seconds(self, tokens: int) -> float:
        inputs = [self._rows(tokens, matrix) for matrix in self._matrices]
        started = perf_counter()
        for rows, matrix in zip(inputs, self._matrices, strict=True):
            linear(rows, matrix)
        return perf_counter() - started

    def _rows(self, tokens: int, matrix: torch.Tensor) -> torch.Tensor:
        width = matrix.shape[1]
        if (tokens, width) not in self._inputs:
            self._inputs[tokens, width] = torch.ones(tokens, width, dtype=matrix.dtype)
        return self._inputs[tokens, width]


class LlamaDecode(TimedPass):
    """A pass of llama.cpp's own over a chain, with the logits of all rows.

    Args:
        loop: a context of one sequence, used for nothing else.
        vocab_size: of the model.
        token_ids: ``[p]`` text.
    """

    def __init__(self, loop: LlamaCppLoop, vocab_size: int, token_ids: NDArray[np.int64]) -> None:
        super().__init__(token_ids, vocab_size)
        self._loop = loop

    @override
    def prepare(self, prefix: int) -> None:
        self._loop.truncate(min(prefix, self._loop.length))
        if self._loop.length < prefix:
            self._loop.feed(self.token_ids[self._loop.length : prefix].tolist())

    @override
    def seconds(self, tokens: int) -> float:
        return self._loop.pass_seconds(self.tree(tokens).tokens.tolist())
