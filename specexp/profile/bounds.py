"""What bounds the passes of a model, measured beside them: the same clock, the same threads, the same minutes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
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

    from specexp.engines.llama_cpp_loop import LlamaCppLoop


class WeightReading(TimedPass):
    """All weights once, at the rate of a copy, which reads and writes as many bytes.

    Args:
        model: whose weights.
        token_ids: ``[p]`` text.
        wait: for the device, before the clock is read.
    """

    def __init__(
        self, model: PreTrainedModel, token_ids: NDArray[np.int64], wait: Callable[[], None]
    ) -> None:
        super().__init__(token_ids, model.config.vocab_size)
        self._wait = wait
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
        self._wait()
        return (perf_counter() - started) / 2


class MatrixProducts(TimedPass):
    """The products of a pass with all of the model's matrices one after the other, by some library, and nothing else.

    Args:
        ready: gives for a number of rows what multiplies so many by all matrices.
        vocab_size: of the model.
        token_ids: ``[p]`` text.
        wait: for the device, before the clock is read.
    """

    def __init__(
        self,
        ready: Callable[[int], Callable[[], object]],
        vocab_size: int,
        token_ids: NDArray[np.int64],
        wait: Callable[[], None],
    ) -> None:
        super().__init__(token_ids, vocab_size)
        self._multiply, self._wait = cache(ready), wait

    @override
    def prepare(self, prefix: int) -> None:
        """Nothing: the products are the same behind every prefix."""

    @override
    def seconds(self, tokens: int) -> float:
        multiply = self._multiply(tokens)
        started = perf_counter()
        multiply()
        self._wait()
        return perf_counter() - started


def matrices_of(model: PreTrainedModel) -> list[torch.Tensor]:
    """``[outputs, inputs]`` of every linear layer, in the order of a pass."""
    return [one.weight.detach() for one in model.modules() if isinstance(one, torch.nn.Linear)]


def torch_products(
    matrices: Sequence[torch.Tensor], dtype: torch.dtype
) -> Callable[[int], Callable[[], None]]:
    """Products by torch, as :class:`MatrixProducts` takes them.

    Args:
        matrices: ``[outputs, inputs]`` each.
        dtype: what they are multiplied in.
    """
    kept = [matrix.to(dtype) for matrix in matrices]

    def ready(rows: int) -> Callable[[], None]:
        inputs = {matrix.shape[1]: matrix.new_ones(rows, matrix.shape[1]) for matrix in kept}

        def multiply() -> None:
            for matrix in kept:
                linear(inputs[matrix.shape[1]], matrix)

        return multiply

    return ready


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
