"""Runs a Hugging Face model of a known family with passes compiled for this CPU.

A whole pass is a single C++ call (folder ``kernel``). It takes the trees of several slots without padding, with any
number of rows and keys. ``docs/compiled.md`` compares it with alternatives.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel
from typing_extensions import override

from specexp.base.kernels import CannotCompileError
from specexp.core.cache import SlotCache
from specexp.core.language_model import HuggingFaceRuntime
from specexp.core.runtime import Growth, PassResult, TargetTokens, TokenRequest, TokenRule
from specexp.core.tree import TokenTree, TreeShape
from specexp.models.architectures import check_model
from specexp.models.llama_weights import LlamaWeights, kernels_of, structures
from specexp.models.sources import NEEDS_BLOCKS
from specexp.verifiers.keyed_sampling import adds_only_noise

_NUMBERS = ("tokens", "positions", "places", "pasts", "slots", "starts", "lengths", "steps")


class _Rows:
    """The rows of a pass, in buffers at fixed addresses that are passed to C++ only once.

    In this class and those below, ``kinds`` are the :func:`structures` of the library.
    """

    def __init__(self, kinds: Any, numbers: NDArray[np.int64], visible: NDArray[np.uint8]) -> None:
        self.numbers = numbers  # [8, m] values of _NUMBERS
        self.visible = visible  # the masks of all trees, concatenated
        self.size = numbers.shape[1]
        start, step = numbers.ctypes.data, numbers.strides[0]
        addresses = (start + step * place for place in range(len(_NUMBERS)))
        self.given = kinds.Rows(self.size, self.size, 0, 0, *addresses, visible.ctypes.data)


class _Form(_Rows):
    """Rows that attend to all committed tokens of a slot, and to each other according to the mask ``visible [m, m]``.

    The numbers assume an empty slot 0; C++ adds the slot number and the number of its committed tokens.
    """

    def __init__(self, kinds: Any, depths: NDArray[np.int64], visible: NDArray[np.bool_], step: int = 0) -> None:
        own = np.arange(depths.size)
        none = np.zeros_like(own)
        numbers = np.stack((none, depths, own, none, none, own * own.size, own + 1, depths * step))
        super().__init__(kinds, numbers, visible.ravel().view(np.uint8))


class _GrowingForm(_Form):
    """The rows from which C++ drafts a tree: the pending tokens, then the nodes that have children."""

    def __init__(self, kinds: Any, shape: TreeShape, pending: int) -> None:
        inner = shape.fed_nodes
        own = np.arange(pending + inner.size)
        visible = np.tri(own.size, dtype=np.bool_)
        visible[pending:, pending:] = shape.ancestor_mask[np.ix_(inner, inner)]
        super().__init__(kinds, np.concatenate((own[:pending], shape.depths[inner] + pending - 1)), visible)
        place = np.full(shape.parents.size, -1)
        place[inner] = own[pending:]
        parents = place[shape.parents[1:]]
        parents[shape.parents[1:] == 0] = pending - 1
        levels = np.arange(shape.max_depth + 1)
        rows = np.concatenate(([0], np.searchsorted(shape.depths[inner], levels[1:]) + pending))
        nodes = np.searchsorted(shape.depths[1:], levels, side="right")
        widest = max(1, int(np.diff(rows)[1:].max(initial=1)))
        self.best = int(shape.ranks.max()) + 1
        self.tokens = np.empty_like(shape.parents)  # [n + 1] output buffer; the root's token is not set
        arrays = (rows, nodes, parents, shape.ranks[1:].copy(), place[1:].copy())
        found = [np.empty((widest, self.best), dtype=kind) for kind in (np.int64, np.float32)]
        self._kept = (*arrays, *found)  # C++ gets bare addresses, so the arrays must stay alive
        addresses = [one.ctypes.data for one in (*arrays, self.numbers, self.tokens[1:])]
        self.growing = kinds.Growing(shape.max_depth, widest, *addresses)
        chosen = [one.ctypes.data for one in found]
        # the tokens that a pass chooses: the best candidates, or drawn tokens
        self.results = kinds.Results(self.best, 0, *chosen, 0, 0, self.best, *chosen)


class _Choices:
    """Buffers for the tokens that passes over a group of slots choose from their logits.

    Tokens are drawn only if all slots request them at the same temperature. Otherwise, only greedy slots get tokens.
    """

    def __init__(self, kinds: Any, requests: Sequence[TokenRequest | None], rows: int) -> None:
        known = [None if one is None else one.verifier.noise_temperature or 0.0 for one in requests]
        self.temperature = (known[0] if len(set(known)) == 1 else None) or 0.0
        pairs = zip(requests, known, strict=True)
        self.requests = [one if temperature == self.temperature else None for one, temperature in pairs]
        least = 0 if self.temperature else 1
        self.best = max((max(one.learned, least) for one in self.requests if one), default=0)
        self.rows = rows
        self.top = np.empty((rows, self.best), np.int64), np.empty((rows, self.best), np.float32)
        self.drawn = np.empty(rows, np.int64), np.empty(rows, np.float32)
        top, drawn = ([one.ctypes.data for one in arrays] for arrays in (self.top, self.drawn))
        self.results = kinds.Results(self.best, 0, *top, 0, self.temperature, 1, *drawn)

    def tokens(self, trees: Sequence[TokenTree]) -> list[TargetTokens | None]:
        """Return the tokens of the last pass, tree by tree."""
        found: list[TargetTokens | None] = []
        first = 0
        for tree, request in zip(trees, self.requests, strict=True):
            own = slice(first, first + tree.tokens.size)
            first = own.stop
            if request is None:
                found.append(None)
            else:
                # copied, because outcomes outlive the next pass
                top = (self.top[0][own].copy(), self.top[1][own].copy()) if self.best else None
                chosen, highest = self.drawn[0][own], self.drawn[1][own]
                if top is not None and not self.temperature:
                    chosen, highest = top[0][:, 0], top[1][:, 0]
                found.append(TargetTokens(chosen, highest, top))
        return found


class CompiledModel(HuggingFaceRuntime):
    """A model with compiled passes. A row's logits do not depend on the other rows of its pass.

    Sums are computed in float32 in a fixed order, so the logits of speculative and plain decoding are bit-identical,
    even in bfloat16. They differ from those of the model's own code only by rounding.

    The model is on the CPU. :mod:`~specexp.models.architectures` lists the supported ones. For others, or without a C++
    compiler, it raises :class:`~specexp.base.kernels.CannotCompileError`.
    """

    cache: SlotCache
    kind = "compiled"
    refusal = CannotCompileError
    prefill_chunk = 256
    independent_rows = True
    _shared: ClassVar[WeakKeyDictionary[PreTrainedModel, LlamaWeights]] = WeakKeyDictionary()

    def __init__(self, model: PreTrainedModel, *, self_check: bool = True) -> None:
        check_model(model)
        super().__init__(model)
        self._kernels = _declared(kernels_of(model))
        self._kinds = structures(self._kernels)
        known = self._shared.get(model)
        self._weights = self._packed()
        self.cache = self._empty_cache()
        self._rows = _Rows(self._kinds, np.zeros((len(_NUMBERS), 0), dtype=np.int64), np.ones(256, dtype=np.uint8))
        self._room(16)
        self._logits = torch.empty((0, 0), dtype=torch.float32)
        self._forms: WeakKeyDictionary[TreeShape, _Form] = WeakKeyDictionary()
        self._growths: WeakKeyDictionary[TreeShape, dict[int, _GrowingForm]] = WeakKeyDictionary()
        self._stored: torch.Tensor | None = None
        self._choices: dict[tuple[int, ...], _Choices] = {}  # keyed by the slots of a pass
        self._noted_layers = np.zeros(0, dtype=np.int64)  # layers after which states are kept
        if self_check and self._weights is not known:
            try:
                self._self_check()
            except BaseException:  # an interrupt too
                self._shared.pop(model, None)  # so that the next attempt repeats the check
                raise
            self.cache = self._empty_cache()  # drops the memory that the check reserved

    @classmethod
    @override
    def check_mode(cls, models: Iterable[PreTrainedModel], device: str) -> None:
        if not device.startswith("cpu"):
            raise ValueError(
                f"mode {cls.kind!r} runs only on the CPU, but device is {device!r}: set mode to eager or auto"
            )
        for model in models:
            check_model(model)
            kernels_of(model)

    @override
    def begin_prefill(self, slot: int, tokens: int) -> None:
        self._weights = self._packed()
        super().begin_prefill(slot, tokens)

    @override
    def feed(self, slot: int, tokens: NDArray[np.int64], all_logits: bool) -> PassResult:
        past, size = self.cache.lengths[slot], tokens.size
        self._room(size)
        places = np.arange(past, past + size)
        self._rows.visible[0] = 1  # each row attends to itself and to all earlier rows
        self._fill(slice(0, size), tokens, places, places, places, slot, 0, 1, 0)
        logits = self._forward(self._counted(size, size if all_logits else 1))
        self.cache.commit(slot, range(size))
        return PassResult([logits] if all_logits else (), [self._states(size)] if self.keeps_hidden else ())

    @override
    def tree_pass(self, slots: Sequence[int], trees: Sequence[TokenTree]) -> PassResult:
        with torch.inference_mode():
            rows = self._placed(slots[0], trees[0]) if len(trees) == 1 else self._joined(slots, trees)
            choices = self._chosen(slots, trees, rows)
            logits = self._forward(rows, choices.results)
            sizes = [tree.tokens.size for tree in trees]
            hidden = torch.split(self._states(rows.given.count), sizes) if self.keeps_hidden else ()
            answers = [logits] if len(sizes) == 1 else torch.split(logits, sizes)
            return PassResult(answers, hidden, choices.tokens(trees))

    def _placed(self, slot: int, tree: TokenTree) -> _Form:
        """Return the rows of a tree, placed after a slot's committed tokens."""
        past, form = self.cache.lengths[slot], self._form(tree.shape)
        self._make_room(past + form.size, slot + 1)
        self._room(form.size)
        self.cache.uncommitted[slot] = 0
        form.given.past = past
        form.given.slot = slot
        form.numbers[0] = tree.tokens
        return form

    def _joined(self, slots: Sequence[int], trees: Sequence[TokenTree]) -> _Rows:
        """Return the rows of several trees, concatenated."""
        sizes = [tree.tokens.size for tree in trees]
        self._room(sum(sizes), sum(size * size for size in sizes))
        first = seen = 0
        for slot, tree, size in zip(slots, trees, sizes, strict=True):
            form, past = self._placed(slot, tree), self.cache.lengths[slot]
            own = self._rows.numbers[:, first : first + size]
            np.add(form.numbers, np.array([[0], [past], [past], [past], [slot], [seen], [0], [0]]), out=own)
            self._rows.visible[seen : seen + size * size] = form.visible
            first, seen = first + size, seen + size * size
        return self._counted(first, first)

    def _form(self, shape: TreeShape) -> _Form:
        form = self._forms.get(shape)
        if form is None:
            form = _Form(self._kinds, shape.depths, shape.ancestor_mask, self.vocab_size)
            if shape.recurs:
                self._forms[shape] = form
        return form

    @override
    def commit(self, slot: int, rows: Sequence[int]) -> None:
        count = len(rows)
        if rows[-1] >= count:  # some rows must be moved
            kept = (ctypes.c_int64 * count)(*rows)
            self._kernels.keep(self._weights.model, self._cache(), slot, self.cache.lengths[slot], kept, count)
        self.cache.commit(slot, range(count))

    def _chosen(self, slots: Sequence[int], trees: Sequence[TokenTree], rows: _Rows) -> _Choices:
        """Return the choices for a pass, with the noise for its rows."""
        key, count = tuple(slots), rows.given.count
        choices = self._choices.get(key)
        if choices is None or count > choices.rows:
            requests = [self.requests.get(slot) for slot in slots]
            choices = self._choices[key] = _Choices(self._kinds, requests, 2 * count)
        if choices.temperature:
            results, first = choices.results, 0
            for tree, request in zip(trees, choices.requests, strict=True):
                assert request is not None  # else nothing is drawn
                context, end = request.context, first + tree.tokens.size
                made = context.target_noise(len(context), tree.shape.max_depth + 1, self.vocab_size)
                if first:  # steps are offsets from the first tree's noise, in 4-byte numbers
                    rows.numbers[-1, first:end] += (made.data_ptr() - results.noise) // 4
                else:
                    results.noise = made.data_ptr()
                first = end
        return choices

    @override
    def request_tokens(self, slot: int, request: TokenRequest | None) -> None:
        self._choices.clear()
        super().request_tokens(slot, request)

    @override
    def computes_tokens(self, verifier: TokenRule) -> bool:
        return self.dtype != torch.float16 and adds_only_noise(verifier)

    @override
    def keep_hidden(self, wanted: bool | tuple[int, ...]) -> None:
        self.keeps_hidden = wanted
        self._noted_layers = np.array(wanted if isinstance(wanted, tuple) else (), dtype=np.int64)

    @override
    @torch.inference_mode()
    def grow(self, slots: Sequence[int], growths: Sequence[Growth]) -> PassResult:
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
            self._rows.visible[seen : seen + size * rows] = growth.visible.ravel()
            places, starts = own + (past + uncommitted[slot]), own * rows + seen
            numbers = (growth.tokens, growth.depths + past, places, past, slot, starts, rows, 0)
            self._fill(slice(first, first + size), *numbers)
            uncommitted[slot] += size
            first, seen = first + size, seen + size * rows
        logits = self._forward(self._counted(first, first))
        hidden = torch.split(self._states(first), sizes) if self.keeps_hidden else ()
        return PassResult(torch.split(logits, sizes), hidden)

    @override
    def draft_tree(
        self,
        slot: int,
        pending: NDArray[np.int64],
        shape: TreeShape,
        temperature: float,
        noise: torch.Tensor | None,
        kept: torch.Tensor | None = None,
    ) -> NDArray[np.int64] | None:
        known = self._growths.get(shape) or self._growths.setdefault(shape, {})
        form = known.get(pending.size)
        if form is None:
            form = known[pending.size] = _GrowingForm(self._kinds, shape, pending.size)
        past = self.cache.lengths[slot]
        growing = form.growing
        results = form.results
        self._make_room(past + form.size, slot + 1)
        self._room(form.size)
        form.given.past = past
        form.given.slot = slot
        form.numbers[0, : pending.size] = pending
        if noise is None:
            results.best = form.best
            results.noise = None
        else:  # nodes are drawn
            results.best = 0
            results.noise = noise.data_ptr()
            results.temperature = temperature
            growing.stride = noise.stride(0)
        growing.kept = None if kept is None else kept.data_ptr()
        logits = self._scratch(2 * growing.widest)
        if self.dtype == torch.bfloat16:  # rounded logits are in the second half
            results.rounded = logits + 4 * growing.widest * self._weights.outputs
        given = self._weights.model, form.given, self._cache(), results, growing, self._addresses, logits
        is_nan = self._kernels.grow(*given, torch.get_num_threads())
        if is_nan:
            return None  # the caller then drafts pass by pass, which raises a clear error
        self.passes += growing.levels
        self.cache.uncommitted[slot] = form.size
        tokens = form.tokens.copy()
        tokens[0] = pending[-1]
        return tokens

    @contextmanager
    @override
    def _short_windows(self) -> Iterator[None]:
        try:
            with super()._short_windows():
                self._weights.set_windows(self.windows)
                yield
        finally:
            self._weights.set_windows(self.windows)

    def _packed(self) -> LlamaWeights:
        """Return the packed copy of the model's current weights, which all runtimes of the model share."""
        if self.model.dtype != self.dtype:
            raise ValueError(
                f"the {self.model.config.model_type} model was {self.dtype} when its runtime was made and is "
                f"{self.model.dtype} now: make a new runtime or decoder"
            )
        known = self._shared.get(self.model)
        if known is None or not known.are_of(self.model):
            known = self._shared[self.model] = LlamaWeights(
                self.model, self._kernels, self.model.gguf_file if self.packs else None
            )
        return known

    def _empty_cache(self) -> SlotCache:
        return SlotCache(self.model.config, self._weights.dtype, self.device)

    def _make_room(self, rows: int, slots: int) -> None:
        """Reserve cache rows. If the cache must grow, reserve 50% more than needed, because growing copies it."""
        if rows > self.cache.capacity or slots > self.cache.slots:
            self.cache.reserve(min(rows * 3 // 2, max(rows, self.context_limit)), slots)

    def _room(self, rows: int, pairs: int = 0) -> None:
        """Make buffers large enough for ``rows`` rows and ``pairs`` mask entries."""
        known = self._rows.numbers.shape[1], self._rows.visible.size
        if rows <= known[0] and pairs <= known[1]:
            return
        rows, pairs = (
            max(wanted, 2 * size) if wanted > size else size for wanted, size in zip((rows, pairs), known, strict=True)
        )
        numbers = np.zeros((len(_NUMBERS), rows), dtype=np.int64)
        self._rows = _Rows(self._kinds, numbers, np.ones(pairs, dtype=np.uint8))
        self._buffers = [torch.empty(rows * width, dtype=torch.float32) for width in self._weights.widths]
        self._addresses = (ctypes.c_void_p * len(self._buffers))(*(one.data_ptr() for one in self._buffers))

    def _scratch(self, rows: int) -> int:
        """Return the address of a float32 buffer for the logits of ``rows`` rows, which the next pass overwrites."""
        if rows > self._logits.shape[0]:
            self._logits = torch.empty((rows, self._weights.outputs), dtype=torch.float32)
        return self._logits.data_ptr()

    def _counted(self, count: int, answered: int) -> _Rows:
        """Return the first ``count`` rows of the buffers; the last ``answered`` of them get logits."""
        self._rows.given.count = count
        self._rows.given.answered = answered
        return self._rows

    def _fill(self, rows: slice, *values: Any) -> None:
        """Set the values of some rows, given in the order of ``_NUMBERS``."""
        for numbers, value in zip(self._rows.numbers, values, strict=True):
            numbers[rows] = value

    def _states(self, count: int) -> torch.Tensor:
        """Return the hidden states ``[count, d]`` that were kept from the last pass."""
        if self._noted_layers.size:
            return self._noted
        width = self._weights.widths[0]
        rows = self._buffers[0][: count * width].view(count, width).to(self.dtype)
        states: torch.Tensor = self.model.model.norm(rows)
        return states

    def _forward(self, rows: _Rows, results: Any = None) -> torch.Tensor:
        """Run a pass and return the logits ``[answered, V]`` of its last rows."""
        self.passes += 1
        results = self._kinds.Results() if results is None else results
        size = rows.given.answered, self._weights.outputs
        if layers := self._noted_layers.size:
            self._noted = torch.empty((rows.given.count, layers * self._weights.widths[0]))
            results.noted_layers, results.states = self._noted_layers.ctypes.data, self._noted.data_ptr()
        results.noted = layers
        if self.dtype == torch.bfloat16:
            answers = torch.empty(size, dtype=self.dtype)
            logits = self._scratch(size[0])
            results.rounded = answers.data_ptr()
        else:
            answers = torch.empty(size, dtype=torch.float32)
            logits = answers.data_ptr()
        given = self._weights.model, rows.given, self._cache(), results, self._addresses, logits
        self._kernels.forward(*given, torch.get_num_threads())
        answers = answers if size[1] == self.vocab_size else answers[:, : self.vocab_size]
        return answers.half() if self.dtype == torch.float16 else answers

    def _cache(self) -> Any:
        storage = self.cache.storage
        if storage is not self._stored:  # the cache has grown
            self._stored = storage
            self._mirrored = self._kinds.Cache(storage.data_ptr(), self.cache.slots, self.cache.capacity)
        return self._mirrored


class PackedModel(CompiledModel):
    """A bfloat16 model from a GGUF file, with passes that read the file's 4-bit and 8-bit blocks.

    The passes expand blocks to the model's weights in registers, so all logits are bit-identical to those of
    :class:`CompiledModel`. A draft that does not come from such a file runs as a :class:`CompiledModel`.
    """

    kind = "packed"
    packs = True
    _shared: ClassVar[WeakKeyDictionary[PreTrainedModel, LlamaWeights]] = WeakKeyDictionary()

    @classmethod
    @override
    def for_model(cls, model: PreTrainedModel) -> HuggingFaceRuntime:
        return super().for_model(model) if getattr(model, "gguf_file", None) else CompiledModel.for_model(model)

    @classmethod
    @override
    def check_mode(cls, models: Iterable[PreTrainedModel], device: str) -> None:
        super().check_mode(models := list(models), device)
        for target in models[:1]:
            if getattr(target, "gguf_file", None) is None or target.dtype != torch.bfloat16:
                raise CannotCompileError(NEEDS_BLOCKS)

    @override
    def weight_bytes(self) -> dict[int, int]:
        return {id(self._weights): self._weights.matrix_bytes}


def _declared(kernels: ctypes.CDLL) -> ctypes.CDLL:
    """Declare the argument types of a library, so that structures are passed by address."""
    kinds = structures(kernels)
    named = (kinds.Model, kinds.Rows, kinds.Cache, kinds.Results, kinds.Growing)
    model, rows, cache, results, growing = map(ctypes.POINTER, named)
    buffers, number = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int), ctypes.c_int64
    kernels.forward.argtypes = model, rows, cache, results, *buffers
    kernels.grow.argtypes = model, rows, cache, results, growing, *buffers
    kernels.keep.argtypes = model, cache, number, number, ctypes.c_void_p, ctypes.c_int
    return kernels
