"""Steps of static shapes, and the ways to run one again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

if TYPE_CHECKING:
    from specexp.models.graphed import GraphedModel

MOVES = 16
"""Accepted rows of a lane that a step can move; of a longer path they are moved before it."""
_KEYS = 512


def bucket(count: int, least: int = 1) -> int:
    """Return the power of two that holds a count."""
    return max(least, 1 << max(count - 1, 0).bit_length())


def key_bucket(count: int) -> int:
    """Return the number of keys that a step reads: 512 times a power of two."""
    return _KEYS * bucket(-(-count // _KEYS))


class Shape(NamedTuple):
    """What a step was made for.

    Attributes:
        first: slot of the first lane.
        lanes: neighbouring slots that it feeds.
        rows: rows of each.
        width: uncommitted rows that may be seen, its own included; a multiple of 8.
        keys: rows of the cache that it reads.
        hidden: whether it answers with hidden states too.
    """

    first: int
    lanes: int
    rows: int
    width: int
    keys: int
    hidden: bool


class Step:
    """A pass whose every tensor keeps its place.

    Attributes:
        logits: ``[lanes, rows, V]`` the answers.
        hidden: ``[lanes, rows, d]`` what the output layer read, where the shape has it.
    """

    def __init__(self, shape: Shape, runtime: GraphedModel) -> None:
        self.shape, self._runtime, self.cache = shape, runtime, runtime.cache
        lanes, rows, width = shape.lanes, shape.rows, shape.width
        sections = {
            "tokens": rows,
            "positions": rows,
            "written": rows,
            "base": 1,
            "moved": MOVES,
            "moved_to": MOVES,
        }
        words = lanes * sum(sections.values())
        device, size = runtime.device, 8 * words + lanes * rows * width // 8
        pinned = device.type == "cuda" and torch.cuda.is_available()  # it is not where shapes alone are tried
        given = (
            torch.zeros(size, dtype=torch.uint8, pin_memory=True).numpy()
            if pinned
            else np.zeros(size, np.uint8)
        )
        self._host = torch.from_numpy(given)
        self.inputs = torch.zeros(size, dtype=torch.uint8, device=device)
        self._given, self._read = {}, {}
        start = 0
        for name, count in sections.items():
            end = start + 8 * lanes * count
            self._given[name] = given[start:end].view(np.int64).reshape(lanes, count)
            self._read[name] = self.inputs[start:end].view(torch.int64).view(lanes, count)
            start = end
        self._bits = given[start:].reshape(lanes, rows, width // 8)
        self._bits_read = self.inputs[start:].view(lanes, rows, width // 8)
        self._key_rows = torch.arange(shape.keys, device=device)
        self._bit = torch.arange(8, device=device, dtype=torch.uint8)
        text = runtime.model.config.get_text_config()
        self.logits = torch.zeros((lanes, rows, runtime.vocab_size), dtype=runtime.dtype, device=device)
        self.hidden = (
            torch.zeros((lanes, rows, text.hidden_size), dtype=runtime.dtype, device=device)
            if shape.hidden
            else None
        )
        self.clear(self.cache.capacity)
        self.send()

    def clear(self, capacity: int) -> None:
        """Leave every lane idle: its rows are written to the spare row, and see one key."""
        for name, value in {"tokens": 0, "positions": 0, "base": 0}.items():
            self._given[name].fill(value)
        for name in ("written", "moved", "moved_to"):
            self._given[name].fill(capacity)
        self._bits.fill(0)
        self._bits[..., 0] = 1

    def fill(
        self,
        lane: int,
        past: int,
        start: int,
        tokens: NDArray[np.int64],
        depths: NDArray[np.int64],
        visible: NDArray[np.bool_],
    ) -> None:
        """Feed a lane's rows, written from row ``start`` of its slot, behind ``past`` committed tokens."""
        size = tokens.size
        self._given["tokens"][lane, :size] = tokens
        self._given["positions"][lane] = past
        self._given["positions"][lane, :size] += depths
        self._given["written"][lane, :size] = np.arange(start, start + size)
        self._given["base"][lane] = past
        packed = np.packbits(visible, axis=1, bitorder="little")
        self._bits[lane, :size] = 0
        self._bits[lane, :size, : packed.shape[1]] = packed

    def move(self, lane: int, moves: Sequence[tuple[int, int]]) -> None:
        """Stage rows of the pass before, ``(from, to)``."""
        for place, (source, target) in enumerate(moves):
            self._given["moved"][lane, place] = source
            self._given["moved_to"][lane, place] = target

    def send(self) -> None:
        """Copy the inputs to the device."""
        self.inputs.copy_(self._host, non_blocking=True)

    def run(self) -> None:
        """Move, feed, answer. Reads tensors and the shape alone: whatever else it read would be baked into a graph."""
        first, lanes, rows, width, keys, _ = self.shape
        read = self._read
        window = self.cache.storage[:, first : first + lanes]  # [2 * layers, lanes, heads, capacity + 1, d]
        size = (window.shape[0], lanes, window.shape[2], MOVES, window.shape[4])
        source, target = (read[name][None, :, None, :, None].expand(size) for name in ("moved", "moved_to"))
        window.scatter_(3, target, window.gather(3, source))  # all are read before one is written
        behind = self._key_rows - read["base"]  # [lanes, keys], place of a key among the uncommitted
        among = (self._bits_read[..., None] >> self._bit & 1).flatten(2).bool()  # [lanes, rows, width]
        place = behind.clamp(0, width - 1)[:, None].expand(lanes, rows, keys)
        uncommitted = ((behind >= 0) & (behind < width))[:, None]
        visible = (behind < 0)[:, None] | (uncommitted & among.gather(2, place))
        self.cache.open(first, lanes, keys, read["written"])
        logits, states = self._runtime.forward(read["tokens"], read["positions"], visible)
        self.logits.copy_(logits)
        if self.hidden is not None:
            self.hidden.copy_(states)


class Replayer(ABC):
    """Runs a step again and again."""

    def __init__(self, step: Step) -> None:
        self.step = step

    @abstractmethod
    def replay(self) -> None:
        """Send the inputs and run the step over them."""


class Eager(Replayer):
    """The step's own code."""

    @override
    def replay(self) -> None:
        self.step.send()
        self.step.run()


class Checked(Replayer):
    """The step's own code, under what a captured graph would suffer; for tests.

    Raises:
        AssertionError: a tensor of the step has another place than at the first replay.
    """

    def __init__(self, step: Step) -> None:
        super().__init__(step)
        self._places = self._found()

    @override
    def replay(self) -> None:
        step, cache = self.step, self.step.cache
        step.send()
        assert self._found() == self._places, "a captured step reads and writes where it was captured"
        for output in [step.logits, *([] if step.hidden is None else [step.hidden])]:
            output.fill_(torch.nan)
        cache.storage[:, :, :, -1].fill_(torch.nan)  # what padding wrote
        lengths, uncommitted, moves = cache.lengths, cache.uncommitted, cache.moves
        host: Any = None  # a graph cannot read what changes on the host
        cache.lengths = cache.uncommitted = cache.moves = host
        try:
            step.run()
        finally:
            cache.lengths, cache.uncommitted, cache.moves = lengths, uncommitted, moves

    def _found(self) -> list[int]:
        step = self.step
        tensors = [step.inputs, step.logits, step.cache.storage]
        return [tensor.data_ptr() for tensor in (*tensors, *([] if step.hidden is None else [step.hidden]))]


class Graph(Replayer):
    """A CUDA graph of the step, captured while every lane is idle."""

    def __init__(self, step: Step) -> None:
        super().__init__(step)
        self._graph = torch.cuda.CUDAGraph()
        stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # libraries choose and allocate before the capture
            for _ in range(2):
                step.run()
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(self._graph):
            step.run()

    @override
    def replay(self) -> None:
        self.step.send()
        self._graph.replay()
