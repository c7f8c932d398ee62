"""Run a Hugging Face model of the Llama family with passes compiled for this CPU.

A whole pass is one call of C++ (``llama_pass.cpp``). It accepts trees of several slots without padding, with any number
of rows and keys. ``docs/compiled.md`` compares it with alternatives.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel
from typing_extensions import override

from specexp.core.cache import SlotCache, check_attention, context_limit
from specexp.core.contracts import ArgmaxVerifier
from specexp.core.kernels import CannotCompileError
from specexp.core.language_model import tolerance, tree_error
from specexp.core.runtime import Growth, PassReader, Read, Runtime, TokenRule, inference
from specexp.core.tree import TokenTree, TreeShape, fed_nodes
from specexp.models.llama_weights import LlamaWeights, check_model, kernels_of
from specexp.verifiers import KeyedSampling

_PREFILL_CHUNK = 256
log = logging.getLogger(__name__)
_PACKED: WeakKeyDictionary[PreTrainedModel, LlamaWeights] = WeakKeyDictionary()
_Form = tuple[NDArray[np.int64], NDArray[np.uint8]]
_NUMBERS = ("tokens", "positions", "slots", "places", "pasts", "starts", "lengths")


class _Rows(ctypes.Structure):
    """Mirrors ``Rows`` in C++."""

    _fields_ = [
        ("count", ctypes.c_int64),
        ("answered", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in (*_NUMBERS, "visible")),
    ]


class _Reading(ctypes.Structure):
    """Mirrors ``Reading`` in C++."""

    _fields_ = [
        ("best", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("rounded", "tokens", "scores", "noise")),
        ("temperature", ctypes.c_float),
        ("draws", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("drawn", "drawn_scores")),
    ]


class _Growing(ctypes.Structure):
    """Mirrors ``Growing`` in C++."""

    _fields_ = [
        ("levels", ctypes.c_int64),
        ("widest", ctypes.c_int64),
        *(
            (name, ctypes.c_void_p)
            for name in ("rows", "nodes", "parents", "ranks", "places", "given", "tokens")
        ),
    ]


class _Cache(ctypes.Structure):
    """Mirrors ``Cache`` in C++."""

    _fields_ = [("storage", ctypes.c_void_p), ("slots", ctypes.c_int64), ("capacity", ctypes.c_int64)]


class _GrowingForm:
    """The form in which C++ drafts a tree after some pending tokens, for slot 0 with an empty cache.

    Attributes:
        numbers: ``[7, m]`` values of ``_NUMBERS`` for the fed rows: the pending tokens, then the nodes with children.
        visible: ``[m * m]`` mask of which fed rows attend to each other.
        levels: number of passes.
        widest: largest number of rows with logits in a pass.
        best: number of candidates per row.
        addresses: addresses of the arrays of ``Growing`` up to ``places``.
    """

    def __init__(self, shape: TreeShape, pending: int) -> None:
        inner = fed_nodes(shape)
        self.levels = shape.max_depth
        own = np.arange(pending + inner.size)
        visible = np.tri(own.size, dtype=np.bool_)
        visible[pending:, pending:] = shape.ancestor_mask[np.ix_(inner, inner)]
        self.visible = visible.ravel().view(np.uint8)
        depths = np.concatenate((own[:pending], shape.depths[inner] + pending - 1))
        none = np.zeros_like(own)
        self.numbers = np.stack((none, depths, none, own, none, own * own.size, own + 1))
        place = np.full(shape.parents.size, -1)
        place[inner] = own[pending:]
        parents = place[shape.parents[1:]]
        parents[shape.parents[1:] == 0] = pending - 1
        levels = np.arange(self.levels + 1)
        rows = np.concatenate(([0], np.searchsorted(shape.depths[inner], levels[1:]) + pending))
        nodes = np.searchsorted(shape.depths[1:], levels, side="right")
        self.widest = max(1, int(np.diff(rows)[1:].max(initial=1)))
        self.best = int(shape.ranks.max()) + 1
        # C++ gets bare addresses, so the arrays must stay alive
        self._arrays = (rows, nodes, parents, shape.ranks[1:].copy(), place[1:].copy())
        self.addresses = [one.ctypes.data for one in self._arrays]


class CompiledModel(Runtime):
    """A model of the Llama family with compiled passes. A row's logits do not depend on the other rows of its pass.

    Sums are in float32 and in a fixed order, so the logits of speculative and plain decoding are equal bit by bit, also
    in bfloat16. They differ from those of the model's own code by rounding.

    Args:
        model: a model in eval mode on the CPU. :mod:`~specexp.models.llama_weights` lists the supported ones.
        self_check: compare one small tree pass with the model's own passes over the same tokens.
        tell: called with a message if the library must be compiled first.

    Raises:
        CannotCompileError: the model is not supported or fails the self-check, or a C++ compiler is missing.
        ValueError: the model is in training mode, or has layers without full attention.
    """

    cache: SlotCache
    kind = "compiled"
    mode_rank = 1
    independent_rows = True

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        self_check: bool = True,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        super().__init__()
        check_model(model)
        check_attention(model.config)
        if model.training:
            raise ValueError(
                f"the {model.config.model_type} model is in training mode: call model.eval() first"
            )
        self.model = model
        self._kernels = kernels_of(model, tell)
        self.device, self.dtype = model.device, model.dtype
        self.vocab_size: int = model.config.vocab_size
        self.context_limit = context_limit(model.config)
        known = _PACKED.get(model)
        self._weights = self._packed()
        self.cache = self._empty_cache()
        self._visible = np.ones(256, dtype=np.uint8)
        self._make_buffers(16)
        self._forms: WeakKeyDictionary[TreeShape, _Form] = WeakKeyDictionary()
        self._growths: WeakKeyDictionary[TreeShape, dict[int, _GrowingForm]] = WeakKeyDictionary()
        self._stored: torch.Tensor | None = None
        self._readers: dict[int, PassReader] = {}  # slot -> reader, if a pass can choose its tokens
        if self_check and self._weights is not known:
            self._self_check()

    @classmethod
    @override
    def run(cls, model: PreTrainedModel) -> CompiledModel:
        return cls(model, tell=log.warning)

    @classmethod
    @override
    def check_mode(cls, models: Iterable[PreTrainedModel], device: str) -> None:
        if not device.startswith("cpu"):
            raise ValueError(
                f"mode 'compiled' runs only on the CPU, but device is {device!r}: set mode to eager or auto"
            )
        for model in models:
            check_model(model)
            kernels_of(model, log.warning)

    @override
    @torch.inference_mode()
    def prefill(
        self, slot: int, token_ids: Sequence[int], *, all_logits: bool = False
    ) -> torch.Tensor | None:
        self._weights = self._packed()
        kept: list[torch.Tensor] = []
        hidden: list[torch.Tensor] = []
        self.cache.reserve(0, slot + 1)
        self.cache.reserve(self.cache.lengths[slot] + len(token_ids))
        for start in range(0, len(token_ids), _PREFILL_CHUNK):
            chunk = token_ids[start : start + _PREFILL_CHUNK]
            past, size = self.cache.lengths[slot], len(chunk)
            self._room(size, 1)
            places = np.arange(past, past + size)
            self._visible[0] = 1  # each row attends to itself and to all earlier rows
            self._fill(slice(0, size), np.asarray(chunk), places, slot, places, places, 0, 1)
            logits = self._forward(size, size if all_logits else 1)
            self.cache.commit(slot, range(size))
            if all_logits:
                kept.append(logits)
            if self.keeps_hidden:
                hidden.append(self._states(size))
        self.hidden = (torch.cat(hidden),) if hidden else ()
        return torch.cat(kept) if kept else None

    @override
    @inference
    def tree_pass(self, slots: Sequence[int], trees: Sequence[TokenTree]) -> list[torch.Tensor]:
        sizes = [tree.tokens.size for tree in trees]
        lengths = self.cache.lengths
        self._make_room(
            max(lengths[slot] + size for slot, size in zip(slots, sizes, strict=True)), max(slots) + 1
        )
        self._room(sum(sizes), sum(size * size for size in sizes))
        first = seen = 0
        for slot, tree, size in zip(slots, trees, sizes, strict=True):
            past, (numbers, visible) = lengths[slot], self._form(tree.shape)
            self.cache.uncommitted[slot] = 0
            self._visible[seen : seen + visible.size] = visible
            own = self._numbers[:, first : first + size]
            np.add(numbers, np.array([[0], [past], [slot], [past], [past], [seen], [0]]), out=own)
            own[0] = tree.tokens
            first, seen = first + size, seen + visible.size
        reading, self.reads = self._choices(slots, trees, first)
        logits = self._forward(first, first, reading)
        self.hidden = torch.split(self._states(first), sizes) if self.keeps_hidden else ()
        return [logits] if len(sizes) == 1 else list(torch.split(logits, sizes))

    def _form(self, shape: TreeShape) -> _Form:
        """Return a tree's values of ``_NUMBERS`` for an empty slot 0, and its ancestor mask.

        Both are cached for shapes that recur.
        """
        form = self._forms.get(shape)
        if form is None:
            own = np.arange(shape.parents.size)
            none = np.zeros_like(own)
            numbers = np.stack((none, shape.depths, none, own, none, own * own.size, own + 1))
            form = numbers, shape.ancestor_mask.ravel().view(np.uint8)
            if shape.recurs:
                self._forms[shape] = form
        return form

    @override
    def commit(self, slot: int, rows: Sequence[int]) -> None:
        count = len(rows)
        if rows[-1] >= count:  # some rows must be moved
            kept = (ctypes.c_int64 * count)(*rows)
            past = ctypes.c_int64(self.cache.lengths[slot])
            self._kernels.keep(
                ctypes.byref(self._weights.model), self._cache(), ctypes.c_int64(slot), past, kept, count
            )
        self.cache.commit(slot, range(count))

    def _choices(
        self, slots: Sequence[int], trees: Sequence[TokenTree], count: int
    ) -> tuple[_Reading, dict[int, Read]]:
        """Return the structure of what a pass over ``count`` rows reads from its logits, and the results by slot.

        Tokens are drawn only if all lanes have readers of the same temperature. Otherwise only greedy lanes are read.
        """
        readers = {slot: reader for slot in slots if (reader := self._readers.get(slot)) is not None}
        temperatures = {_temperature(reader) for reader in readers.values()}
        temperature = temperatures.pop() if len(temperatures) == 1 and len(readers) == len(slots) else 0.0
        readers = {slot: reader for slot, reader in readers.items() if _temperature(reader) == temperature}
        least = 0 if temperature else 1
        best = max((max(reader.learned, least) for reader in readers.values()), default=0)
        tokens, scores = np.empty((count, best), dtype=np.int64), np.empty((count, best), dtype=np.float32)
        reading = _Reading(best, 0, tokens.ctypes.data, scores.ctypes.data)
        if best:
            chosen, highest = tokens[:, 0], scores[:, 0]
        if temperature:
            noise = np.empty(count, dtype=np.uint64)  # address of each row's noise
            chosen, highest = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.float32)
            reading.noise, reading.temperature, reading.draws = noise.ctypes.data, temperature, 1
            reading.kept = noise  # keeps the array alive, because C++ reads it later
            reading.drawn, reading.drawn_scores = chosen.ctypes.data, highest.ctypes.data
        reads, first = {}, 0
        for slot, tree in zip(slots, trees, strict=True):
            rows, first = slice(first, first + tree.tokens.size), first + tree.tokens.size
            reader = readers.get(slot)
            if reader is None:
                continue
            if temperature:
                context, depths = reader.context, tree.shape.depths
                made = context.target_noise(len(context), tree.shape.max_depth + 1, self.vocab_size)
                noise[rows] = made.data_ptr() + 4 * made.stride(0) * depths
            top = (tokens[rows], scores[rows]) if best else None
            reads[slot] = Read(reader.context, chosen[rows], highest[rows], top)
        return reading, reads

    @override
    def read_for(self, slot: int, reader: PassReader | None) -> None:
        self._readers.pop(slot, None)
        if reader is not None and self.dtype != torch.float16 and _is_read(reader.verifier):
            self._readers[slot] = reader

    @override
    def keep_hidden(self, wanted: bool) -> None:
        self.keeps_hidden = wanted

    @override
    @torch.inference_mode()
    def grow(self, slots: Sequence[int], growths: Sequence[Growth]) -> list[torch.Tensor]:
        lengths, uncommitted = self.cache.lengths, self.cache.uncommitted
        sizes = [growth.tokens.size for growth in growths]
        self.cache.reserve(0, max(slots) + 1)
        self._make_room(
            max(lengths[slot] + growth.visible.shape[1] for slot, growth in zip(slots, growths, strict=True)),
            max(slots) + 1,
        )
        self._room(sum(sizes), sum(growth.visible.size for growth in growths))
        first = seen = 0
        for slot, growth, size in zip(slots, growths, sizes, strict=True):
            past, rows, own = lengths[slot], growth.visible.shape[1], np.arange(size)
            self._visible[seen : seen + size * rows] = growth.visible.ravel()
            places, starts = own + (past + uncommitted[slot]), own * rows + seen
            numbers = (growth.tokens, growth.depths + past, slot, places, past, starts, rows)
            self._fill(slice(first, first + size), *numbers)
            uncommitted[slot] += size
            first, seen = first + size, seen + size * rows
        return list(torch.split(self._forward(first, first), sizes))

    @override
    @inference
    def draft_tree(
        self,
        slot: int,
        pending: NDArray[np.int64],
        shape: TreeShape,
        temperature: float,
        noise: torch.Tensor | None,
    ) -> NDArray[np.int64] | None:
        known = self._growths.setdefault(shape, {})
        form = known.get(pending.size)
        if form is None:
            form = known[pending.size] = _GrowingForm(shape, pending.size)
        past, count = self.cache.lengths[slot], form.numbers.shape[1]
        self.cache.reserve(0, slot + 1)
        self._make_room(past + count, slot + 1)
        self._room(count, form.visible.size)
        self._visible[: form.visible.size] = form.visible
        own = self._numbers[:, :count]
        np.add(form.numbers, np.array([[0], [past], [slot], [past], [past], [0], [0]]), out=own)
        own[0, : pending.size] = pending
        tokens = np.empty(shape.parents.size, dtype=np.int64)
        tokens[0] = pending[-1]
        chosen = np.empty((form.widest, form.best), dtype=np.int64)
        scores = np.empty(chosen.shape, dtype=np.float32)
        logits = torch.empty((form.widest, self._weights.outputs))
        reading = _Reading()
        if self.dtype == torch.bfloat16:
            rounded = torch.empty(logits.shape, dtype=self.dtype)
            reading.rounded = rounded.data_ptr()
        if noise is None:
            reading.best, reading.tokens, reading.scores = form.best, chosen.ctypes.data, scores.ctypes.data
        else:
            step = 4 * noise.stride(0)  # bytes of a position's noise
            levels = (ctypes.c_void_p * form.levels)(
                *(noise.data_ptr() + step * level for level in range(form.levels))
            )
            reading.noise, reading.temperature = ctypes.addressof(levels), temperature
            reading.draws, reading.drawn, reading.drawn_scores = (
                form.best,
                chosen.ctypes.data,
                scores.ctypes.data,
            )
        growing = _Growing(
            form.levels,
            form.widest,
            *form.addresses,
            given=self._numbers.ctypes.data,
            tokens=tokens[1:].ctypes.data,
        )
        is_nan = self._kernels.grow(
            ctypes.byref(self._weights.model),
            ctypes.byref(self._rows),
            self._cache(),
            ctypes.byref(reading),
            ctypes.byref(growing),
            self._addresses,
            ctypes.c_void_p(logits.data_ptr()),
            torch.get_num_threads(),
        )
        if is_nan:
            return None  # the caller then drafts pass by pass, which raises a clear error
        self.passes += form.levels
        self.cache.uncommitted[slot] = count
        return tokens

    @override
    def synchronize(self) -> None:
        """Do nothing, because passes run on the host."""

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledModel:
        """Return a runtime of the same weights with an empty cache."""
        return CompiledModel(self.model, self_check=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Unpickling copies the weights into new panels in the other process."""
        return partial(CompiledModel, self_check=False), (self.model,)

    def _packed(self) -> LlamaWeights:
        """Return the packed copy of the model's present weights, which all runtimes of the model share."""
        if self.model.dtype != self.dtype:
            raise ValueError(
                f"the {self.model.config.model_type} model was {self.dtype} when its runtime was made and is "
                f"{self.model.dtype} now: make a new runtime or decoder"
            )
        known = _PACKED.get(self.model)
        if known is None or not known.are_of(self.model):
            known = _PACKED[self.model] = LlamaWeights(self.model, self._kernels)
        return known

    def _self_check(self) -> None:
        error = tree_error(self)
        self.cache = self._empty_cache()  # drops the memory that the check reserved
        self.passes = 0
        if not error <= tolerance(self.dtype):
            del _PACKED[self.model]  # so that the next attempt checks again
            raise CannotCompileError(
                f"the {self.model.config.model_type} model failed the self-check of its compiled pass (the logits of a "
                f"tree differ from its own by {error:.2g} of their spread): run it with pair.mode eager"
            )

    def _empty_cache(self) -> SlotCache:
        return SlotCache(
            self.model.config, slots=1, capacity=0, dtype=self._weights.dtype, device=self.device
        )

    def _make_room(self, rows: int, slots: int) -> None:
        """Reserve cache rows. If the cache must grow, reserve half more than needed, because growing copies it."""
        if rows > self.cache.capacity or slots > self.cache.slots:
            self.cache.reserve(min(rows * 3 // 2, max(rows, self.context_limit)), slots)

    def _room(self, rows: int, pairs: int) -> None:
        """Make buffers large enough for ``rows`` rows and ``pairs`` mask entries."""
        if rows > self._numbers.shape[1]:
            self._make_buffers(max(rows, 2 * self._numbers.shape[1]))
        if pairs > self._visible.size:
            self._visible = np.ones(max(pairs, 2 * self._visible.size), dtype=np.uint8)
            self._rows.visible = self._visible.ctypes.data

    def _make_buffers(self, rows: int) -> None:
        self._numbers = np.zeros((len(_NUMBERS), rows), dtype=np.int64)
        self._buffers = [torch.empty(rows * width) for width in self._weights.widths]
        self._addresses = (ctypes.c_void_p * len(self._buffers))(*(one.data_ptr() for one in self._buffers))
        self._rows = _Rows(
            visible=self._visible.ctypes.data,
            **dict(zip(_NUMBERS, (row.ctypes.data for row in self._numbers), strict=True)),
        )

    def _fill(self, rows: slice, *values: Any) -> None:
        """Set the values of some rows, given in the order of ``_NUMBERS``."""
        for numbers, value in zip(self._numbers, values, strict=True):
            numbers[rows] = value

    def _states(self, count: int) -> torch.Tensor:
        """Return the inputs ``[count, hidden]`` of the output layer in the last pass."""
        width = self._weights.widths[0]
        rows = self._buffers[0][: count * width].view(count, width).to(self.dtype)
        states: torch.Tensor = self.model.model.norm(rows)
        return states

    def _forward(self, count: int, answered: int, reading: _Reading | None = None) -> torch.Tensor:
        """Run a pass over the first ``count`` rows and return the logits ``[answered, V]`` of the last ones."""
        self.passes += 1
        reading = _Reading() if reading is None else reading
        given = logits = torch.empty((answered, self._weights.outputs))
        if self.dtype == torch.bfloat16:
            given = torch.empty((answered, self._weights.outputs), dtype=self.dtype)
            reading.rounded = given.data_ptr()
        self._rows.count, self._rows.answered = count, answered
        self._kernels.forward(
            ctypes.byref(self._weights.model),
            ctypes.byref(self._rows),
            self._cache(),
            ctypes.byref(reading),
            self._addresses,
            ctypes.c_void_p(logits.data_ptr()),
            torch.get_num_threads(),
        )
        return given[:, : self.vocab_size].to(self.dtype)

    def _cache(self) -> Any:
        """Return the address of the cache's structure for C++."""
        storage = self.cache.storage
        if storage is not self._stored:  # the cache has grown
            self._stored = storage
            self._address = _Cache(storage.data_ptr(), self.cache.slots, self.cache.capacity)
        return ctypes.byref(self._address)


def _is_read(verifier: TokenRule) -> bool:
    """Return whether the verifier takes the argmax of the logits, or of logits / temperature + target noise."""
    if isinstance(verifier, KeyedSampling):
        return verifier.law is not None and verifier.top_k is None and verifier.top_p in (None, 1.0)
    return verifier.law is ArgmaxVerifier


def _temperature(reader: PassReader) -> float:
    return reader.verifier.noise_temperature or 0.0
