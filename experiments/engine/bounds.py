"""Lower bounds of a pass, and commitments, timed as the passes of models are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

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


def matrices_of(model: PreTrainedModel) -> list[torch.Tensor]:
    """``[outputs, inputs]`` of every linear layer, in the order of a pass."""
    return [one.weight.detach() for one in model.modules() if isinstance(one, torch.nn.Linear)]


def torch_products(matrices: Sequence[torch.Tensor], dtype: torch.dtype) -> Work:
    """Products of rows with ``[outputs, inputs]`` matrices by torch, in this dtype."""
    kept = [matrix.to(dtype) for matrix in matrices]

    def ready(rows: int) -> Callable[[], None]:
        inputs = {matrix.shape[1]: matrix.new_ones(rows, matrix.shape[1]) for matrix in kept}

        def multiply() -> None:
            for matrix in kept:
                linear(inputs[matrix.shape[1]], matrix)

        return multiply

    return ready


def openvino_products(matrices: Sequence[torch.Tensor], threads: int) -> Work:
    """Products of rows with ``[outputs, inputs]`` matrices by OpenVINO, in the precision that it prefers."""
    from openvino import Core, Model, Tensor, Type, opset13

    inputs = {width: opset13.parameter([-1, width], Type.f32) for width in {one.shape[1] for one in matrices}}
    results = []
    for matrix in matrices:
        kept = torch.float32 if matrix.dtype == torch.float32 else torch.float16
        weights = opset13.constant(matrix.to(kept).numpy())
        if kept != torch.float32:
            weights = opset13.convert(weights, Type.f32)
        results.append(opset13.result(opset13.matmul(inputs[matrix.shape[1]], weights, False, True)))
    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    compiled = Core().compile_model(Model(results, list(inputs.values())), "CPU", settings)
    request = compiled.create_infer_request()

    def ready(rows: int) -> Callable[[], object]:
        given = [Tensor(np.ones((rows, width), dtype=np.float32)) for width in inputs]

        def multiply() -> Any:
            for place, tensor in enumerate(given):
                request.set_input_tensor(place, tensor)
            request.infer()
            return request

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
