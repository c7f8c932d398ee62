"""A KV cache for captured passes, which takes the rows to write from a tensor, and its attention functions."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface, Cache, PreTrainedModel
from typing_extensions import override

from specexp.core.cache import BLOCK, SlotLayer
from specexp.core.runtime import Slots, inference

_KEYS = 512  # smallest bucket of keys


def bucket(count: int, least: int = 1) -> int:
    """Return the smallest power of two that is at least both ``count`` and ``least``."""
    return max(least, 1 << max(count - 1, 0).bit_length())


def key_bucket(count: int) -> int:
    """Return the number of keys that a step reads to cover ``count`` keys: 512 times a power of two."""
    return _KEYS * bucket(-(-count // _KEYS))


class StaticSlots(Cache, Slots):  # type: ignore[misc]
    """The keys and values of several slots. A tensor specifies the rows that a pass writes.

    Each slot has one spare row beyond its capacity, where padding is written.

    Attributes:
        storage: ``[2 * layers, slots, heads, capacity + 1, head_dim]``; replaced when :meth:`reserve` grows the cache.
        moves: for each slot, the rows ``[(from, to), ...]`` that the next pass moves.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        text = model.config.get_text_config()
        heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
        width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        layers = text.num_hidden_layers
        shape = (2 * layers, 1, heads, 1, width)  # keys of layer i at 2 i, its values at 2 i + 1
        self.storage = torch.zeros(shape, dtype=model.dtype, device=model.device)
        self.lengths = [0]
        self.moves: dict[int, list[tuple[int, int]]] = {}
        super().__init__(layers=[_StaticLayer(self, layer) for layer in range(layers)])

    @property
    def capacity(self) -> int:
        """Number of rows in each slot, without the spare row."""
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

    @override
    def commit(self, slot: int, rows: Sequence[int]) -> None:
        past = self.lengths[slot]
        moved = [(past + row, past + place) for place, row in enumerate(rows) if row != place]  # moved later
        if moved:
            self.moves[slot] = moved
        self.lengths[slot] = past + len(rows)

    @inference
    def flush(self, slots: Sequence[int]) -> None:
        """Carry out the staged moves of these slots now."""
        for slot in slots:
            moved = self.moves.pop(slot, [])
            if moved:
                sources, positions = torch.tensor(moved, device=self.storage.device).T
                self.storage[:, slot, :, positions] = self.storage[:, slot, :, sources]  # reads, then writes

    @override
    def truncate(self, slot: int, length: int) -> None:
        self.flush([slot])
        if length < self.lengths[slot]:
            self.lengths[slot] = length

    @override
    @inference
    def fork(self, source: int, target: int, length: int) -> None:
        self.flush([source])
        self.moves.pop(target, None)  # its rows are overwritten anyway
        self.storage[:, target, :, :length] = self.storage[:, source, :, :length]
        self.lengths[target] = length

    @override
    def nbytes(self) -> int:
        return self.storage.nbytes

    def open(self, first: int, lanes: int, keys: int, written: torch.Tensor) -> None:
        """Set the window of slots and keys for the next forward pass, and the cache rows ``[lanes, rows]`` to fill."""
        self._window, self._written = (first, lanes, keys), written

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Write a layer's keys and values ``[lanes, heads, rows, head_dim]`` and return those of the whole window."""
        first, lanes, end = self._window
        rows = self._written[:, None, :, None].expand(keys.shape)  # [lanes, heads, rows, head_dim]
        found = []
        for kind, new in enumerate((keys, values)):
            window = self.storage[2 * layer + kind, first : first + lanes]
            window.scatter_(2, rows, new)  # row numbers are tensor data, so a graph can replay the write
            found.append(window[:, :, :end])
        return tuple(found)


class _StaticLayer(SlotLayer):
    """One layer of :class:`StaticSlots`. It reports length 0, because a real length would be baked into the graph."""

    @override
    def get_seq_length(self) -> int:
        return 0

    @override
    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, 0


# Attention functions take q [b, heads, m, d], k and v [b, kv heads, n, d] and an additive mask [b, 1, m, n].


def explicit_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    scale: float,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute attention as two matrix products with a float32 softmax between them, as a reference for the others.

    Args:
        softcap: limit of the scores' size, as in Gemma 2.
        s_aux: ``[heads]`` score of each head's sink, as in gpt-oss. A sink takes weight, but has no value.
    """
    groups = query.shape[1] // key.shape[1]
    packed, tiled = _packed(query, groups), mask.repeat(1, 1, groups, 1)
    scores = (packed @ key.transpose(2, 3)).float() * scale
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()
    scores = scores + tiled  # [b, kv heads, g * m, n]
    if s_aux is not None:
        sinks = s_aux.view(1, -1, groups, 1).expand(len(query), -1, -1, query.shape[2])
        scores = torch.cat((scores, sinks.flatten(2)[..., None].float()), dim=-1)
    weights = scores.softmax(-1)[..., : key.shape[2]]
    return (weights.to(value.dtype) @ value).reshape(query.shape)


def packed_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scale: float
) -> torch.Tensor:
    """Run SDPA with the query heads of each key head stacked as rows, so that keys are read once, not repeated."""
    groups = query.shape[1] // key.shape[1]
    packed, tiled = _packed(query, groups), mask.repeat(1, 1, groups, 1)
    return F.scaled_dot_product_attention(packed, key, value, tiled, scale=scale).reshape(query.shape)


def flex_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, scale: float
) -> torch.Tensor:
    """Run FlexAttention over the blocks of a :func:`~specexp.core.cache.block_mask`. Each shape has its own kernel."""
    from torch.nn.attention import flex_attention as flex

    run: Callable[..., Any] = flex.flex_attention
    options = None
    if query.device.type == "cuda":
        run = torch.compile(run, dynamic=False, fullgraph=True)
        options = {"BLOCK_M": BLOCK, "BLOCK_N": BLOCK, "FORCE_USE_FLEX_ATTENTION": True}
    more = {"scale": scale, "enable_gqa": True, "kernel_options": options}
    answer: torch.Tensor = run(query, key, value, block_mask=mask, **more)
    return answer


def _packed(query: torch.Tensor, groups: int) -> torch.Tensor:
    """Return queries as ``[b, kv heads, groups * m, d]``."""
    lanes, heads, rows, width = query.shape
    return query.reshape(lanes, heads // groups, groups * rows, width)


ATTENTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "packed": packed_attention,
    "explicit": explicit_attention,
    "flex": flex_attention,
}
"""Attention functions, keyed by name. The first is the default."""
_INTERFACE = "specexp_static"


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    scaling: float | None = None,
    attention: str = "packed",
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Implement the attention interface of transformers, which passes on ``attention``, the name of a function."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    more = {name: kwargs[name] for name in ("softcap", "s_aux") if kwargs.get(name) is not None}
    answer = ATTENTIONS[attention](query, key, value, attention_mask, scale, **more)
    return answer.transpose(1, 2).contiguous(), None


AttentionInterface.register(_INTERFACE, _attend)


def with_static_attention(model: PreTrainedModel) -> PreTrainedModel:
    """Return a copy that shares the weights and takes ``attention``, a key of :data:`ATTENTIONS`, when called."""
    shared: dict[int, Any] = {id(one): one for one in (*model.parameters(), *model.buffers())}
    other = copy.deepcopy(model, shared)
    other.config._attn_implementation = _INTERFACE
    return other
