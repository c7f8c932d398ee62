"""Runs a GGUF model in llama.cpp behind the interface of :class:`~specexp.core.runtime.Runtime`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from specexp.core.noise import noise_kernels
from specexp.core.runtime import Growth, PassResult, Runtime, TargetTokens, TokenRequest, TokenRule
from specexp.core.tree import TokenTree, TreeShape
from specexp.models.gguf import shards
from specexp.models.llama_cache import MAX_IDS, Branches, LaneRows, LlamaCache, starts_of
from specexp.models.llama_file import LlamaCppError, LlamaFile
from specexp.verifiers.keyed_sampling import adds_only_noise


class LlamaCppModel(Runtime):
    """A runtime for a GGUF file. Its logits are float32 tensors on the CPU.

    The self-check compares a tree pass with passes over its branches; raises LlamaCppError if they differ.

    Example:
        >>> LlamaCppModel(LlamaFile("target.gguf"))  # doctest: +SKIP
    """

    kind = "llama.cpp"
    refusal = LlamaCppError
    model: LlamaFile
    cache: LlamaCache
    max_leaves = MAX_IDS

    def __init__(self, model: LlamaFile, *, self_check: bool = True) -> None:
        super().__init__()
        self.model = model
        self.config = model.config
        self.generation_config = model.generation_config
        self.vocab_size = model.vocab_size
        self.context_limit = model.context_limit
        self.device = torch.device("cpu")
        self.dtype = torch.float32
        self.cache = LlamaCache(model)
        self._branches: WeakKeyDictionary[TreeShape, Branches] = WeakKeyDictionary()
        self._choices(16)
        if self_check:
            self.check_tree(model.path, 0.15, "use another model or another GGUF file of it")
            self.cache = LlamaCache(model)

    @property
    @override
    def precision(self) -> str:
        return self.model.precision

    @override
    def weight_bytes(self) -> dict[int, int]:
        return {id(self.model): sum(one.stat().st_size for one in shards(Path(self.model.path)))}

    @override
    def begin_prefill(self, slot: int, tokens: int) -> None:
        self.cache.reserve(0, slot + 1)
        self.cache.lanes[slot].forget_rows()
        self.cache.room_for(tokens)

    @override
    def feed(self, slot: int, tokens: NDArray[np.int64], all_logits: bool) -> PassResult:
        lane = self.cache.lanes[slot]
        past = lane.length
        ids = np.full(tokens.size, lane.extend(tokens.size), dtype=np.int32)
        own = np.arange(tokens.size)
        logits = self._pass([LaneRows(tokens, own, past, np.ones_like(ids), 4 * own, ids)], all_logits)
        return PassResult() if logits is None else PassResult([logits])

    @override
    def tree_pass(self, slots: Sequence[int], trees: Sequence[TokenTree]) -> PassResult:
        self.cache.reserve(0, max(slots) + 1)
        lanes = [self.cache.lanes[slot] for slot in slots]
        for lane in lanes:
            lane.forget_rows()
        sizes = [tree.tokens.size for tree in trees]
        self.cache.room_for(sum(sizes))
        rows = []
        for lane, tree in zip(lanes, trees, strict=True):
            branches = self._branches_of(tree.shape)
            own = branches.counts, branches.starts, lane.plant(branches)
            rows.append(LaneRows(tree.tokens, tree.shape.depths, lane.length, *own))
        place, total = self.cache.pass_over(rows, True), sum(sizes)
        self.passes += 1
        logits = torch.empty((total, self.vocab_size), dtype=torch.float32, device="cpu")
        if total > self._tokens.size:
            self._choices(2 * total)
        computed: list[TargetTokens | None] = []
        first = 0
        for slot, tree in zip(slots, trees, strict=True):
            computed.append(self._keep(place, logits, self.requests.get(slot), tree, first))
            first += tree.tokens.size
        return PassResult([logits] if len(sizes) == 1 else torch.split(logits, sizes), tokens=computed)

    def _keep(
        self, place: int, logits: torch.Tensor, request: TokenRequest | None, tree: TokenTree, first: int
    ) -> TargetTokens | None:
        """Copy a tree's logits from llama.cpp's buffer and, in the same loop, choose the requested tokens."""
        size, skipped = tree.tokens.size, 4 * first * self.vocab_size
        place, to = place + skipped, logits.data_ptr() + skipped
        if request is None:
            ctypes.memmove(to, place, 4 * size * self.vocab_size)
            return None
        temperature, noise, depths = request.verifier.noise_temperature or 0.0, 0, 0
        if temperature:
            context, positions = request.context, tree.shape.max_depth + 1
            noise = context.target_noise(len(context), positions, self.vocab_size).data_ptr()
            # a single row has depth 0, and getting an address from numpy takes microseconds
            depths = 0 if size == 1 else tree.shape.depths.ctypes.data
        own = slice(first, first + size)
        chosen = self._addresses[0] + 8 * first, self._addresses[1] + 4 * first
        kernels = noise_kernels()
        assert kernels is not None  # else there is no request
        kernels.choose(place, size, self.vocab_size, noise, depths, temperature, to, *chosen)
        return TargetTokens(self._tokens[own], self._values[own], None)

    def _choices(self, rows: int) -> None:
        """Make room for the tokens chosen after ``rows`` rows, and for their scores."""
        self._tokens = np.empty(rows, dtype=np.int64)
        self._values = np.empty(rows, dtype=np.float32)
        self._addresses = self._tokens.ctypes.data, self._values.ctypes.data

    @override
    def computes_tokens(self, verifier: TokenRule) -> bool:
        return adds_only_noise(verifier) and noise_kernels() is not None

    @override
    def grow(self, slots: Sequence[int], growths: Sequence[Growth]) -> PassResult:
        self.cache.reserve(0, max(slots) + 1)
        lanes = [self.cache.lanes[slot] for slot in slots]
        sizes = [growth.tokens.size for growth in growths]
        self.cache.room_for(sum(sizes))
        rows = []
        for lane, growth in zip(lanes, growths, strict=True):
            own = lane.grow(_parents(growth.visible))
            counts = np.array([len(ids) for ids in own], dtype=np.int32)
            ids = np.array([sequence for ids in own for sequence in ids], dtype=np.int32)
            rows.append(LaneRows(growth.tokens, growth.depths, lane.length, counts, starts_of(counts), ids))
        logits = self._pass(rows)
        assert logits is not None
        return PassResult(torch.split(logits, sizes))

    def _pass(self, lanes: Sequence[LaneRows], with_logits: bool = True) -> torch.Tensor | None:
        """Run a pass and return its ``[n, V]`` logits, copied because the next pass overwrites the buffer."""
        address = self.cache.pass_over(lanes, with_logits)
        self.passes += 1
        if not address:
            return None
        rows = sum(lane.tokens.size for lane in lanes)
        logits = torch.empty((rows, self.vocab_size), dtype=torch.float32, device="cpu")
        ctypes.memmove(logits.data_ptr(), address, logits.nbytes)
        return logits

    def _branches_of(self, shape: TreeShape) -> Branches:
        branches = self._branches.get(shape)
        if branches is None:
            branches = Branches.of(shape)
            if shape.recurs:
                self._branches[shape] = branches
        return branches


def _parents(visible: NDArray[np.bool_]) -> list[int]:
    """Return the parent of each new row: the last earlier row that it attends to, or -1."""
    new, rows = visible.shape
    parents = []
    for index in range(new):
        above = np.flatnonzero(visible[index, : rows - new + index])
        parents.append(int(above[-1]) if above.size else -1)
    return parents
