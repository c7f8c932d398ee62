"""The executor of SEED: the target serves a queue of drafts that workers make."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import wait
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from typing_extensions import override

from specexp.core.context import Context
from specexp.core.contracts import ArgmaxVerifier
from specexp.core.loop import Lane, OutcomeObserver
from specexp.core.outcome import Outcome
from specexp.core.parts import Parts
from specexp.scheduling.executor import Executor, Lanes
from specexp.scheduling.messages import (
    Memory,
    MemoryQuery,
    MemoryReport,
    NextDraft,
    Reset,
    SequenceLearned,
    StartSequence,
    StepResult,
)
from specexp.scheduling.queue import QueuePolicy, Waiting
from specexp.scheduling.timeline import TimeLine
from specexp.scheduling.worker import DraftWorker

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from specexp.core.runtime import Runtime
    from specexp.scheduling.worker import Kind


class ScheduledLanes(Lanes):
    """The queue of drafts (Algorithm 2, process V): a step serves ready ones while workers draft others."""

    overlaps: ClassVar[bool] = True

    def __init__(
        self,
        target: Runtime,
        parts: Parts,
        observers: Iterable[OutcomeObserver],
        timeline: TimeLine,
        workers: Sequence[DraftWorker],
        policy: QueuePolicy,
        most: int,
    ) -> None:
        super().__init__(target, parts, observers, timeline)
        self.workers, self.policy, self.most = workers, policy, most
        self._queue: list[Lane] = []  # lanes with a ready draft, in the order of arrival
        self._ended: dict[int, Lane] = {}  # lanes whose parts have not yet learned from the last step

    @override
    def start(self, lane: Lane, wants_logits: bool = False, since: float | None = None) -> None:
        if not wants_logits:  # the worker drafts while the target reads the prompt
            self._worker(lane).send(_begin(lane))
        super().start(lane, wants_logits, since)

    @override
    def begin(self, lane: Lane, prefill: Outcome | None) -> None:
        if not self.parts.wants_prefill_logits:
            return
        begin = _begin(lane)
        if prefill is not None:
            logits = prefill.logits
            exact = logits.float() if logits.element_size() < 4 else logits  # numpy has no bfloat16
            begin = begin._replace(prefill=exact.numpy(force=True))
        self._worker(lane).send(begin)

    @override
    def drafts(self) -> list[Lane]:
        while not self._queue:
            started = perf_counter()
            self._take_in()
            self.waited += perf_counter() - started
        for worker in self.workers:
            while worker.ready():
                self._take_in(worker)
        return sorted(self._choose(), key=lambda lane: lane.slot)  # neighbours in the cache need no copy

    @override
    def learn_from(self, lane: Lane, outcome: Outcome) -> None:
        worker = self._worker(lane)
        worker.share_logits(lane.slot, outcome.logits)
        accepted, tokens = outcome.accepted, outcome.new_token_ids
        worker.send(StepResult(lane.slot, accepted, tokens, outcome.seconds, lane.depth, lane.ended))
        if lane.ended:
            self._ended[lane.slot] = lane

    @override
    def finish(self) -> None:
        while self._ended:
            self._take_in()

    def _worker(self, lane: Lane) -> DraftWorker:
        return self.workers[lane.slot % len(self.workers)]

    def _take_in(self, worker: DraftWorker | None = None) -> None:
        """Wait for the next message of a worker, or of any worker, and take it in."""
        if worker is None:
            worker = self.workers[0]
            if len(self.workers) > 1:
                ready = wait([one.connection for one in self.workers])
                worker = next(one for one in self.workers if one.connection in ready)
        message = worker.receive()
        assert isinstance(message, NextDraft | SequenceLearned)
        learned = isinstance(message, SequenceLearned)
        lane = self._ended.pop(message.lane) if learned else self.lanes[message.lane]
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
        if self.observers and draft.tree.q is not None:  # observers may keep it, and the worker overwrites it
            q = {row: distribution.copy() for row, distribution in draft.tree.q.items()}
            draft = replace(draft, tree=replace(draft.tree, q=q))
        lane.take(draft)
        self._queue.append(lane)

    def _choose(self) -> list[Lane]:
        waiting = [
            Waiting(lane.context.sequence, len(lane.context) - lane.context.prompt_length, lane.draft.tree)
            for lane in self._queue
            if lane.draft is not None
        ]
        places = self.policy.choose(waiting, self.most)
        if not 1 <= len(set(places)) == len(places) <= self.most or not set(places) <= {*range(len(waiting))}:
            raise ValueError(
                f"{type(self.policy).__name__} chose the drafts {places} of {len(waiting)}; 1 to "
                f"{self.most} different ones are allowed"
            )
        chosen = [self._queue[place] for place in places]
        self._queue = [lane for place, lane in enumerate(self._queue) if place not in places]
        return chosen


def _begin(lane: Lane) -> StartSequence:
    context = lane.context
    prompt = tuple(context.token_ids.tolist())
    return StartSequence(
        lane.slot, prompt, context.seed, context.sequence, context.noise_temperature, lane.depth
    )


class ScheduledExecutor(Executor):
    """Keeps the workers from run to run; ``queue`` is the policy and the most drafts of a pass."""

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
        # workers do not verify, and not every verifier can be pickled
        drafting = parts._replace(verifier=ArgmaxVerifier())
        kind: Kind = "thread" if workers == "thread" else "process"
        number = 1 if workers == "thread" else workers
        self._workers: list[DraftWorker] = []
        try:
            for first in range(number):
                memories = {
                    slot: Memory(parts, self.model.vocab_size, self.model.dtype)
                    for slot in range(first, self.n, number)
                }
                self._workers.append(DraftWorker(drafting, memories, kind, draft_threads))
        except BaseException:
            self.abort()
            raise

    @property
    def workers(self) -> Sequence[DraftWorker]:
        """The drafting workers; raises RuntimeError if they were stopped."""
        self._check_open()
        return self._workers

    @override
    def reset(
        self, drafter: Mapping[str, Any] | None = None, controller: Mapping[str, Any] | None = None
    ) -> None:
        self._ask(Reset(drafter, controller))

    @override
    def memory(self) -> dict[str, int]:
        found = self._ask(MemoryQuery())
        # all workers see the same weights
        return {
            "weights": max(one["weights"] for one in found),
            "caches": sum(one["caches"] for one in found),
        }

    @override
    def abort(self) -> None:
        super().abort()
        while self._workers:
            self._workers.pop().stop(at_once=True)

    @override
    def close(self) -> None:
        super().close()
        while self._workers:
            self._workers.pop().stop()

    def _ask(self, question: Reset | MemoryQuery) -> list[dict[str, int]]:
        """Return the reports of all workers, between runs, when no other message is on its way."""
        workers = self.workers
        try:
            for worker in workers:
                worker.send(question)
            answers = [worker.receive() for worker in workers]
            return [answer.bytes for answer in answers if isinstance(answer, MemoryReport)]
        except BaseException:
            self.abort()
            raise

    @override
    def _lanes(self, observers: Iterable[OutcomeObserver], timeline: TimeLine) -> Lanes:
        return ScheduledLanes(self.model, self.parts, observers, timeline, self.workers, *self.queue)

    @override
    def _copies(self, parts: Parts) -> list[Parts]:
        return []  # the workers make them

    @override
    def _drafting(self, slot: int, context: Context) -> None:
        return None
