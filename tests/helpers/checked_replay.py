"""A step that is replayed as a captured graph would be."""

from typing import Any

import torch
from typing_extensions import override

from specexp.models.static_step import Replayer, Step


def addresses(step: Step) -> list[int]:
    """The addresses of all tensors that a captured graph uses."""
    tensors = [*step.outputs(), step._inputs.on_device, step.noise, step.cache.storage]
    return [tensor.data_ptr() for tensor in tensors]


class CheckedReplay(Replayer):
    """Runs the step's code under the conditions of a captured graph.

    Raises:
        AssertionError: a tensor of the step has another address than at the start.
    """

    def __init__(self, step: Step) -> None:
        super().__init__(step)
        self._addresses = addresses(step)

    @override
    def replay(self) -> None:
        step, cache = self.step, self.step.cache
        step.send()
        assert addresses(step) == self._addresses, "a captured step's tensors must keep their addresses"
        for output in step.outputs():
            output.fill_(torch.nan if output.is_floating_point() else 255)
        cache.storage[:, :, :, -1].fill_(torch.nan)  # the spare row, where padding is written
        lengths, moves = cache.lengths, cache.moves
        host: Any = None  # fails if the step reads state on the host, which a graph cannot
        cache.lengths = cache.moves = host
        try:
            step.run()
        finally:
            cache.lengths, cache.moves = lengths, moves
