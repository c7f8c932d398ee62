"""One pass of static shapes: all that changes between two passes is data in one input buffer, and it is replayed.

What a step does, in order: it moves the accepted rows of the pass before together (a *deferred commit*), feeds its
rows, and answers with logits and, for a verifier whose law it has, with the verifier's tokens and the best tokens that
drafters learn. These are small and lie in pinned memory of the host when the device is done.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from specexp.core.runtime import Read, TokenRule

if TYPE_CHECKING:
    from specexp.core.context import Context
    from specexp.models.static_slots import StaticSlots

MOVES = 16
"""Accepted rows of a lane that a step can move; those of a longer path are moved before it."""


_Arrays = dict[str, tuple[tuple[int, ...], np.dtype[Any]]]
"""Shapes and types by name."""


class Shape(NamedTuple):
    """The sizes that a step is made for.

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


class Law(NamedTuple):
    """The reading of a step's logits for a verifier.

    Attributes:
        law: of the verifier, which differs between verifiers.
        learned: best tokens of every row that drafters learn.
        positions: whose noise the verifier adds, from the next token on; 0 if it adds none.
    """

    law: object
    learned: int
    positions: int


class StepModel(Protocol):
    """The model of a step: a graphed runtime."""

    model: Any
    cache: StaticSlots
    vocab_size: int
    device: torch.device
    dtype: torch.dtype
    attention: str

    def forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, visible: torch.Tensor, attention: str
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits ``[lanes, rows, V]``, and what the output layer reads ``[lanes, rows, d]``."""
        raise NotImplementedError


class Step:
    """A pass whose every tensor keeps its place.

    Args:
        shape: its sizes.
        runtime: the model that it runs.
        law: what it reads for ``verifier``; nothing if None.
        verifier: makes scores from logits and noise.

    Attributes:
        logits: ``[lanes, rows, V]`` the answers.
        hidden: ``[lanes, rows, d]`` what the output layer read, where the shape has it.
        noise: ``[lanes, positions, V]`` what the verifier adds; empty if it adds none.
        attention: name of the attention that it runs.
    """

    def __init__(
        self,
        shape: Shape,
        runtime: StepModel,
        law: Law | None = None,
        verifier: TokenRule | None = None,
    ) -> None:
        self.shape, self.law = shape, law
        self.cache, self._runtime, self._verifier = runtime.cache, runtime, verifier
        self.attention = runtime.attention
        lanes, rows, width = shape.lanes, shape.rows, shape.width
        words = {"tokens": rows, "positions": rows, "written": rows, "base": 1}
        words |= {"moved": MOVES, "moved_to": MOVES}
        given: _Arrays = {name: ((lanes, count), np.dtype(np.int64)) for name, count in words.items()}
        given["visible"] = ((lanes, rows, width // 8), np.dtype(np.uint8))
        self._inputs = _Buffer(given, runtime.device)
        self._key_rows = torch.arange(shape.keys, device=runtime.device)
        self._bit = torch.arange(8, device=runtime.device, dtype=torch.uint8)
        text = runtime.model.config.get_text_config()
        made: dict[str, Any] = {"dtype": runtime.dtype, "device": runtime.device}
        self.logits = torch.zeros((lanes, rows, runtime.vocab_size), **made)
        self.hidden = torch.zeros((lanes, rows, text.hidden_size), **made) if shape.hidden else None
        positions, learned = (0, 0) if law is None else (law.positions, law.learned)
        self.noise = torch.zeros((lanes, positions, runtime.vocab_size), device=runtime.device)
        read: _Arrays = {
            "tokens": ((lanes, rows), np.dtype(np.int64)),
            "learned": ((lanes, rows, learned), np.dtype(np.int64)),
            "highest": ((lanes, rows), np.dtype(np.float32)),
            "learned_logits": ((lanes, rows, learned), np.dtype(np.float32)),
        }
        self._outputs = _Buffer({} if law is None else read, runtime.device)
        self.clear(self.cache.capacity)
        self.send()

    def clear(self, capacity: int) -> None:
        """Leave every lane idle: its rows are written to the spare row, and see one key."""
        given = self._inputs.host
        for name, value in {"tokens": 0, "positions": 0, "base": 0, "visible": 0}.items():
            given[name].fill(value)
        for name in ("written", "moved", "moved_to"):
            given[name].fill(capacity)
        given["visible"][..., 0] = 1

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
        given, size = self._inputs.host, tokens.size
        given["tokens"][lane, :size] = tokens
        given["positions"][lane] = past
        given["positions"][lane, :size] += depths
        given["written"][lane, :size] = np.arange(start, start + size)
        given["base"][lane] = past
        packed = np.packbits(visible, axis=1, bitorder="little")
        given["visible"][lane, :size] = 0
        given["visible"][lane, :size, : packed.shape[1]] = packed

    def move(self, lane: int, moves: Sequence[tuple[int, int]]) -> None:
        """Stage rows of the pass before, ``(from, to)``."""
        given = self._inputs.host
        for place, (source, target) in enumerate(moves):
            given["moved"][lane, place] = source
            given["moved_to"][lane, place] = target

    def send(self) -> None:
        """Copy the inputs to the device."""
        self._inputs.send()

    def run(self) -> None:
        """Move, feed, answer. Reads tensors and the shape alone: whatever else it read would be baked into a graph."""
        first, lanes, rows, width, keys, _ = self.shape
        given = self._inputs.device
        window = self.cache.storage[:, first : first + lanes]  # [2 * layers, lanes, heads, capacity + 1, d]
        size = (window.shape[0], lanes, window.shape[2], MOVES, window.shape[4])
        source, target = (given[name][None, :, None, :, None].expand(size) for name in ("moved", "moved_to"))
        window.scatter_(3, target, window.gather(3, source))  # all are read before one is written
        behind = self._key_rows - given["base"]  # [lanes, keys], place of a key among the uncommitted
        bits = given["visible"][..., None] >> self._bit & 1
        among = bits.flatten(2).bool()  # [lanes, rows, width]
        place = behind.clamp(0, width - 1)[:, None].expand(lanes, rows, keys)
        uncommitted = ((behind >= 0) & (behind < width))[:, None]
        visible = (behind < 0)[:, None] | (uncommitted & among.gather(2, place))
        self.cache.open(first, lanes, keys, given["written"])
        logits, states = self._runtime.forward(given["tokens"], given["positions"], visible, self.attention)
        self.logits.copy_(logits)
        if self.hidden is not None:
            self.hidden.copy_(states)
        if self.law is not None:
            self._answer(given["positions"] - given["base"])

    def _answer(self, depths: torch.Tensor) -> None:
        """Read the logits for the verifier and the drafter; ``depths`` ``[lanes, rows]``."""
        assert self._verifier is not None
        assert self.law is not None
        lanes, rows, size = self.logits.shape
        noise = None
        if self.law.positions:
            place = depths.clamp(max=self.law.positions - 1)[..., None].expand(lanes, rows, size)
            noise = self.noise.gather(1, place).flatten(0, 1)
        scores: Any = self._verifier.scores(self.logits.flatten(0, 1), noise)
        best, tokens = scores.max(-1)
        read = self._outputs.device
        read["tokens"].copy_(tokens.view(lanes, rows))
        read["highest"].copy_(best.view(lanes, rows))
        if self.law.learned:
            values, indices = self.logits.topk(self.law.learned, dim=-1)
            read["learned"].copy_(indices)
            read["learned_logits"].copy_(values)
        self._outputs.fetch()

    def read(self, lane: int, rows: int, context: Context) -> Read:
        """Return what was read for a lane, once the device is done; overwritten by the next replay."""
        read = self._outputs.host
        top = (read["learned"][lane, :rows], read["learned_logits"][lane, :rows])
        learned = self.law is not None and self.law.learned
        return Read(
            context, read["tokens"][lane, :rows], read["highest"][lane, :rows], top if learned else None
        )

    def outputs(self) -> list[torch.Tensor]:
        """Every tensor that a replay writes anew."""
        found = [self.logits, self._outputs.bytes_there, self._outputs.bytes_here]
        return found if self.hidden is None else [*found, self.hidden]

    def addresses(self) -> list[int]:
        """Return the addresses of all tensors that a graph holds."""
        tensors = [*self.outputs(), self._inputs.bytes_there, self.noise, self.cache.storage]
        return [tensor.data_ptr() for tensor in tensors]


class _Buffer:
    """Arrays in one piece of memory, on the host and on the device; the longest types come first.

    Attributes:
        host: arrays by name, in pinned memory where that exists.
        device: tensors of the same bytes on the device.
    """

    def __init__(self, arrays: _Arrays, device: torch.device) -> None:
        size = sum(int(np.prod(shape)) * kind.itemsize for shape, kind in arrays.values())
        pinned = device.type == "cuda" and torch.cuda.is_available()  # it is not where shapes alone are tried
        here = (
            torch.zeros(size, dtype=torch.uint8, pin_memory=True).numpy()
            if pinned
            else np.zeros(size, np.uint8)
        )
        self.bytes_here = torch.from_numpy(here)
        self.bytes_there = torch.zeros(size, dtype=torch.uint8, device=device)
        self.host: dict[str, NDArray[Any]] = {}
        self.device: dict[str, torch.Tensor] = {}
        start = 0
        for name, (shape, kind) in arrays.items():
            end = start + int(np.prod(shape)) * kind.itemsize
            self.host[name] = here[start:end].view(kind).reshape(shape)
            self.device[name] = self.bytes_there[start:end].view(getattr(torch, kind.name)).view(shape)
            start = end

    def send(self) -> None:
        self.bytes_there.copy_(self.bytes_here, non_blocking=True)

    def fetch(self) -> None:
        self.bytes_here.copy_(self.bytes_there, non_blocking=True)


class Replayer(ABC):
    """Runs a step again and again.

    Attributes:
        measures: whether its speed chooses the fastest attention.
    """

    measures = False

    def __init__(self, step: Step) -> None:
        self.step = step

    @abstractmethod
    def replay(self) -> None:
        """Send the inputs and run the step over them."""


class EagerReplay(Replayer):
    """The step's own code."""

    @override
    def replay(self) -> None:
        self.step.send()
        self.step.run()


class CheckedReplay(Replayer):
    """The step's own code, under what a captured graph would suffer; for tests.

    Raises:
        AssertionError: a tensor of the step has another place than at the first replay.
    """

    def __init__(self, step: Step) -> None:
        super().__init__(step)
        self._addresses = step.addresses()

    @override
    def replay(self) -> None:
        step, cache = self.step, self.step.cache
        step.send()
        assert step.addresses() == self._addresses, "a captured step reads and writes where it was captured"
        for output in step.outputs():
            output.fill_(torch.nan if output.is_floating_point() else 255)
        cache.storage[:, :, :, -1].fill_(torch.nan)  # what padding wrote
        lengths, moves = cache.lengths, cache.moves
        host: Any = None  # a graph cannot read what changes on the host
        cache.lengths = cache.moves = host
        try:
            step.run()
        finally:
            cache.lengths, cache.moves = lengths, moves


class GraphReplay(Replayer):
    """A CUDA graph of the step, captured while every lane is idle."""

    measures = True
    _pool: Any = None  # of all graphs, which never run at the same time

    def __init__(self, step: Step) -> None:
        super().__init__(step)
        self._graph = torch.cuda.CUDAGraph()
        stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # libraries choose and allocate before the capture
            for _ in range(2):
                step.run()
        torch.cuda.current_stream().wait_stream(stream)
        GraphReplay._pool = GraphReplay._pool or torch.cuda.graph_pool_handle()
        with torch.cuda.graph(self._graph, pool=GraphReplay._pool):
            step.run()

    @override
    def replay(self) -> None:
        self.step.send()
        self._graph.replay()
