"""Lower bounds of a pass, and commitments, timed as the passes of models are."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import linear
from typing_extensions import override

from specexp.profile.passes import TargetPass, TimedPass

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from experiments.engine.loops import LlamaCppLoop

Work = Callable[[int], Callable[[], object]]
"""Returns a function that does the work of a pass over so many rows."""


class Bound(TimedPass):
    """Work that no pass of a model can avoid, behind any prefix.

    Args:
        ready: Returns a function that does the work for so many rows.
        wait: Waits for the device before the clock is read.
        share: Share of the work that counts.
    """

    def __init__(self, ready: Work, wait: Callable[[], None], share: float = 1.0) -> None:
        super().__init__(np.zeros(0, dtype=np.int64), 1)
        self._ready, self._wait, self._share = cache(ready), wait, share

    @override
    def prepare(self, prefix: int) -> None:
        """Do nothing: there is no cache."""

    @override
    def seconds(self, tokens: int) -> float:
        work = self._ready(tokens)
        started = perf_counter()
        work()
        self._wait()
        return (perf_counter() - started) * self._share


def weight_copy(model: PreTrainedModel) -> Work:
    """A copy of as many numbers as the model has; reading them once is half of it."""
    numbers = sum(weight.numel() for weight in model.parameters())
    source = torch.ones(numbers, dtype=model.dtype, device=model.device)
    target = torch.empty_like(source)
    return lambda rows: partial(target.copy_, source)


def matrix_products(model: PreTrainedModel, dtype: torch.dtype) -> Work:
    """Products of rows with the matrices of all linear layers by torch, in the order of a pass."""
    matrices = [one.weight.detach().to(dtype) for one in model.modules() if isinstance(one, torch.nn.Linear)]

    def ready(rows: int) -> Callable[[], None]:
        inputs = {matrix.shape[1]: matrix.new_ones(rows, matrix.shape[1]) for matrix in matrices}

        def multiply() -> None:
            for matrix in matrices:
                linear(inputs[matrix.shape[1]], matrix)

        return multiply

    return ready


class LlamaDecode(TimedPass):
    """``llama_decode`` of a chain, with the logits of all rows.

    Args:
        loop: A context of one sequence, used for nothing else.
        vocab_size: Of the model.
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


class Commitment(TargetPass):
    """The step after a tree pass: its deepest path is kept and its other rows are dropped. The cache is as before
    afterwards.
    """

    @override
    def seconds(self, tokens: int) -> float:
        self.pass_seconds(tokens)
        kept = [0, *self.tree(tokens).shape.path(tokens - 1)]
        before = self.model.cache.lengths[0]
        started = perf_counter()
        self.model.commit(0, kept)
        self.model.synchronize()
        elapsed = perf_counter() - started
        self.model.cache.truncate(0, before)
        return elapsed
