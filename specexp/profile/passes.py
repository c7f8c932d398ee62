"""Passes of the target and of the draft model by tokens fed and prefix, timed in blocks that keep caches hot."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from specexp.artifacts.kinds.latency_profile import MeasuredPass
from specexp.core.context import Context
from specexp.core.dialogue import Request
from specexp.core.outcome import Outcome
from specexp.core.tree import TokenTree, TreeShape

if TYPE_CHECKING:
    from specexp.core.runtime import Runtime
    from specexp.drafters import DraftModel

_CANDIDATES = 8  # ranked for every node of a draft pass
_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
_WIDTH = 4  # children of a node in the trees fed
_RESAMPLES = 2000
_BLOCK_PASSES = 16
_BLOCK_SECONDS = 0.02


class TimedPass(ABC):
    """A pass of a model, timed over any number of tokens behind any prefix, a beginning of the text ``[p]``."""

    def __init__(self, token_ids: NDArray[np.int64], vocab_size: int) -> None:
        self.token_ids = token_ids
        self.vocab_size = vocab_size
        self._trees: dict[int, TokenTree] = {}

    @abstractmethod
    def prepare(self, prefix: int) -> None:
        """Return the cache to ``prefix`` tokens, fed if it lacks them."""

    @abstractmethod
    def seconds(self, tokens: int) -> float:
        """Return the seconds of a pass over a tree of ``tokens`` rows.

        A model then keeps the root, as in a step that accepts nothing: its cache grows by one token, outside the clock.
        """

    def tree(self, tokens: int) -> TokenTree:
        """Return a root with ``tokens - 1`` nodes, four children a node: always the same object, like a static tree."""
        if tokens not in self._trees:
            rows = np.arange(tokens)
            width = min(_WIDTH, self.vocab_size)
            ranks = np.where(rows == 0, -1, (rows - 1) % width)
            shape = TreeShape(np.where(rows == 0, -1, (rows - 1) // width), ranks)
            self._trees[tokens] = TokenTree(shape, np.maximum(ranks, 0) * (self.vocab_size // width))
        return self._trees[tokens]


class TargetPass(TimedPass):
    """A tree pass of the target, as the decoding loop makes it."""

    def __init__(self, model: Runtime, token_ids: NDArray[np.int64], lanes: int = 1) -> None:
        super().__init__(token_ids, model.vocab_size)
        self.model = model
        self.lanes = lanes

    @override
    def prepare(self, prefix: int) -> None:
        cache = self.model.cache
        cache.truncate(0, min(prefix, cache.lengths[0]))
        self.model.prefill(0, self.token_ids[cache.lengths[0] : prefix].tolist())
        if self.lanes > 1:
            cache.reserve(0, self.lanes)
            for slot in range(1, self.lanes):
                cache.fork(0, slot, prefix)
        self.model.synchronize()

    @override
    def seconds(self, tokens: int) -> float:
        elapsed = self.pass_seconds(tokens)
        for slot in range(self.lanes):
            self.model.commit(slot, [0])
        return elapsed

    def pass_seconds(self, tokens: int) -> float:
        """Return the seconds of the pass alone; nothing is committed after it."""
        slots, trees = tuple(range(self.lanes)), (self.tree(tokens),) * self.lanes
        started = perf_counter()
        self.model.tree_pass(slots, trees)
        self.model.synchronize()
        return perf_counter() - started


class DraftPass(TimedPass):
    """An answer of a draft model that takes a pass: the root and new nodes are fed, their candidates ranked."""

    def __init__(self, drafter: DraftModel, token_ids: NDArray[np.int64]) -> None:
        super().__init__(token_ids, drafter.max_candidates)
        self.drafter = drafter
        self._context = Context([0])

    @override
    def prepare(self, prefix: int) -> None:
        self._context = Context(self.token_ids[: prefix + 1].tolist(), sequence="profile")
        self.drafter.begin(self._context, None)

    @override
    def seconds(self, tokens: int) -> float:
        tree = self.tree(tokens)
        rows = np.arange(min(1, tokens - 1), tokens)  # the root's candidates only if there are no nodes
        k = min(_CANDIDATES, self.vocab_size)
        request = Request(tree.tokens, tree.shape.parents, tree.shape.ranks, rows, k)
        started = perf_counter()
        self.drafter.propose(self._context, request)
        elapsed = perf_counter() - started
        self._context.append([0])
        self.drafter.observe(Outcome(self._context, tree, torch.empty(0, 0), (), (0,)))
        return elapsed


class PassSamples:
    """Repeated measurements of one model's passes.

    A pass right after one of another size finds cold caches, up to 2.5 times as slow as in a loop. So passes of one
    size are timed in a block: 16 of them, or as many as 20 ms hold, at least two. Its first half warms caches, and the
    median of its second half is one measurement.
    """

    def __init__(
        self, timed: TimedPass, prefixes: Sequence[int], sizes: Sequence[int], seed: int = 0
    ) -> None:
        self.timed = timed
        self.prefixes = prefixes
        self.sizes = sizes
        self._seed = seed
        # medians of the blocks, repetition by repetition, by prefix and tokens
        self.milliseconds: dict[tuple[int, int], list[float]] = defaultdict(list)

    def warm_up(self) -> None:
        """Take every block once, and forget what it took."""
        for block in self.blocks(0):
            block()
        self.milliseconds.clear()

    def blocks(self, repetition: int) -> list[Callable[[], None]]:
        """Return a function for each prefix, which takes a block of every size behind it.

        Each repetition has its own order, so that a disturbance or drift meets any of the sizes.
        """
        return [
            partial(self._take, prefix, np.random.default_rng([self._seed, repetition, prefix]))
            for prefix in self.prefixes
        ]

    def points(self) -> list[MeasuredPass]:
        """Return medians with their intervals, by prefix, then tokens."""
        return [
            MeasuredPass(tokens, prefix, *median_interval(np.array(self.milliseconds[prefix, tokens])))
            for prefix in self.prefixes
            for tokens in self.sizes
        ]

    def _take(self, prefix: int, generator: np.random.Generator) -> None:
        for tokens in generator.permutation(self.sizes).tolist():
            self.timed.prepare(prefix)
            taken: list[float] = []
            until = perf_counter() + _BLOCK_SECONDS
            while len(taken) < 2 or (len(taken) < _BLOCK_PASSES and perf_counter() < until):
                taken.append(self.timed.seconds(tokens))
            self.milliseconds[prefix, tokens].append(1e3 * float(np.median(taken[len(taken) // 2 :])))


def sizes_up_to(max_tokens: int) -> list[int]:
    """Return the numbers of tokens to measure: close together where kernels change, then further apart."""
    sizes = list(_SIZES)
    while sizes[-1] < max_tokens:
        sizes.append(2 * sizes[-2])
    return sorted({*(size for size in sizes if size < max_tokens), max_tokens})


def longest_prefix(context_limit: int, max_tokens: int) -> int:
    """Return the longest prefix behind which the deepest row of the largest tree has room, also after a block.

    Raises ValueError if the context has no room for any.
    """
    depth, row = 0, max_tokens - 1
    while row > 0:
        depth, row = depth + 1, (row - 1) // _WIDTH
    room = context_limit - depth - _BLOCK_PASSES
    if room < 1:
        raise ValueError(
            f"profile.max_tokens is {max_tokens}, for which a context of {context_limit} tokens has no room; lower it"
        )
    return room


def median_interval(values: NDArray[np.float64]) -> tuple[float, float, float]:
    """Return the median of ``[n]`` values, and its 95 % percentile interval from the same resamples every time."""
    chosen = np.random.default_rng(0).integers(0, values.size, size=(_RESAMPLES, values.size))
    low, high = np.quantile(np.median(values[chosen], axis=1), [0.025, 0.975])
    return float(np.median(values)), float(low), float(high)
