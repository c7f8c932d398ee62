"""The executor of SEED: the target's side of the rounds."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

from specexp.core.generation_result import GenerationResult
from specexp.core.parts import ArgmaxVerifier, Parts
from specexp.core.sequence import Draft, Verification
from specexp.scheduling._base import Job
from specexp.scheduling.executor import Executor
from specexp.scheduling.messages import (
    Begin,
    Drafted,
    Learned,
    Ready,
    Reset,
    Said,
    Weigh,
    Weight,
    memory_of,
)
from specexp.scheduling.policies import Waiting
from specexp.scheduling.timeline import TARGET
from specexp.scheduling.worker import DraftWorker

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from specexp.core.language_model import LanguageModel
    from specexp.scheduling.scheduled import Scheduled


@dataclass
class _Lane:
    """A sequence being decoded, seen from the target."""

    number: int
    job: Job
    verification: Verification
    prefill_seconds: float
    before: dict[str, float]

    @property
    def who(self) -> str:
        """Its drafter on the time line."""
        return f"draft {self.number + 1}"


class ScheduledExecutor(Executor):
    """Serves the queue of drafts (Algorithm 2, process V); its worker drafts (processes D).

    Args:
        model: the target.
        parts: of every sequence.
        schedule: how.
    """

    def __init__(self, model: PreTrainedModel | LanguageModel, parts: Parts, schedule: Scheduled) -> None:
        super().__init__(model, parts, schedule.threads)
        self.schedule = schedule
        memories = [memory_of(parts, self.model.vocab_size, self.model.dtype) for _ in range(schedule.n)]
        self._worker: DraftWorker | None = DraftWorker(
            parts._replace(verifier=ArgmaxVerifier()), memories, schedule.workers, schedule.draft_threads
        )
        self._lanes: dict[int, _Lane] = {}
        self._queue: list[tuple[_Lane, Draft]] = []  # in the order of arrival
        self._over: dict[int, _Lane] = {}  # ended, and not yet learned from

    @property
    def worker(self) -> DraftWorker:
        """The drafting worker.

        Raises:
            RuntimeError: it was stopped.
        """
        self._check_open()
        assert self._worker is not None
        return self._worker

    def reset(
        self, drafter: Mapping[str, Any] | None = None, controller: Mapping[str, Any] | None = None
    ) -> None:
        """In the worker."""
        answer = self._ask(Reset(drafter, controller))
        assert isinstance(answer, Ready)

    def memory(self) -> dict[str, int]:
        """Of the worker."""
        answer = self._ask(Weigh())
        assert isinstance(answer, Weight)
        return answer.bytes

    def abort(self) -> None:
        """End the worker, whatever it does."""
        super().abort()
        if self._worker is not None:
            self._worker.stop(at_once=True)
            self._worker = None

    def close(self) -> None:
        """End the worker."""
        super().close()
        if self._worker is not None:
            self._worker.stop()
            self._worker = None

    def _ask(self, question: Reset | Weigh) -> object:
        """Between runs, when nothing else is on its way."""
        worker = self.worker
        try:
            worker.send(question)
            return worker.receive()
        except BaseException:
            self.abort()
            raise

    def _run(self, jobs: Sequence[Job], seed: int, eos_token_ids: frozenset[int]) -> None:
        lanes = min(self.schedule.n, len(jobs))
        worker = self.worker
        self._reserve(jobs, lanes)
        waiting, free = deque(jobs), deque(range(lanes))
        rounds = 0
        while waiting or self._lanes:
            while waiting and free:
                self._start(waiting.popleft(), free.popleft(), seed, eos_token_ids)
            self._collect(worker)
            free.extend(self._serve(worker, rounds))
            rounds += 1
        while self._over:
            self._take_in(worker)

    def _start(self, job: Job, number: int, seed: int, eos: frozenset[int]) -> None:
        context = self._context(job, seed)
        verification = self._verification(job, context, number, eos)
        begin = Begin(number, job.prompt, seed, job.sequence, context.noise_temperature, verification.depth)
        drafter = self.parts.drafter
        assert drafter is not None
        if not drafter.wants_prefill_logits:  # it drafts while the target reads the prompt
            self.worker.send(begin)
        prefill, seconds = self._prefill(context, number)
        if drafter.wants_prefill_logits:
            if prefill is not None:
                logits = prefill.logits
                exact = logits.float() if logits.element_size() < 4 else logits  # numpy has no bfloat16
                begin = begin._replace(prefill=exact.numpy(force=True))
            self.worker.send(begin)
        self._lanes[number] = _Lane(number, job, verification, seconds, dict(verification.counts.seconds))

    def _collect(self, worker: DraftWorker) -> None:
        """Take in the drafts that are ready; wait for one if there is none."""
        while not self._queue:
            started = perf_counter()
            self._take_in(worker)
            self._phases["draft"] += perf_counter() - started
        while worker.ready():
            self._take_in(worker)

    def _take_in(self, worker: DraftWorker) -> None:
        """Take in the next message."""
        message = worker.receive()
        if isinstance(message, Learned):
            lane = self._over.pop(message.lane)
            self._timeline.add(lane.who, "learn", *message.prepared, lane.job.sequence)
            lane.verification.counts.seconds["update"] += message.prepared[1] - message.prepared[0]
            return
        assert isinstance(message, Drafted)
        lane = self._lanes[message.lane]
        name, first = lane.job.sequence, lane.verification.counts.steps == 0
        self._timeline.add(lane.who, "prefill" if first else "learn", *message.prepared, name)
        self._timeline.add(lane.who, "draft", *message.drafting, name, message.draft.tree.num_nodes)
        seconds = lane.verification.counts.seconds
        if first:
            lane.prefill_seconds += message.prepared[1] - message.prepared[0]
        else:
            seconds["update"] += message.prepared[1] - message.prepared[0]
        lane.before = dict(seconds)
        seconds["draft"] += message.draft.draft_seconds
        seconds["build"] += message.draft.build_seconds
        for position, noise in message.noise.items():
            lane.verification.context.take_noise(position, noise)
        draft = message.draft
        if self._observers and draft.tree.q is not None:  # observers may keep what the worker writes over
            q = {row: distribution.copy() for row, distribution in draft.tree.q.items()}
            draft = replace(draft, tree=replace(draft.tree, q=q))
        self._queue.append((lane, draft))

    def _serve(self, worker: DraftWorker, round: int) -> list[int]:
        """Verify the next drafts of the queue in one pass; the lanes that are free now, as their sequence has ended."""
        chosen = self._choose()
        chosen.sort(key=lambda entry: entry[0].number)  # neighbours in the cache need no copy
        started = perf_counter()
        answers = self.model.tree_pass(
            [lane.number for lane, _ in chosen], [draft.tree for _, draft in chosen]
        )
        self.model.synchronize()
        ended = perf_counter()
        phases, timeline = self._phases, self._timeline
        phases["target"] += ended - started
        fed = sum(draft.tree.num_nodes + 1 for _, draft in chosen)
        timeline.add(TARGET, "target", started, ended, chosen[0][0].job.sequence, fed, round)
        over = []
        for (lane, draft), logits in zip(chosen, answers, strict=True):
            verification = lane.verification
            seconds = verification.counts.seconds
            seconds["target"] += (ended - started) / len(chosen)
            before = seconds["verify"], seconds["commit"]
            verifying = perf_counter()
            outcome = verification.absorb(draft, logits)
            ends = verification.finish_reason is not None
            if ends:
                self._finish(lane)
                over.append(lane.number)
            worker.say(lane.number, logits)
            spent = {phase: seconds[phase] - earlier for phase, earlier in lane.before.items()}
            outcome.seconds = spent
            worker.send(
                Said(lane.number, outcome.accepted, outcome.new_token_ids, spent, verification.depth, ends)
            )
            phases["verify"] += seconds["verify"] - before[0]
            phases["commit"] += seconds["commit"] - before[1]
            rejected = len(outcome.accepted) < draft.tree.shape.max_depth
            timeline.add(
                TARGET,
                "resample" if rejected else "verify",
                verifying,
                perf_counter(),
                lane.job.sequence,
                len(outcome.accepted),
                round,
            )
            for observe in self._observers:
                observe(outcome)
        return over

    def _choose(self) -> list[tuple[_Lane, Draft]]:
        """Take the next drafts out of the queue."""
        waiting = [
            Waiting(
                lane.job.sequence,
                len(lane.verification.context) - lane.verification.context.prompt_length,
                draft.tree,
            )
            for lane, draft in self._queue
        ]
        places = self.schedule.policy.choose(waiting, self.schedule.verify_batch)
        known = range(len(waiting))
        if not 1 <= len(set(places)) == len(places) <= self.schedule.verify_batch or not set(places) <= {
            *known
        }:
            raise ValueError(
                f"{type(self.schedule.policy).__name__} chose the drafts {places} of {len(waiting)}; 1 to "
                f"{self.schedule.verify_batch} different ones are allowed"
            )
        chosen = [self._queue[place] for place in places]
        self._queue = [entry for place, entry in enumerate(self._queue) if place not in places]
        return chosen

    def _finish(self, lane: _Lane) -> None:
        verification = lane.verification
        assert verification.finish_reason is not None
        self._over[lane.number] = self._lanes.pop(lane.number)
        self.finished[lane.job.sequence] = GenerationResult(
            verification.context.new_token_ids,
            verification.finish_reason,
            verification.counts,
            lane.prefill_seconds,
        )
