"""A preallocated KV cache with slots, which commits tree passes in place, and the attention masks for these passes.

Caches in ``transformers`` can only grow or be cropped, but a tree pass appends the root and all nodes, and afterwards
only the accepted rows are kept. Each *slot* holds one sequence. All layers' keys and values share one tensor, so one
copy moves them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, ClassVar

import torch
from transformers import Cache, PreTrainedConfig
from transformers.cache_utils import CacheLayerMixin
from typing_extensions import override

from specexp.core.runtime import Slots, inference

SUPPORTED_ATTENTION = ("sdpa", "eager")
_RESTORED = "after a rejected draft {} would have to be restored"
_BY_ROW = "they count cache rows, which are not the positions of a tree's nodes"
_REASONS = {
    **dict.fromkeys(
        ("linear_attention", "hybrid", "hybrid_sliding", "recurrence"),
        _RESTORED.format("the recurrent state"),
    ),
    "conv": _RESTORED.format("the last inputs of the convolution"),
    **dict.fromkeys(("local attention", "queries scaled by cache row"), _BY_ROW),
}
"""Reasons for refusing layers, by type. For all other types, no tree mask is known."""
_KEPT = {"full_attention", "sliding_attention", "mlp", "moe", "dense", "sparse"}
"""Types of layers that differ only in their masks, or that mix no tokens."""
BLOCK = 32
"""Rows and keys per block of :func:`block_mask`, as in DySpec (appendix C)."""


def check_attention(config: PreTrainedConfig) -> None:
    """Raise ``ValueError`` if a model's attention does not accept a tree mask, or if a layer cannot be rolled back."""
    check_layers(config)
    implementation = config._attn_implementation
    if implementation not in SUPPORTED_ATTENTION:
        model_type = config.get_text_config().model_type
        raise ValueError(
            f"attn_implementation {implementation!r} does not accept a tree mask: load the {model_type} model with "
            "'sdpa' or 'eager'"
        )


def check_layers(config: PreTrainedConfig) -> None:
    """Raise ``ValueError`` if a layer cannot be rolled back, regardless of the attention implementation."""
    text = config.get_text_config()
    if config.is_encoder_decoder:
        raise ValueError(
            f"the {config.model_type} model is an encoder-decoder: use a decoder-only causal language model"
        )
    layers = list(getattr(text, "layer_types", None) or ())
    if not layers and getattr(text, "num_attention_heads", None) is None:
        layers = ["recurrence"]
    kinds = {kind: layers.index(kind) for kind in layers if kind not in _KEPT}
    if "local" in (local := getattr(text, "attention_layers", None) or ()):  # GPT-Neo masks inside its layers
        kinds["local attention"] = local.index("local")
    if getattr(text, "attn_temperature_tuning", False) and 0 in text.no_rope_layers:  # Llama 4
        kinds["queries scaled by cache row"] = text.no_rope_layers.index(0)
    if kinds:
        reasons = {_REASONS.get(kind, "no tree mask is known for them") for kind in kinds}
        found = ", ".join(f"{kind} in layer {kinds[kind]}" for kind in sorted(kinds))
        raise ValueError(
            f"the {text.model_type} model has layers that cannot take trees ({found}): "
            f"{' and '.join(sorted(reasons))}, so use a model with full attention or sliding windows in every layer"
        )


Windows = Mapping[str | None, int | None]
"""For each type of layer, the number of tokens that a row attends to, with its own; None means full attention. The only
key is None if all layers share one mask.
"""


def layer_windows(config: PreTrainedConfig) -> Windows:
    """Return a model's windows. As in transformers, a model has one mask per layer type if it names the types."""
    text = config.get_text_config()
    size = getattr(text, "sliding_window", None)
    if not size or size >= (getattr(text, "max_position_embeddings", None) or inf):  # it never slides
        return {None: None}
    kinds = getattr(text, "layer_types", None)
    if kinds is None:
        return {None: size}
    windows = {kind: size if kind == "sliding_attention" else None for kind in kinds}
    return windows if any(windows.values()) else {None: None}


def context_limit(config: PreTrainedConfig) -> int:
    """Return a model's maximum number of positions; raises ``ValueError`` if none is configured, as with ALiBi.

    With ``longrope``, this is the original limit. If one position of a pass exceeds it, the long factors apply to the
    whole pass, so cached keys and logits would depend on the depth of a tree.
    """
    text = config.get_text_config()
    limit = getattr(text, "max_position_embeddings", None)
    if not isinstance(limit, int):
        raise ValueError(
            f"the configuration of the {text.model_type} model states no max_position_embeddings, as with ALiBi: use "
            "a decoder with full attention, and positions that are learned or rotary"
        )
    parameters: Mapping[str, Any] = getattr(text, "rope_parameters", None) or {}
    by_layer_type = [value for value in parameters.values() if isinstance(value, Mapping)]
    ropes = [rope for rope in by_layer_type or [parameters] if rope.get("rope_type") == "longrope"]
    return min([limit, *(int(rope["original_max_position_embeddings"]) for rope in ropes)])


def additive_mask(visible: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Convert a boolean mask ``[b, 1, q, k]`` to an additive mask: 0 where true, else the lowest finite value.

    A boolean 4-D mask works with ``sdpa``, but gives wrong results with ``eager``, which adds it to the scores.
    """
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, torch.finfo(dtype).min)


def windowed(visible: torch.Tensor, window: int | None) -> torch.Tensor:
    """Return a boolean mask ``[..., q, k]`` without the keys outside a window.

    A row's visible keys are its path in order, so the number of later ones is a key's distance. Columns are further
    apart, because siblings lie between them.
    """
    return visible if window is None else visible & (visible.sum(-1, True) - visible.cumsum(-1) < window)


def layer_masks(visible: torch.Tensor, windows: Windows, mask_of: Callable[[torch.Tensor], Any]) -> Any:
    """Return a model's ``attention_mask``: ``mask_of`` of a boolean mask, or one for each type of layer."""
    masks = {kind: mask_of(windowed(visible, window)) for kind, window in windows.items()}
    return masks.get(None, masks)


def block_mask(mask: torch.Tensor) -> Any:
    """Return FlexAttention's ``BlockMask`` for an additive mask ``[b, 1, q, k]``; it skips blocks with no visible key.

    All of its sizes derive from the mask's shape, so it can be built inside a captured graph.
    """
    from torch.nn.attention.flex_attention import BlockMask

    rows, keys = mask.shape[2:]
    visible = mask == 0
    whole = torch.nn.functional.pad(visible, (0, -keys % BLOCK, 0, -rows % BLOCK))
    lanes, _, height, width = whole.shape
    blocks = whole.view(lanes, 1, height // BLOCK, BLOCK, width // BLOCK, BLOCK)
    occupied = blocks.any(5).any(3)  # [b, 1, q / 32, k / 32]
    chosen = occupied.int().argsort(dim=-1, descending=True, stable=True).int()  # occupied blocks first
    return BlockMask.from_kv_blocks(
        occupied.sum(-1, dtype=torch.int32),
        chosen,
        BLOCK_SIZE=BLOCK,
        mask_mod=lambda lane, head, row, key: visible[lane, 0, row, key],
        seq_lengths=(rows, keys),
    )


class SlotLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer's view of the shared storage. ``transformers`` calls :meth:`update` during a forward pass."""

    def __init__(self, owner: SlotCache, layer: int) -> None:
        super().__init__()
        self._owner = owner
        self._layer = layer
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Do nothing, because the storage is preallocated."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append ``[b, heads, rows, dim]`` to each open slot; return all keys and values up to the new rows."""
        return self._owner.write(self._layer, key_states, value_states)

    def get_seq_length(self) -> int:
        """Return the number of committed tokens in the first open slot."""
        return self._owner.lengths[self._owner._open[0]]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the key length and offset for a pass over ``query_length`` rows."""
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        """Return the number of rows per slot."""
        return self._owner.capacity


class SlotCache(Cache, Slots):  # type: ignore[misc]
    """A KV cache with one slot per sequence. It starts with one slot, which has no rows."""

    layer_type: ClassVar[type[SlotLayer]] = SlotLayer

    def __init__(self, config: PreTrainedConfig, dtype: torch.dtype, device: torch.device) -> None:
        text = config.get_text_config()
        self._formed = False  # heads and head_dim are the configured ones until the first pass corrects them
        self._heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
        self._head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        self._num_layers = text.num_hidden_layers
        # the keys, then the values of each layer; `reserve` replaces it
        self.storage = torch.zeros(self._shape(slots=1, capacity=0), dtype=dtype, device=device)
        self.lengths = [0]
        self.uncommitted = [0]  # rows of growing trees; the next pass writes after them
        self._open: tuple[int, ...] = (0,)
        super().__init__(layers=[self.layer_type(self, layer) for layer in range(self._num_layers)])

    def _shape(self, slots: int, capacity: int) -> tuple[int, ...]:
        # [keys and values of every layer, slots, heads, rows, head_dim]
        return (2 * self._num_layers, slots, self._heads, capacity, self._head_dim)

    @property
    def capacity(self) -> int:
        """Number of rows per slot."""
        return int(self.storage.shape[3])

    @property
    def slots(self) -> int:
        """Number of slots."""
        return int(self.storage.shape[1])

    @override
    @inference
    def reserve(self, capacity: int, slots: int = 1) -> None:
        if capacity <= self.capacity and slots <= self.slots:
            return
        old, rows = self.storage, self.capacity
        self.storage = old.new_zeros(self._shape(max(slots, self.slots), max(capacity, rows)))
        self.storage[:, : old.shape[1], :, :rows] = old[:, :, :, :rows]
        self.lengths += [0] * (self.slots - len(self.lengths))
        self.uncommitted += [0] * (self.slots - len(self.uncommitted))

    def open(self, slots: Sequence[int]) -> None:
        """Set the slots that the next forward pass uses, in batch order."""
        self._open = tuple(slots)

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Append ``[b, heads, rows, dim]`` to the open slots; return all keys and values up to the new rows."""
        self._take_form(keys.shape[1], max(keys.shape[3], values.shape[3]))
        rows = keys.shape[2]
        starts = [self.lengths[slot] + self.uncommitted[slot] for slot in self._open]
        end = max(starts) + rows
        if end > self.capacity:
            raise ValueError(f"the KV cache has {self.capacity} rows per slot; {end} must be reserved")
        stored_keys = self.storage[2 * layer, ..., : keys.shape[3]]
        stored_values = self.storage[2 * layer + 1, ..., : values.shape[3]]
        for index, (slot, start) in enumerate(zip(self._open, starts, strict=True)):
            stored_keys[slot, :, start : start + rows] = keys[index]
            stored_values[slot, :, start : start + rows] = values[index]
        first, last = self._open[0], self._open[-1]
        if self._open == tuple(range(first, last + 1)):  # a view of adjacent slots needs no copy
            kept = stored_keys[first : last + 1, :, :end], stored_values[first : last + 1, :, :end]
        else:
            chosen = list(self._open)
            kept = stored_keys[chosen, :, :end], stored_values[chosen, :, :end]
        # each layer of a model on several devices computes on its own device
        return kept[0].to(keys.device), kept[1].to(values.device)

    def _take_form(self, heads: int, width: int) -> None:
        if (heads, width) != (self._heads, self._head_dim):
            if self._formed:
                forms = f"{self._heads} heads of {self._head_dim} and {heads} of {width}"
                raise ValueError(f"all layers must have keys of the same shape, got {forms}")
            self._heads = heads
            self._head_dim = width
            self.storage = self.storage.new_zeros(self._shape(self.slots, self.capacity))
        self._formed = True

    @override
    def commit(self, slot: int, rows: Sequence[int]) -> None:
        if rows[-1] != len(rows) - 1:
            self._move(slot, rows)
        self.lengths[slot] += len(rows)
        self.uncommitted[slot] = 0

    @inference
    def _move(self, slot: int, rows: Sequence[int]) -> None:
        """Move these uncommitted rows to just after the committed rows. Rows already in place are not copied."""
        kept = 0
        while rows[kept] == kept:
            kept += 1
        past, moved = self.lengths[slot], rows[kept:]
        source = torch.tensor(moved, device=self.storage.device) + past
        start = past + kept
        self.storage[:, slot, :, start : start + len(moved)] = self.storage[:, slot].index_select(2, source)

    @override
    def truncate(self, slot: int, length: int) -> None:
        self.lengths[slot] = min(length, self.lengths[slot])
        self.uncommitted[slot] = 0

    @override
    @inference
    def fork(self, source: int, target: int, length: int) -> None:
        self.storage[:, target, :, :length] = self.storage[:, source, :, :length]
        self.lengths[target] = length
        self.uncommitted[target] = 0

    @override
    def nbytes(self) -> int:
        return self.storage.nbytes
