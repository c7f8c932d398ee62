"""A KV cache for captured passes, which takes the rows to write from a tensor, and its attention functions."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface, PreTrainedModel
from typing_extensions import override

from specexp.core.cache import BLOCK, SlotCache, SlotLayer
from specexp.core.runtime import inference

_KEYS = 512  # smallest bucket of keys


def bucket(count: int, least: int = 1) -> int:
    """Return the smallest power of two that is at least both ``count`` and ``least``."""
    return max(least, 1 << max(count - 1, 0).bit_length())


def key_bucket(count: int) -> int:
    """Return the number of keys that a step reads to cover ``count`` keys: 512 times a power of two."""
    return _KEYS * bucket(-(-count // _KEYS))


class _StaticLayer(SlotLayer):
    """One layer of :class:`StaticSlots`. It reports length 0, because a real length would be baked into the graph."""

    @override
    def get_seq_length(self) -> int:
        return 0


class StaticSlots(SlotCache):
    """A slot cache for captured passes. A tensor specifies the rows that a pass writes.

    Each slot has one spare row beyond its capacity, where padding is written.
    """

    layer_type = _StaticLayer

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model.config, model.dtype, model.device)
        self.moves: dict[int, list[tuple[int, int]]] = {}  # by slot: the rows (from, to) that the next pass moves

    @override
    def _shape(self, slots: int, capacity: int) -> tuple[int, ...]:
        return super()._shape(slots, capacity + 1)

    @property
    @override
    def capacity(self) -> int:
        """Number of rows in each slot, without the spare row."""
        return super().capacity - 1

    @override
    def reserve(self, capacity: int, slots: int = 1) -> None:
        if capacity > self.capacity or slots > self.slots:
            self.flush(range(self.slots))
            super().reserve(max(key_bucket(capacity), self.capacity), slots)

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
        super().truncate(slot, length)

    @override
    def fork(self, source: int, target: int, length: int) -> None:
        self.flush([source])
        self.moves.pop(target, None)  # its rows are overwritten anyway
        super().fork(source, target, length)

    def open_window(self, first: int, lanes: int, keys: int, written: torch.Tensor) -> None:
        """Set the window of slots and keys for the next forward pass, and the cache rows ``[lanes, rows]`` to fill."""
        self._window = (first, lanes, keys)
        self._written = written

    @override
    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write a layer's keys and values ``[lanes, heads, rows, head_dim]`` and return those of the whole window."""
        first, lanes, end = self._window
        rows = self._written[:, None, :, None].expand(keys.shape)  # [lanes, heads, rows, head_dim]
        stored_keys, stored_values = (self.storage[2 * layer + kind, first : first + lanes] for kind in (0, 1))
        stored_keys.scatter_(2, rows, keys)  # row numbers are tensor data, so a graph can replay the write
        stored_values.scatter_(2, rows, values)
        return stored_keys[:, :, :end], stored_values[:, :, :end]


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
