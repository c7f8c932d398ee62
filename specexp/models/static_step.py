"""Passes with static shapes: all values that change between replays are held in one input buffer.

A :class:`TreeStep` first moves the accepted rows of the previous pass into place (a *deferred commit*). It then feeds
its rows and returns logits. For a verifier, it also returns the target's tokens and the top tokens that drafters learn,
which are copied to pinned host memory. :class:`~specexp.models.static_draft.DraftStep` is the other kind of step. A
:class:`Replayer` runs a step repeatedly, as a captured graph or as plain code.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from specexp.core.runtime import Growth, TargetTokens, TokenRule

if TYPE_CHECKING:
    from specexp.models.static_slots import StaticSlots

MOVES = 16
"""The maximum number of accepted rows per lane that a step can move. If there are more, they are moved beforehand."""
GRAPH_BYTES = 32 * 2**20
"""The size of a captured graph in bytes, excluding its step's buffers. vLLM measured 24 to 28 MiB (vllm #22897)."""
_GRAPHS = 16  # number of graphs for which memory is reserved
INT, FLOAT = np.dtype(np.int64), np.dtype(np.float32)
Arrays = dict[str, tuple[tuple[int, ...], np.dtype[Any]]]
"""The shape and dtype of each array, keyed by name."""


class Window(NamedTuple):
    """The part of the cache that a step reads and writes."""

    first: int  # slot of the first lane
    lanes: int  # number of lanes, in consecutive slots of the cache
    keys: int  # number of rows read from each slot


class Shape(NamedTuple):
    """The sizes of a :class:`TreeStep`."""

    window: Window
    rows: int  # number of rows fed for each lane
    width: int  # number of uncommitted rows that may be visible, including those fed; a multiple of 8
    hidden: bool  # whether hidden states are returned


class TokenChoice(NamedTuple):
    """The results that a step computes from its logits, for a verifier and a drafter."""

    law: object  # the verifier's law, which identifies its token rule
    learned: int  # number of top tokens per row that drafters learn
    positions: int  # number of positions with noise, starting at the next token; 0 for no noise


class Step(ABC):
    """Passes over a window of the cache. All tensors keep their addresses, so that a CUDA graph can replay them.

    Args:
        runtime: a graphed runtime.
        given: input arrays, except those of the deferred commit, which are added here.
        results: arrays that are copied to the host at the end.
        rows: number of rows with logits for each lane.
        positions: number of positions with noise.
    """

    hidden: torch.Tensor | None = None  # [lanes, rows, d] input of the output layer; None if not kept

    def __init__(self, runtime: Any, window: Window, given: Arrays, results: Arrays, rows: int, positions: int) -> None:
        self.window = window
        self._runtime = runtime
        self.cache: StaticSlots = runtime.cache
        self.attention: str = runtime.attention  # name of the attention function
        moves = ((window.lanes, MOVES), INT)
        self._inputs = Buffer({**given, "moved": moves, "moved_to": moves}, runtime.device)
        self._results = Buffer(results, runtime.device)
        self._key_rows = torch.arange(window.keys, device=runtime.device)
        size = (window.lanes, rows, runtime.vocab_size)  # of the logits
        self.logits = torch.zeros(size, dtype=runtime.dtype, device=runtime.device)
        # [lanes, positions, V] noise that is added to scores
        self.noise = torch.zeros((window.lanes, positions, runtime.vocab_size), device=runtime.device)
        self.clear()
        self.send()

    @abstractmethod
    def run(self) -> None:
        """Compute the results. Only tensors and fixed sizes may be used, because a graph freezes all other values."""

    def clear(self) -> None:
        """Make every lane idle, so that its rows are written to the spare row of its slot."""
        for name, array in self._inputs.host.items():
            array.fill(self.cache.capacity if name in ("moved", "moved_to", "written") else 0)

    def stage(self, lane: int, moves: Sequence[tuple[int, int]]) -> None:
        """Set the row moves ``(from, to)`` of a lane's deferred commit."""
        for place, names in enumerate(moves):
            for name, row in zip(("moved", "moved_to"), names, strict=True):
                self._inputs.host[name][lane, place] = row

    def send(self) -> None:
        """Copy the inputs to the device."""
        self._inputs.send()

    def _move_rows(self) -> None:
        """Carry out the deferred commit."""
        first, lanes, _ = self.window
        given = self._inputs.device
        rows = self.cache.storage[:, first : first + lanes]  # [2 * layers, lanes, heads, capacity + 1, d]
        size = (rows.shape[0], lanes, rows.shape[2], MOVES, rows.shape[4])
        source, target = (given[name][None, :, None, :, None].expand(size) for name in ("moved", "moved_to"))
        rows.scatter_(3, target, rows.gather(3, source))  # reads all rows before writing any

    def _pass(
        self,
        tokens: torch.Tensor,  # [lanes, rows]
        positions: torch.Tensor,  # [lanes, rows]
        written: torch.Tensor,  # [lanes, rows] row of the cache that each row is written to
        among: torch.Tensor,  # [lanes, rows, width] which uncommitted rows are visible
        base: torch.Tensor,  # [lanes, 1] number of committed rows, which are all visible
        pass_rows: torch.Tensor | None = None,  # [lanes, rows] the row with each result; None if the order is kept
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits ``[lanes, rows, V]`` and hidden states ``[lanes, rows, d]``."""
        first, lanes, keys = self.window
        width = among.shape[2]
        behind = self._key_rows - base  # [lanes, keys] index of a key among the uncommitted rows
        index = behind.clamp(0, width - 1)[:, None].expand(lanes, tokens.shape[1], keys)
        uncommitted = ((behind >= 0) & (behind < width))[:, None]
        visible = (behind < 0)[:, None] | (uncommitted & among.gather(2, index))  # [lanes, rows, keys]
        self.cache.open_window(first, lanes, keys, written)
        states = self._runtime.states(tokens, positions, visible, self.attention)
        if pass_rows is not None:
            states = states.gather(1, pass_rows[..., None].expand_as(states))
        return self._runtime.head(states), states

    def outputs(self) -> list[torch.Tensor]:
        """Return the tensors that every replay overwrites."""
        found = [self.logits, self._results.on_device, self._results.on_host]
        return found if self.hidden is None else [*found, self.hidden]

    def nbytes(self) -> int:
        """Return the size in bytes of the step's buffers on the device."""
        buffers = (self.logits, self.hidden, self.noise, self._key_rows)
        bytes_of = sum(tensor.nbytes for tensor in buffers if tensor is not None)
        return bytes_of + self._inputs.on_device.nbytes + self._results.on_device.nbytes


class TreeStep(Step):
    """One pass per lane, over a tree or new rows of a growing tree. Without ``choice``, it computes only logits."""

    def __init__(
        self,
        shape: Shape,
        runtime: Any,
        choice: TokenChoice | None = None,
        verifier: TokenRule | None = None,
    ) -> None:
        self.shape = shape
        self.choice = choice
        self._verifier = verifier
        lanes, rows = shape.window.lanes, shape.rows
        sizes = {"tokens": rows, "positions": rows, "written": rows, "pass_rows": rows, "base": 1}
        given: Arrays = {name: ((lanes, size), INT) for name, size in sizes.items()}
        # masks are sent as bits, lowest first: 8 KiB for 256 rows that attend to each other
        given["visible"] = ((lanes, rows, shape.width // 8), np.dtype(np.uint8))
        positions, learned = (0, 0) if choice is None else (choice.positions, choice.learned)
        results: Arrays = {
            "tokens": ((lanes, rows), INT),
            "learned": ((lanes, rows, learned), INT),
            "highest": ((lanes, rows), FLOAT),
            "learned_logits": ((lanes, rows, learned), FLOAT),
        }
        self._bit = torch.arange(8, device=runtime.device, dtype=torch.uint8)
        if shape.hidden:
            width = runtime.model.config.get_text_config().hidden_size
            self.hidden = torch.zeros((lanes, rows, width), dtype=runtime.dtype, device=runtime.device)
        super().__init__(runtime, shape.window, given, {} if choice is None else results, rows, positions)

    @override
    def clear(self) -> None:
        super().clear()
        self._inputs.host["visible"][..., 0] = 1  # a softmax over an empty set of keys is NaN

    def fill(self, lane: int, past: int, growth: Growth) -> None:
        """Set the new rows of a lane. They follow ``past`` committed tokens and the earlier uncommitted rows."""
        given, size = self._inputs.host, growth.tokens.size
        start = past + growth.visible.shape[1] - size
        given["tokens"][lane, :size] = growth.tokens
        given["positions"][lane] = past
        given["positions"][lane, :size] += growth.depths
        given["written"][lane, :size] = np.arange(start, start + size)
        given["pass_rows"][lane, :size] = np.arange(size) if growth.pass_rows is None else growth.pass_rows
        given["base"][lane] = past
        packed = np.packbits(growth.visible, axis=1, bitorder="little")
        given["visible"][lane, :size] = 0
        given["visible"][lane, :size, : packed.shape[1]] = packed

    @override
    def run(self) -> None:
        """Carry out the deferred commit, feed the rows, and compute the results from the logits."""
        self._move_rows()
        given = self._inputs.device
        among = (given["visible"][..., None] >> self._bit & 1).flatten(2).bool()  # [lanes, rows, width]
        logits, states = self._pass(
            given["tokens"], given["positions"], given["written"], among, given["base"], given["pass_rows"]
        )
        self.logits.copy_(logits)
        if self.hidden is not None:
            self.hidden.copy_(states)
        if self.choice is not None:
            self._choose(self.choice, given["positions"].gather(1, given["pass_rows"]) - given["base"])

    def _choose(self, choice: TokenChoice, depths: torch.Tensor) -> None:
        """Compute the results for verifier and drafter. ``depths [lanes, rows]`` selects the noise."""
        assert self._verifier is not None
        lanes, rows, size = self.logits.shape
        noise = None
        if choice.positions:  # noise is drawn per position, so rows of one depth share it
            index = depths.clamp(max=choice.positions - 1)[..., None].expand(lanes, rows, size)
            noise = self.noise.gather(1, index).flatten(0, 1)
        scores: Any = self._verifier.scores(self.logits.flatten(0, 1), noise)
        highest, tokens = scores.max(-1)
        results = self._results.device
        results["tokens"].copy_(tokens.view(lanes, rows))
        results["highest"].copy_(highest.view(lanes, rows))
        if choice.learned:
            values, indices = self.logits.topk(choice.learned, dim=-1)
            results["learned"].copy_(indices)
            results["learned_logits"].copy_(values)
        self._results.fetch()

    def tokens(self, lane: int, rows: int) -> TargetTokens:
        """Return a lane's tokens. They are valid after the device has finished, until the next replay."""
        found = {name: array[lane, :rows] for name, array in self._results.host.items()}
        learned = self.choice is not None and self.choice.learned
        top = (found["learned"], found["learned_logits"]) if learned else None
        return TargetTokens(found["tokens"], found["highest"], top)


class Buffer:
    """Several arrays in one block of memory on both host and device, so that one copy transfers them all."""

    def __init__(self, arrays: Arrays, device: torch.device) -> None:
        size = sum(int(np.prod(shape)) * kind.itemsize for shape, kind in arrays.values())
        pinned = device.type == "cuda" and torch.cuda.is_available()  # tests of shapes run without CUDA
        bytes_of = torch.zeros(size, dtype=torch.uint8, pin_memory=True).numpy() if pinned else np.zeros(size, np.uint8)
        self.on_host = torch.from_numpy(bytes_of)
        self.on_device = torch.zeros(size, dtype=torch.uint8, device=device)
        self.host: dict[str, NDArray[Any]] = {}  # by name, in pinned memory on CUDA
        self.device: dict[str, torch.Tensor] = {}  # the same bytes on the device
        start = 0
        # the widest dtypes come first, so that each array starts at a multiple of its item size
        for name, (shape, kind) in sorted(arrays.items(), key=lambda item: -item[1][1].itemsize):
            end = start + int(np.prod(shape)) * kind.itemsize
            self.host[name] = bytes_of[start:end].view(kind).reshape(shape)
            self.device[name] = self.on_device[start:end].view(getattr(torch, kind.name)).view(shape)
            start = end

    def send(self) -> None:
        """Copy the bytes from host to device asynchronously."""
        self.on_device.copy_(self.on_host, non_blocking=True)

    def fetch(self) -> None:
        """Copy the bytes from device to host asynchronously."""
        self.on_host.copy_(self.on_device, non_blocking=True)


class Replayer:
    """Runs a step repeatedly, by the step's own code. A subclass may capture it."""

    measures: ClassVar[bool] = False  # whether to time the attention functions with this class and use the fastest

    def __init__(self, step: Step) -> None:
        self.step = step

    @classmethod
    def reserve(cls, device: torch.device) -> None:
        """Reserve memory for captured graphs, before the size of the cache is chosen."""

    def replay(self) -> None:
        """Copy the inputs to the device and run the step."""
        self.step.send()
        self.step.run()


class GraphReplay(Replayer):
    """Replays a CUDA graph of the step, which is captured while every lane is idle."""

    measures = True
    _pool: ClassVar[Any] = None  # shared by all graphs, which never run at the same time
    _reserved: ClassVar[list[torch.Tensor] | None] = None

    def __init__(self, step: Step) -> None:
        super().__init__(step)
        if GraphReplay._reserved:  # freed now, because a capture cannot free cached memory
            GraphReplay._reserved.pop()
            torch.cuda.empty_cache()
        self._graph = torch.cuda.CUDAGraph()
        stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # libraries choose kernels and allocate before the capture
            for _ in range(2):
                step.run()
        torch.cuda.current_stream().wait_stream(stream)
        GraphReplay._pool = GraphReplay._pool or torch.cuda.graph_pool_handle()
        with torch.cuda.graph(self._graph, pool=GraphReplay._pool):
            step.run()

    @classmethod
    @override
    def reserve(cls, device: torch.device) -> None:
        """Reserve memory for the first graphs, at most a twentieth of the free memory, once per process."""
        if GraphReplay._reserved is None:
            free, _ = torch.cuda.mem_get_info(device)
            graphs = min(_GRAPHS, free // 20 // GRAPH_BYTES)
            GraphReplay._reserved = [torch.empty(GRAPH_BYTES, dtype=torch.uint8, device=device) for _ in range(graphs)]

    @override
    def replay(self) -> None:
        self.step.send()
        self._graph.replay()
