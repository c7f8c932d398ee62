"""Measures the hardware limits of passes on a device: read bandwidth and the speed of torch's matrix product."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from time import perf_counter

import numpy as np
import torch
from typing_extensions import override

from specexp.artifacts.kinds.latency_profile import Roofline
from specexp.base.messages import counted
from specexp.core.latency import LatencyProfile, experts_sentence
from specexp.core.runtime import Runtime
from specexp.profile.passes import PassSamples, TimedPass

_BEYOND = 2**30  # bytes, more than any cache holds
_FROM_CACHE = 1.25  # weights that are read more than this many times as fast as memory stay in a cache
_STEADY = 1.25  # largest ratio of bandwidths between a run's blocks that counts as steady
_ROWS = 8  # rows of the pass that the verdict describes


class RooflineJobs(TimedPass):
    """Memory reads and matrix products that bound a model's passes, timed as if they were passes of 0 to 3 tokens.

    One read covers as many bytes as the weights, the other more than any cache holds. Both are torch sums, which are as
    fast as compiled passes. The matrix products are torch's, in float32 and in the dtype of the weights.
    """

    def __init__(self, weights: Sequence[torch.Tensor], packed_bytes: int | None = None) -> None:
        super().__init__(np.empty(0, np.int64), 1)
        self.parameters = sum(one.numel() for one in weights)
        self.weight_bytes = packed_bytes or sum(one.numel() * one.element_size() for one in weights)
        self.place = weights[0].device
        dtypes = (torch.float32, weights[0].dtype)
        size = 1024 if self.place.type == "cpu" else 4096
        squares = [torch.ones(size, size, dtype=dtype, device=self.place) for dtype in dtypes]
        beyond = torch.frombuffer(_memory(_BEYOND), dtype=torch.float32).fill_(1.0).to(self.place)
        of_weights = beyond[: -(-self.weight_bytes // beyond.itemsize)]
        self.jobs: list[Callable[[], object]] = [
            *(partial(torch.sum, one) for one in (of_weights, beyond)),
            *(partial(torch.mm, one, one) for one in squares),
        ]
        self.work = [of_weights.nbytes, beyond.nbytes, 2 * size**3, 2 * size**3]  # bytes or operations of each job

    @override
    def prepare(self, prefix: int) -> None:
        pass

    @override
    def seconds(self, tokens: int) -> float:
        started = perf_counter()
        self.jobs[tokens]()
        if self.place.type == "cuda":
            torch.cuda.synchronize(self.place)
        return perf_counter() - started


def limit_samples(model: object, runtime: Runtime | None = None) -> PassSamples | None:
    """Return a sampler of the limits, or None if torch does not hold the weights or a row uses only some of them."""
    config = getattr(model, "config", None)
    if not isinstance(model, torch.nn.Module) or (config is not None and experts_sentence(config.to_dict())):
        return None
    packed = sum(runtime.weight_bytes().values()) if runtime is not None and runtime.packs else None
    limits = RooflineJobs(multiplied(model), packed)
    return PassSamples(limits, [0], range(len(limits.jobs)))


def multiplied(model: torch.nn.Module) -> list[torch.Tensor]:
    """Return the matrices that multiply each row. The embedding table is included only if it is tied to the head."""
    table, head = model.get_input_embeddings(), model.get_output_embeddings()  # type: ignore[operator]
    tied = head is not None and head.weight is table.weight
    return [one for one in model.parameters() if one.ndim > 1 and (tied or one is not table.weight)]


def roofline_of(samples: PassSamples) -> Roofline:
    """Return the limits as medians over blocks, with the speed of the faster of the two matrix products."""
    limits = samples.timed
    assert isinstance(limits, RooflineJobs)
    weights, memory, *products = (
        1e3 * work / median(samples.milliseconds[0, job]) for job, work in enumerate(limits.work)
    )
    slow, fast = 1e3 * limits.work[0] / np.quantile(samples.milliseconds[0, 0], [0.9, 0.1])
    spread = float(slow), float(fast)
    return Roofline(limits.parameters, limits.weight_bytes, weights, memory, max(products), spread)


def verdict(profile: LatencyProfile, limits: Roofline) -> str:
    """Return a sentence on what several rows cost compared with one, why, and how many nodes are nearly free."""
    rows = min(_ROWS, profile.max_target_tokens)
    cost = profile.target_seconds(rows) / profile.target_seconds(1)
    read, memory = (f"{one / 1e9:.0f} GB/s" for one in (limits.bandwidth, limits.memory_bandwidth))
    cached = limits.bandwidth > _FROM_CACHE * limits.memory_bandwidth
    where = f"fit the cache (read at {read}, memory at {memory})" if cached else f"do not fit the cache ({read})"
    return (
        f"{counted(rows, 'row')} cost {cost:.1f} passes here; the weights ({limits.weight_bytes / 1e6:,.0f} MB) "
        f"{where}, so drafting is nearly free up to {counted(profile.free_nodes, 'node')}, and at the machine's "
        f"limits up to {limits.free_nodes}."
    )


def changed(limits: Roofline) -> str:
    """Return a warning if the bandwidth changed during the run, otherwise an empty string."""
    slow, fast = limits.bandwidths or (1.0, 1.0)
    if fast <= _STEADY * slow:
        return ""
    change = f"The bandwidth changed between {slow / 1e9:.0f} and {fast / 1e9:.0f} GB/s during the run"
    return f"{change}, so times of rows are not comparable: measure again."


def _memory(size: int) -> mmap.mmap:
    memory = mmap.mmap(-1, size)
    if hasattr(mmap, "MADV_HUGEPAGE"):  # like the weights of compiled passes
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
