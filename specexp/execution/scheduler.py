"""The executor of SEED: the target's side of the rounds."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

from specexp.composition import Parts
from specexp.execution._base import Job
from specexp.execution.executor import Executor
from specexp.execution.policies import Waiting
from specexp.execution.timeline import TARGET
from specexp.execution.worker import (
    Begin,
    Drafted,
    DraftWorker,
    Failed,
    Reset,
    Said,
    Weigh,
    Weight,
    memory_of,
)
from specexp.generation_result import GenerationResult
from specexp.sequence import Draft, Verification

if TYPE_CHECKING:
    from specexp.execution.scheduled import Scheduled
    from specexp.models.language_model import LanguageModel


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

    def __init__(self, model: LanguageModel, parts: Parts, schedule: Scheduled) -> None:
        super().__init__(model, parts, schedule.threads)
        self.schedule = schedule
        memories = [memory_of(parts, model.vocab_size, model.dtype) for _ in range(schedule.n)]
        self._worker: DraftWorker | None = DraftWorker(
            parts._replace(verifier=None), memories, schedule.workers, schedule.draft_threads
        )
        self._lanes: dict[int, _Lane] = {}
        self._queue: list[tuple[_Lane, Draft]] = []  # in the order of arrival

    @property
    def worker(self) -> DraftWorker:
        """The drafting worker.

        Raises:
            RuntimeError: it was stopped.
        """
        if self._worker is None:
            raise RuntimeError("this executor was closed, or a run failed: open the strategy again")
        return self._worker

    def reset(
        self, drafter: Mapping[str, Any] | None = None, controller: Mapping[str, Any] | None = None
    ) -> None:
        """In the worker, before whatever it is told next."""
        self.worker.send(Reset(drafter, controller))

    def memory(self) -> dict[str, int]:
        """Of the worker."""
        self.worker.send(Weigh())
        answer = self.worker.receive()
        assert isinstance(answer, Weight)
        return answer.bytes

    def abort(self) -> None:
        """End the worker, whatever it does."""
        if self._worker is not None:
            self._worker.stop(at_once=True)
            self._worker = None

    def close(self) -> None:
        """End the worker."""
        if self._worker is not None:
            self._worker.stop()
            self._worker = None

    def _run(self, jobs: Sequence[Job], seed: int, eos_token_ids: frozenset[int]) -> None:
        lanes = min(self.schedule.n, len(jobs))
        worker = self.worker
        self._lanes.clear()
        self._queue.clear()
        self._reserve(jobs, lanes)
        waiting, free = deque(jobs), deque(range(lanes))
        rounds = 0
        while waiting or self._lanes:
            while waiting and free:
                self._start(waiting.popleft(), free.popleft(), seed, eos_token_ids)
            self._collect(worker)
            for lane in self._serve(worker, rounds):
                self._finish(lane)
                free.append(lane.number)
            rounds += 1

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
            logits = None if prefill is None else prefill.logits.float().numpy(force=True)
            self.worker.send(begin._replace(prefill=logits))
        self._lanes[number] = _Lane(number, job, verification, seconds, dict(verification.counts.seconds))

    def _collect(self, worker: DraftWorker) -> None:
        """Take in the drafts that are ready; wait for one if there is none."""
        while not self._queue or worker.ready():
            started = perf_counter()
            message = worker.receive()
            if not self._queue:
                self._phases["draft"] += perf_counter() - started
            if isinstance(message, Failed):
                message.error.add_note(f"raised while drafting for sequence {message.sequence!r}")
                raise message.error
            assert isinstance(message, Drafted)
            lane = self._lanes[message.lane]
            name, first = lane.job.sequence, lane.verification.counts.steps == 0
            self._timeline.add(lane.who, "prefill" if first else "learn", *message.prepared, name)
            self._timeline.add(lane.who, "draft", *message.drafting, name, message.draft.tree.num_nodes)
            seconds = lane.verification.counts.seconds
            lane.before = dict(seconds)
            seconds["draft"] += message.draft.draft_seconds
            seconds["build"] += message.draft.build_seconds
            if not first:
                seconds["update"] += message.prepared[1] - message.prepared[0]
            for position, noise in message.noise.items():
                lane.verification.context.take_noise(position, noise)
            self._queue.append((lane, message.draft))

    def _serve(self, worker: DraftWorker, round: int) -> list[_Lane]:
        """Verify the next drafts of the queue in one pass; the lanes whose sequence has ended."""
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
            worker.say(lane.number, logits)
            spent = {phase: seconds[phase] - earlier for phase, earlier in lane.before.items()}
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
            if ends:
                over.append(lane)
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
        if not 1 <= len(set(places)) == len(places) <= self.schedule.verify_batch:
            raise ValueError(
                f"{type(self.schedule.policy).__name__} chose the drafts {places}; 1 to {self.schedule.verify_batch} "
                "different ones are allowed"
            )
        chosen = [self._queue[place] for place in places]
        self._queue = [entry for place, entry in enumerate(self._queue) if place not in places]
        return chosen

    def _finish(self, lane: _Lane) -> None:
        verification = lane.verification
        assert verification.finish_reason is not None
        del self._lanes[lane.number]
        self.finished[lane.job.sequence] = GenerationResult(
            verification.context.new_token_ids,
            verification.finish_reason,
            verification.counts,
            lane.prefill_seconds,
        )
