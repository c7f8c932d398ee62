"""Decoding on the toy targets in several processes: chunks of continuations know nothing of one another."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from multiprocessing import get_context
from time import perf_counter
from types import TracebackType
from typing import Any, Literal, ParamSpec, Self, TypeVar

from specexp.config import Config, build_parts, build_verifier
from specexp.core.parts import Parts
from specexp.verify.toy import Manner
from specexp.verify.toy_run import Tally, ToyLaw, compare_chunk, sample_chunk

P = ParamSpec("P")
T = TypeVar("T")
_WORTH_A_PROCESS = 8.0
"""Seconds of work beside which a process may take its seconds to start."""


@dataclass(frozen=True)
class ToyTask:
    """How chunks of one composition are decoded; it can be sent to another process.

    Attributes:
        config: Of the composition.
        law: Of the target.
        what: ``law`` counts what the composition says, ``plain law`` what its verifier says alone, and ``equality``
            compares.
    """

    config: Config
    law: ToyLaw
    what: Literal["law", "plain law", "equality"]

    def make_parts(self, draft: Any) -> Parts:
        """New parts, with the toy draft model."""
        if self.what == "plain law":
            return Parts(verifier=build_verifier(self.config))
        return build_parts(self.config, draft)

    def __call__(self, manner: Manner, number: int) -> Tally:
        """Decode one chunk."""
        run = compare_chunk if self.what == "equality" else sample_chunk
        return run(self.make_parts, self.law, manner, number)


class ToyWorkers(AbstractContextManager["ToyWorkers"]):
    """Runs tasks here, and in as many processes as there are cores once that is worth their start.

    What is counted is the same however many there are.

    Args:
        workers: Processes; as many as cores if None.
    """

    def __init__(self, workers: int | None = None) -> None:
        self._workers = workers or len(os.sched_getaffinity(0))
        self._pool: ProcessPoolExecutor | None = None
        self._thread = ThreadPoolExecutor(1)
        self._closed = False

    def beside(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call it while this thread does something else, one call after the other."""
        return self._thread.submit(call, *args, **kwargs)

    def run(self, task: ToyTask, manner: Manner, numbers: range) -> Iterator[Tally]:
        """The chunks of these numbers, in their order; where there are processes they begin at once."""
        return (
            self._here(task, manner, numbers) if self._pool is None else self._spread(task, manner, numbers)
        )

    def _here(self, task: ToyTask, manner: Manner, numbers: range) -> Iterator[Tally]:
        started = perf_counter()
        for done, number in enumerate(numbers):
            if self._closed:
                raise CancelledError
            if done and self._workers > 1:
                left = numbers[done:]
                if (perf_counter() - started) / done * len(left) > _WORTH_A_PROCESS:
                    yield from self._spread(task, manner, left)
                    return
            yield task(manner, number)

    def _spread(self, task: ToyTask, manner: Manner, numbers: Iterable[int]) -> Iterator[Tally]:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                self._workers, mp_context=get_context("spawn"), initializer=_prepare
            )
        futures = [self._pool.submit(task, manner, number) for number in numbers]
        return _in_order(futures)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._thread.shutdown(cancel_futures=True)


def _in_order(futures: list[Future[Tally]]) -> Iterator[Tally]:
    try:
        for future in futures:
            yield future.result()
    finally:
        for future in futures:
            future.cancel()


def _prepare() -> None:
    import torch

    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the command, which ends its processes
