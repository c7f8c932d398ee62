"""``pair.mode: graphed``: passes of static shapes that a CUDA graph replays, for any full-attention decoder.

A pass is one :class:`Step` for its bucket of lanes, rows and keys. All that changes between two passes is data in one
input buffer: tokens, positions, the rows of the cache that are written, who sees whom, and the accepted rows of the
pass before, which are moved together first (a *deferred commit*). So a pass is one copy to the device and one replay.
The same code runs uncaptured on any device, which is how it is tested.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AttentionInterface, Cache, PreTrainedModel
from typing_extensions import override

from specexp.core.cache import SlotLayer, additive_mask, check_attention, context_limit
from specexp.core.language_model import tolerance, tree_error
from specexp.core.runtime import Growth, Runtime, Slots, check_model, inference
from specexp.core.tree import TokenTree

MOVES = 16
"""Accepted rows of a lane that a step can move; of a longer path they are moved before it."""
_KEYS = 512
_PREFILL_CHUNK = 512
_ATTENTION = "specexp_packed"


def bucket(count: int, least: int = 1) -> int:
    """Return the power of two that holds a count."""
    return max(least, 1 << max(count - 1, 0).bit_length())


def key_bucket(count: int) -> int:
    """Return the number of keys that a step reads: 512 times a power of two."""
    return _KEYS * bucket(-(-count // _KEYS))


class StaticSlots(Cache, Slots):  # type: ignore[misc]
    """Keys and values of several slots, written at rows that a tensor names.

    One more row than the capacity takes what padding writes.

    Attributes:
        storage: ``[2 * layers, slots, heads, capacity + 1, head_dim]``; another tensor after :meth:`reserve`.
        moves: by slot, the rows ``[(from, to), ...]`` that the next pass moves.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        text = model.config.get_text_config()
        heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
        width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        layers = text.num_hidden_layers
        shape = (2 * layers, 1, heads, 1, width)
        self.storage = torch.zeros(shape, dtype=model.dtype, device=model.device)
        self.lengths = [0]
        self.uncommitted = [0]
        self.moves: dict[int, list[tuple[int, int]]] = {}
        super().__init__(layers=[_StaticLayer(self, layer) for layer in range(layers)])

    @property
    def capacity(self) -> int:
        """Rows a slot has room for."""
        return int(self.storage.shape[3]) - 1

    @property
    def slots(self) -> int:
        """Number of slots."""
        return int(self.storage.shape[1])

    @override
    @inference
    def reserve(self, capacity: int, slots: int = 1) -> None:
        if capacity <= self.capacity and slots <= self.slots:
            return
        self.flush(range(self.slots))
        old, rows = self.storage, self.capacity
        capacity, slots = max(key_bucket(capacity), rows), max(slots, self.slots)
        self.storage = old.new_zeros((old.shape[0], slots, old.shape[2], capacity + 1, old.shape[4]))
        self.storage[:, : old.shape[1], :, :rows] = old[:, :, :, :rows]
        self.lengths += [0] * (slots - len(self.lengths))
        self.uncommitted += [0] * (slots - len(self.uncommitted))

    @override
    def commit(self, slot: int, rows: Sequence[int]) -> None:
        past = self.lengths[slot]
        moved = [(past + row, past + place) for place, row in enumerate(rows) if row != place]
        if moved:
            self.moves[slot] = moved
        self.lengths[slot] = past + len(rows)
        self.uncommitted[slot] = 0

    @inference
    def flush(self, slots: Sequence[int]) -> None:
        """Move what is staged in these slots now."""
        for slot in slots:
            moved = self.moves.pop(slot, [])
            if moved:
                sources, places = torch.tensor(moved, device=self.storage.device).T
                self.storage[:, slot, :, places] = self.storage[:, slot, :, sources]

    @override
    def truncate(self, slot: int, length: int) -> None:
        self.flush([slot])
        if length < self.lengths[slot]:
            self.lengths[slot] = length
        self.uncommitted[slot] = 0

    @override
    @inference
    def fork(self, source: int, target: int, length: int) -> None:
        self.flush([source])
        self.moves.pop(target, None)
        self.storage[:, target, :, :length] = self.storage[:, source, :, :length]
        self.lengths[target] = length
        self.uncommitted[target] = 0

    @override
    def nbytes(self) -> int:
        return self.storage.nbytes

    def open(self, first: int, lanes: int, keys: int, written: torch.Tensor) -> None:
        """Name the window of the next forward pass, and the rows ``[lanes, rows]`` that it writes."""
        self._window, self._written = (first, lanes, keys), written

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Write ``[lanes, heads, rows, head_dim]``; return the window's keys and values."""
        first, lanes, end = self._window
        rows = self._written[:, None, :, None].expand(keys.shape)
        found = []
        for kind, new in enumerate((keys, values)):
            window = self.storage[2 * layer + kind, first : first + lanes]
            window.scatter_(2, rows, new)
            found.append(window[:, :, :end])
        return tuple(found)


class _StaticLayer(SlotLayer):
    """One layer of :class:`StaticSlots`; positions and mask are given, and a length would be baked into the graph."""

    @override
    def get_seq_length(self) -> int:
        return 0

    @override
    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, 0


class GraphedModel(Runtime):
    """A decoder whose passes have static shapes.

    Args:
        model: the model, in eval mode, loaded with ``attn_implementation`` ``sdpa`` or ``eager``.
        replayer: how a step is run again; captured graphs on CUDA, and else the step's own code.
        self_check: compare one small tree pass with the model's own passes over the same tokens.

    Raises:
        ValueError: the model is in training mode, is no decoder with full attention, or fails the self-check.
    """

    kind = "graphed"
    mode_rank = -1  # by name alone, until it has been measured on a GPU
    cache: StaticSlots

    def __init__(
        self, model: PreTrainedModel, replayer: type[Replayer] | None = None, *, self_check: bool = True
    ) -> None:
        super().__init__()
        check_model(model)
        check_attention(model.config)
        if model.training:
            raise ValueError(
                f"the {model.config.model_type} model is in training mode: call model.eval() first"
            )
        self.model = model
        self.device, self.dtype = model.device, model.dtype
        self.vocab_size: int = model.config.get_text_config().vocab_size
        self.context_limit = context_limit(model.config)
        self._static = _with_packed_attention(model)
        self._kind = replayer or EagerReplay
        self.cache = StaticSlots(model)
        self._storage = self.cache.storage
        self._steps: dict[Shape, Replayer] = {}
        if self_check:
            error = tree_error(self)
            self.cache.truncate(0, 0)
            self.passes = 0
            if not error <= tolerance(self.dtype):
                raise ValueError(
                    f"the {model.config.model_type} model failed the self-check of its graphed pass (the logits of a "
                    f"tree differ from its own by {error:.2g} of their spread): run it with pair.mode eager"
                )

    @classmethod
    @override
    def run(cls, model: PreTrainedModel) -> GraphedModel:
        return cls(model, GraphReplay if model.device.type == "cuda" else EagerReplay)

    @override
    @inference
    def prefill(
        self, slot: int, token_ids: Sequence[int], *, all_logits: bool = False
    ) -> torch.Tensor | None:
        kept: list[torch.Tensor] = []
        hidden: list[torch.Tensor] = []
        self.cache.reserve(
            self.cache.lengths[slot] + len(token_ids) if slot < self.cache.slots else len(token_ids), slot + 1
        )
        self.cache.flush([slot])
        for start in range(0, len(token_ids), _PREFILL_CHUNK):
            chunk = list(token_ids[start : start + _PREFILL_CHUNK])
            past = self.cache.lengths[slot]
            rows = torch.arange(past, past + len(chunk), device=self.device)[None]
            visible = torch.arange(past + len(chunk), device=self.device)[None, None] <= rows[..., None]
            self.cache.open(slot, 1, past + len(chunk), rows)
            logits, states = self.forward(torch.tensor([chunk], device=self.device), rows, visible)
            self.cache.lengths[slot] += len(chunk)
            self.passes += 1
            if all_logits:
                kept.append(logits[0])
            if self.keeps_hidden:
                hidden.append(states[0])
        self.hidden = (torch.cat(hidden),) if hidden else ()
        return torch.cat(kept) if kept else None

    @override
    @inference
    def tree_pass(self, slots: Sequence[int], trees: Sequence[TokenTree]) -> list[torch.Tensor]:
        for slot in slots:
            if slot < self.cache.slots:
                self.cache.uncommitted[slot] = 0
        fed = [(tree.tokens, tree.shape.depths, tree.shape.ancestor_mask) for tree in trees]
        logits, states = self._pass(slots, fed)
        self.hidden = tuple(states)
        return logits

    @override
    @inference
    def grow(self, slots: Sequence[int], growths: Sequence[Growth]) -> list[torch.Tensor]:
        fed = [(growth.tokens, growth.depths, growth.visible) for growth in growths]
        logits, _ = self._pass(slots, fed)
        for slot, growth in zip(slots, growths, strict=True):
            self.cache.uncommitted[slot] += growth.tokens.size
        return logits

    def _pass(
        self, slots: Sequence[int], fed: Sequence[tuple[NDArray[Any], NDArray[Any], NDArray[np.bool_]]]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Replay one step.

        Args:
            slots: distinct slots.
            fed: for each the new tokens ``[m]``, their depths ``[m]``, and who sees whom ``[m, u + m]`` behind the
                ``u`` uncommitted rows.

        Returns:
            For each slot logits ``[m, V]``, and hidden states ``[m, d]`` where they are kept.
        """
        cache, first = self.cache, min(slots)
        lanes = bucket(max(slots) - first + 1)
        rows = bucket(max(tokens.size for tokens, _, _ in fed))
        width = bucket(max(visible.shape[1] for _, _, visible in fed), 8)
        cache.reserve(0, first + lanes)
        ends = [
            cache.lengths[slot] + visible.shape[1] for slot, (_, _, visible) in zip(slots, fed, strict=True)
        ]
        cache.reserve(max(ends))
        if cache.storage is not self._storage:  # graphs hold the one before
            self._steps.clear()
            self._storage = cache.storage
        for slot in slots:
            if len(cache.moves.get(slot, ())) > MOVES:
                cache.flush([slot])
        shape = Shape(
            first, lanes, rows, width, min(key_bucket(max(ends)), cache.capacity), self.keeps_hidden
        )
        replayer = self._steps.get(shape)
        if replayer is None:
            step = Step(shape, self)
            replayer = self._steps[shape] = self._kind(step)
        step = replayer.step
        step.clear(cache.capacity)
        for slot, (tokens, depths, visible) in zip(slots, fed, strict=True):
            past = cache.lengths[slot]
            step.fill(slot - first, past, past + visible.shape[1] - tokens.size, tokens, depths, visible)
            step.move(slot - first, cache.moves.pop(slot, []))
        replayer.replay()
        self.passes += 1
        sizes = [(slot - first, tokens.size) for slot, (tokens, _, _) in zip(slots, fed, strict=True)]
        logits = [step.logits[lane, :size].clone() for lane, size in sizes]
        hidden = step.hidden
        return logits, [] if hidden is None else [hidden[lane, :size].clone() for lane, size in sizes]

    def forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, visible: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the model's own layers over ``[lanes, rows]``; the cache's window is open.

        Returns:
            Logits ``[lanes, rows, V]``, and what the output layer reads ``[lanes, rows, d]``.
        """
        states: torch.Tensor = self._static.base_model(
            input_ids=tokens,
            position_ids=positions,
            attention_mask=additive_mask(visible[:, None], self.dtype),
            past_key_values=self.cache,
            use_cache=True,
        )[0]
        head: Any = self._static.get_output_embeddings()
        return head(states), states

    @override
    def keep_hidden(self, wanted: bool) -> None:
        self.keeps_hidden = wanted

    def __deepcopy__(self, memo: dict[int, Any]) -> GraphedModel:
        """The same weights with an empty cache of its own."""
        return GraphedModel(self.model, self._kind, self_check=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return GraphedModel._of_weights, (self.model, self._kind)

    @staticmethod
    def _of_weights(model: PreTrainedModel, replayer: type[Replayer]) -> GraphedModel:
        return GraphedModel(model, replayer, self_check=False)

    @override
    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,  # [b, heads, rows, d]
    key: torch.Tensor,  # [b, kv heads, keys, d]
    value: torch.Tensor,
    attention_mask: torch.Tensor,  # [b, 1, rows, keys], additive
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attend with the query heads of a key head as further rows, so that keys are read once and never repeated."""
    lanes, heads, rows, width = query.shape
    groups = heads // key.shape[1]
    packed = query.reshape(lanes, key.shape[1], groups * rows, width)
    mask = attention_mask.expand(lanes, groups, rows, -1).reshape(lanes, 1, groups * rows, -1)
    answer = torch.nn.functional.scaled_dot_product_attention(packed, key, value, mask, scale=scaling)
    return answer.reshape(lanes, heads, rows, -1).transpose(1, 2).contiguous(), None


AttentionInterface.register(_ATTENTION, packed_attention)


def _with_packed_attention(model: PreTrainedModel) -> PreTrainedModel:
    """Return modules with another attention around the same weights."""
    shared: dict[int, Any] = {id(one): one for one in (*model.parameters(), *model.buffers())}
    other = copy.deepcopy(model, shared)
    other.config._attn_implementation = _ATTENTION
    return other


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


class GraphReplay(Replayer):
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
