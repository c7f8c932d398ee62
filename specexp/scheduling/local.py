"""The executor that works in one thread: sequences one by one, or several in step."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

from specexp.core.generation_result import GenerationResult
from specexp.core.parts import Parts
from specexp.core.sequence import Drafting, Verification
from specexp.scheduling._base import Job
from specexp.scheduling.drafters import bytes_of, drafting_for, initial, twins
from specexp.scheduling.executor import Executor
from specexp.scheduling.timeline import TARGET

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from specexp.core.language_model import LanguageModel


@dataclass
class _Lane:
    """A sequence being decoded."""

    number: int
    job: Job
    drafting: Drafting
    verification: Verification
    prefill_seconds: float

    @property
    def who(self) -> str:
        """Its drafter on the time line."""
        return f"draft {self.number + 1}"


class LocalExecutor(Executor):
    """Drafts for every sequence in turn, then verifies all in one target pass, then starts again.

    Args:
        model: the target.
        parts: of every sequence.
        n: sequences at a time.
        threads: of torch.
    """

    def __init__(
        self, model: PreTrainedModel | LanguageModel, parts: Parts, n: int, threads: int | None
    ) -> None:
        super().__init__(model, parts, threads)
        self.n = n
        self._parts = twins(parts, n)

    def reset(
        self, drafter: Mapping[str, Any] | None = None, controller: Mapping[str, Any] | None = None
    ) -> None:
        """At once."""
        self._check_open()
        self._parts = twins(initial(self._parts[0], drafter, controller), self.n)

    def memory(self) -> dict[str, int]:
        """Of the parts of all sequences."""
        self._check_open()
        return bytes_of(self._parts)

    def _run(self, jobs: Sequence[Job], seed: int, eos_token_ids: frozenset[int]) -> None:
        waiting = deque(jobs)
        self._reserve(jobs, min(self.n, len(jobs)))
        free = list(range(min(self.n, len(jobs))))
        lanes: list[_Lane] = []
        rounds = 0
        while waiting or lanes:
            while waiting and free:
                lanes.append(self._start(waiting.popleft(), free.pop(0), seed, eos_token_ids))
            self._step(lanes, rounds)
            rounds += 1
            for lane in [lane for lane in lanes if lane.verification.finish_reason is not None]:
                lanes.remove(lane)
                free.append(lane.number)

    def _start(self, job: Job, number: int, seed: int, eos: frozenset[int]) -> _Lane:
        context = self._context(job, seed)
        parts = self._parts[number]
        drafting = Drafting(parts.drafter, parts.builder, parts.controller, context)
        prefill, seconds = self._prefill(context, number)
        lane = _Lane(number, job, drafting, self._verification(job, context, number, eos), seconds)
        if parts.drafter is not None:
            started = perf_counter()
            with drafting_for(job.sequence):
                drafting.begin(prefill)
            ended = perf_counter()
            lane.prefill_seconds += ended - started
            self._prefill_seconds += ended - started
            self._timeline.add(lane.who, "prefill", started, ended, job.sequence)
        return lane

    def _step(self, lanes: Sequence[_Lane], round: int) -> None:
        drafts, earlier = [], []
        phases, timeline = self._phases, self._timeline
        for lane in lanes:
            earlier.append(dict(lane.verification.counts.seconds))
            started = perf_counter()
            with drafting_for(lane.job.sequence):
                draft = lane.drafting.draft(lane.verification.depth)
            ended = perf_counter()
            drafts.append(draft)
            spent = lane.verification.counts.seconds
            spent["draft"] += draft.draft_seconds
            spent["build"] += draft.build_seconds
            phases["draft"] += draft.draft_seconds
            phases["build"] += draft.build_seconds
            if lane.drafting.drafter is not None:
                timeline.add(
                    lane.who, "draft", started, ended, lane.job.sequence, draft.tree.num_nodes, round
                )
        started = perf_counter()
        answers = self.model.tree_pass(
            [lane.verification.slot for lane in lanes], [draft.tree for draft in drafts]
        )
        self.model.synchronize()
        ended = perf_counter()
        phases["target"] += ended - started
        fed = sum(draft.tree.num_nodes + 1 for draft in drafts)
        timeline.add(TARGET, "target", started, ended, lanes[0].job.sequence, fed, round)
        for lane, draft, logits, before in zip(lanes, drafts, answers, earlier, strict=True):
            counts = lane.verification.counts
            counts.seconds["target"] += (ended - started) / len(lanes)
            verifying = perf_counter()
            outcome = lane.verification.absorb(draft, logits)
            verified = perf_counter()
            outcome.seconds = {phase: counts.seconds[phase] - before[phase] for phase in before}
            phases["verify"] += outcome.seconds["verify"]
            phases["commit"] += outcome.seconds["commit"]
            if lane.verification.finish_reason is not None:
                self._finish(lane)
            rejected = len(outcome.accepted) < draft.tree.shape.max_depth
            timeline.add(
                TARGET,
                "resample" if rejected else "verify",
                verifying,
                verified,
                lane.job.sequence,
                len(outcome.accepted),
                round,
            )
            for observe in self._observers:
                observe(outcome)
            observed = perf_counter()
            with drafting_for(lane.job.sequence):
                lane.drafting.learn(outcome)
            learned = perf_counter()
            counts.seconds["update"] += learned - observed
            if lane.drafting.drafter is not None:
                timeline.add(lane.who, "learn", observed, learned, lane.job.sequence, 0, round)

    def _finish(self, lane: _Lane) -> None:
        verification = lane.verification
        assert verification.finish_reason is not None
        self.finished[lane.job.sequence] = GenerationResult(
            verification.context.new_token_ids,
            verification.finish_reason,
            verification.counts,
            lane.prefill_seconds,
        )
