"""Times target and draft passes for several numbers of tokens and prefix lengths, in blocks with warm caches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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

_CANDIDATES = 8  # candidates ranked for each node of a draft pass
_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
_WIDTH = 4  # children per node in the measured trees
_RESAMPLES = 2000
_BLOCK_PASSES = 16
_BLOCK_SECONDS = 0.02


class TimedPass(ABC):
    """A model pass that can be timed for any number of tokens and any prefix of the text ``token_ids``, ``[p]``."""

    def __init__(self, token_ids: NDArray[np.int64], vocab_size: int) -> None:
        self.token_ids = token_ids
        self.vocab_size = vocab_size
        self._trees: dict[int, TokenTree] = {}

    @abstractmethod
    def prepare(self, prefix: int) -> None:
        """Make the cache hold exactly the first ``prefix`` tokens of the text, feeding any that are missing."""

    @abstractmethod
    def seconds(self, tokens: int) -> float:
        """Run a pass over a tree of ``tokens`` rows and return its duration in seconds.

        Afterward, only the root is committed, so the cache grows by one token. The commit is not timed.
        """

    def tree(self, tokens: int) -> TokenTree:
        """Return a tree with a root, ``tokens - 1`` nodes and up to four children per node. Each size is cached."""
        if tokens not in self._trees:
            rows = np.arange(tokens)
            width = min(_WIDTH, self.vocab_size)
            ranks = np.where(rows == 0, -1, (rows - 1) % width)
            shape = TreeShape(np.where(rows == 0, -1, (rows - 1) // width), ranks)
            self._trees[tokens] = TokenTree(shape, np.maximum(ranks, 0) * (self.vocab_size // width))
        return self._trees[tokens]


class TargetPass(TimedPass):
    """A timed tree pass of the target, as in the decoding loop."""

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
        slots, trees = tuple(range(self.lanes)), (self.tree(tokens),) * self.lanes
        started = perf_counter()
        self.model.tree_pass(slots, trees)
        self.model.synchronize()
        elapsed = perf_counter() - started
        for slot in slots:
            self.model.commit(slot, [0])
        return elapsed


class DraftPass(TimedPass):
    """A timed request to a draft model, which feeds the root and new nodes in one pass and ranks their candidates."""

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
        rows = np.arange(min(1, tokens - 1), tokens)  # rank the root's candidates only if there are no nodes
        k = min(_CANDIDATES, self.vocab_size)
        request = Request(tree.tokens, tree.shape.parents, tree.shape.ranks, rows, k)
        started = perf_counter()
        self.drafter.propose(self._context, request)
        elapsed = perf_counter() - started
        self._context.append([0])
        self.drafter.observe(Outcome(self._context, tree, torch.empty(0, 0), (), (0,)))
        return elapsed


@dataclass(eq=False)
class PassSamples:
    """Repeated measurements of one model's passes.

    A pass right after one of another size finds cold caches and takes up to 2.5 times as long. Passes of one size are
    therefore timed in a block of as many as fit in 20 ms, at least 2 and at most 16. The first half of a block warms up
    the caches, and the median of the second half is one measurement.
    """

    timed: TimedPass
    prefixes: Sequence[int]
    sizes: Sequence[int]
    seed: int = 0
    # (prefix, tokens) -> median of each repetition's block
    milliseconds: dict[tuple[int, int], list[float]] = field(default_factory=lambda: defaultdict(list), init=False)

    def warm_up(self) -> None:
        """Run every block once and discard the measurements."""
        for block in self.blocks(0):
            block()
        self.milliseconds.clear()

    def blocks(self, repetition: int) -> list[Callable[[], None]]:
        """Return one function per prefix, which measures a block of each size after that prefix.

        The order of the sizes differs between repetitions, so that drift does not always affect the same size.
        """
        return [
            partial(self._take, prefix, np.random.default_rng([self.seed, repetition, prefix]))
            for prefix in self.prefixes
        ]

    def points(self) -> list[MeasuredPass]:
        """Return the median and its interval for each prefix and size, sorted by prefix, then by size."""
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
    """Return the numbers of tokens to measure, dense for small passes and sparse for large ones."""
    sizes = list(_SIZES)
    while sizes[-1] < max_tokens:
        sizes.append(2 * sizes[-2])
    return sorted({*(size for size in sizes if size < max_tokens), max_tokens})


def longest_prefix(context_limit: int, max_tokens: int) -> int:
    """Return the longest prefix after which the largest tree fits in the context, even at the end of a block.

    Raises ValueError if the context is too short for any prefix.
    """
    depth, row = 0, max_tokens - 1
    while row > 0:
        depth, row = depth + 1, (row - 1) // _WIDTH
    room = context_limit - depth - _BLOCK_PASSES
    if room < 1:
        raise ValueError(
            f"profile.max_tokens must be lower to fit a context of {context_limit} tokens, got {max_tokens}"
        )
    return room


def median_interval(values: NDArray[np.float64]) -> tuple[float, float, float]:
    """Return the median of ``values`` (``[n]``) and its 95 % bootstrap interval. The seed is fixed."""
    chosen = np.random.default_rng(0).integers(0, values.size, size=(_RESAMPLES, values.size))
    low, high = np.quantile(np.median(values[chosen], axis=1), [0.025, 0.975])
    return float(np.median(values)), float(low), float(high)
