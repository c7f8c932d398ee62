"""SEED's scheduled speculative execution (Algorithm 2): workers draft, and the target verifies their queue.

:class:`ScheduledLanes` is process V of the algorithm. Its processes D(n) are in :mod:`~specexp.scheduling.worker`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import wait
from time import perf_counter
from typing import Any, Literal

from transformers import PreTrainedModel
from typing_extensions import override

from specexp.core.contracts import ArgmaxVerifier
from specexp.core.loop import Lane, OutcomeObserver
from specexp.core.outcome import Outcome
from specexp.core.parts import Parts
from specexp.core.runtime import Runtime
from specexp.scheduling.executor import Executor, Lanes
from specexp.scheduling.messages import (
    Memory,
    MemoryQuery,
    NextDraft,
    Reset,
    SequenceLearned,
    StartSequence,
    StepResult,
)
from specexp.scheduling.queue import QueuePolicy, Waiting
from specexp.scheduling.worker import DraftWorker


class ScheduledLanes(Lanes):
    """Process V (lines 11 to 26): each step verifies drafts from the queue Q while workers draft for the other lanes.

    The paper's label gamma[i] has no variable here. It is implicitly 1, so the worker may draft, for each lane that is
    neither in the queue nor in the current step.
    """

    def __init__(
        self,
        target: Runtime,
        parts: Parts,
        observers: Iterable[OutcomeObserver],
        workers: Sequence[DraftWorker],
        policy: QueuePolicy,
        most: int,
    ) -> None:
        super().__init__(target, parts, observers)
        self.workers = workers
        self.policy = policy
        self.most = most
        self._queue: list[Lane] = []  # the paper's Q: lanes with a finished draft, in order of arrival
        self._ended: dict[int, Lane] = {}  # ended lanes whose parts have not yet learned from the last step

    @override
    def start(self, lane: Lane, wants_logits: bool = False, since: float | None = None) -> None:
        # line 2; a drafter that does not need the prompt's logits drafts during the target's prefill
        if not wants_logits:
            self._worker(lane).send(StartSequence(lane.slot, lane.context, lane.depth))
        super().start(lane, wants_logits, since)

    @override
    def begin(self, lane: Lane, prefill: Outcome | None) -> None:
        if not self.parts.wants_prefill_logits:
            return
        logits = None
        if prefill is not None:
            exact = prefill.logits if prefill.logits.element_size() >= 4 else prefill.logits.float()
            logits = exact.numpy(force=True)  # [p, V]; numpy has no bfloat16
        self._worker(lane).send(StartSequence(lane.slot, lane.context, lane.depth, logits))

    @override
    def drafts(self) -> list[Lane]:
        """Take the drafts for the next pass from the queue (lines 13 and 14)."""
        while not self._queue:  # the target idles, which the schedule tries to avoid
            started = perf_counter()
            self._receive(self._next_worker())
            self.waited += perf_counter() - started
        for worker in self.workers:
            while worker.ready():
                self._receive(worker)
        return sorted(self._choose(), key=lambda lane: lane.slot)  # adjacent slots need no copy

    @override
    def learn_from(self, lane: Lane, outcome: Outcome) -> None:
        """Send the verdict to the worker, which learns and drafts again (line 24: gamma[i] becomes 1)."""
        worker = self._worker(lane)
        worker.share_logits(lane.slot, outcome.logits)
        accepted, tokens = outcome.accepted, outcome.new_token_ids
        worker.send(StepResult(lane.slot, accepted, tokens, outcome.seconds, lane.depth, lane.ended))
        if lane.ended:
            self._ended[lane.slot] = lane

    @override
    def finish(self) -> None:
        """Wait until the workers have learned from all lanes that ended (line 27 of Algorithm 2)."""
        while self._ended:
            self._receive(self._next_worker())

    def _worker(self, lane: Lane) -> DraftWorker:
        return self.workers[lane.slot % len(self.workers)]

    def _next_worker(self) -> DraftWorker:
        """Wait for a message and return its worker. A single worker is returned at once, since receiving waits too."""
        if len(self.workers) == 1:
            return self.workers[0]
        ready = wait([one.connection for one in self.workers])
        return next(one for one in self.workers if one.connection in ready)

    def _receive(self, worker: DraftWorker) -> None:
        """Receive a worker's message and, if it contains a draft, add the draft to the queue (line 7)."""
        message = worker.receive()
        assert isinstance(message, NextDraft | SequenceLearned)
        lane = self._ended.pop(message.lane, None) or self.lanes[message.lane]
        started, ended = message.prepared
        if lane.result.steps == 0:
            self.draft_span("prefill", lane, message.prepared)
            lane.result.prefill_seconds += ended - started
        else:
            self.draft_span("learn", lane, message.prepared)
            lane.result.seconds["update"] += ended - started
        if isinstance(message, SequenceLearned):
            return
        draft = message.draft
        self.draft_span("draft", lane, message.drafting, draft.tree.num_nodes)
        if self.observers and draft.tree.q is not None:  # the worker overwrites q, and observers may keep it
            q = {row: distribution.copy() for row, distribution in draft.tree.q.items()}
            draft = replace(draft, tree=replace(draft.tree, q=q))
        lane.take(draft)
        self._queue.append(lane)

    def _choose(self) -> list[Lane]:
        """Remove the lanes for the next pass from the queue. SEED's policy is first come, first served."""
        waiting = [
            Waiting(lane.context.sequence, len(lane.context) - lane.context.prompt_length, lane.tree)
            for lane in self._queue
        ]
        numbers = self.policy.choose(waiting, self.most)
        if not 1 <= len(set(numbers)) == len(numbers) <= self.most or not set(numbers) <= {*range(len(waiting))}:
            raise ValueError(
                f"{type(self.policy).__name__}.choose must return 1 to {self.most} different indices below "
                f"{len(waiting)}, got {numbers}"
            )
        chosen = [self._queue[number] for number in numbers]
        self._queue = [lane for number, lane in enumerate(self._queue) if number not in numbers]
        return chosen


class ScheduledExecutor(Executor):
    """Executor that keeps its workers between runs. ``queue`` is the policy and the maximum drafts per pass."""

    def __init__(
        self,
        model: PreTrainedModel | Runtime,
        parts: Parts,
        n: int,
        threads: int | None,
        queue: tuple[QueuePolicy, int],
        workers: int | Literal["thread"],
        draft_threads: int | None,
    ) -> None:
        super().__init__(model, parts, n, threads)
        self.queue = queue
        # workers never verify, and some verifiers cannot be pickled
        drafting = parts._replace(verifier=ArgmaxVerifier())
        number = 1 if workers == "thread" else workers
        self._workers: list[DraftWorker] = []
        try:
            for first in range(number):
                memories = {
                    slot: Memory(parts, self.model.vocab_size, self.model.dtype)
                    for slot in range(first, self.n, number)
                }
                self._workers.append(DraftWorker(drafting, memories, workers == "thread", draft_threads))
        except BaseException:
            self.close(at_once=True)
            raise

    @property
    def workers(self) -> Sequence[DraftWorker]:
        """The drafting workers. Raises RuntimeError if the executor is closed."""
        self._check_open()
        return self._workers

    @override
    def reset(self, drafter: Mapping[str, Any] | None = None, controller: Mapping[str, Any] | None = None) -> None:
        self._query(Reset(drafter, controller))

    @override
    def memory(self) -> dict[str, int]:
        found = self._query(MemoryQuery())
        # all workers share the same weights
        return {
            "weights": max(one["weights"] for one in found),
            "caches": sum(one["caches"] for one in found),
        }

    @override
    def close(self, at_once: bool = False) -> None:
        super().close()
        while self._workers:
            self._workers.pop().stop(at_once)

    def _query(self, query: Reset | MemoryQuery) -> list[dict[str, int]]:
        """Send a query to all workers and return their reports. Only call this between runs, when they are idle."""
        workers = self.workers
        try:
            for worker in workers:
                worker.send(query)
            return [reply for worker in workers if isinstance(reply := worker.receive(), dict)]
        except BaseException:
            self.close(at_once=True)
            raise

    @override
    def _lanes(self, observers: Iterable[OutcomeObserver]) -> Lanes:
        return ScheduledLanes(self.model, self.parts, observers, self.workers, *self.queue)

    @override
    def _copies(self, parts: Parts) -> list[Parts]:
        return []  # each worker makes its own copies
