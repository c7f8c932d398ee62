"""The executor of strategies that draft and verify in the same thread."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from transformers import PreTrainedModel
from typing_extensions import override

from specexp.core.context import common_prefix
from specexp.core.language_model import runtime_for
from specexp.core.loop import Decoding, Drafting, Lane, OutcomeObserver
from specexp.core.outcome import PHASES, GenerationResult, Outcome
from specexp.core.parts import Parts, join_target
from specexp.core.runtime import Runtime
from specexp.core.tree import TokenTree
from specexp.scheduling.queue import Job
from specexp.scheduling.timeline import TARGET, TimeLine, What


@dataclass(frozen=True)
class Run:
    """The results and times of one run of jobs."""

    # results in the order of the jobs. The seconds of each are those spent on its sequence, with an equal share of each
    # joint pass. If drafting overlaps verification, they add up to more than the run took
    results: tuple[GenerationResult, ...]
    timeline: TimeLine
    prefill_seconds: float  # seconds of prefills. If workers draft, only the target's prefills count
    # other seconds by phase. If workers draft, ``draft`` is the time that the target waits for drafts. Together with
    # ``prefill_seconds``, they add up to the whole run
    seconds: Mapping[str, float]

    @property
    def decode_seconds(self) -> float:
        """Seconds of the run without its prefills."""
        return sum(self.seconds.values())


class Lanes(Decoding):
    """The decoding loop of a run. It also records a time line."""

    def __init__(self, target: Runtime, parts: Parts, observers: Iterable[OutcomeObserver]) -> None:
        super().__init__(target, observers)
        self.parts = parts
        self.timeline = TimeLine()
        self._answered = 0.0
        self.waited = 0.0  # seconds that the target spends waiting for drafts from workers

    @override
    def prefill(self, lane: Lane, wants_logits: bool) -> Outcome | None:
        fed = len(lane.context) - 1 - self.target.length(lane.slot)
        started = perf_counter()
        prefill = super().prefill(lane, wants_logits)
        self.span(TARGET, "prefill", lane, (started, perf_counter()), fed)
        return prefill

    @override
    def begin(self, lane: Lane, prefill: Outcome | None) -> None:
        started = perf_counter()
        super().begin(lane, prefill)
        self.draft_span("prefill", lane, (started, perf_counter()))

    @override
    def draft_group(self, lanes: Sequence[Lane]) -> None:
        started = perf_counter()
        super().draft_group(lanes)
        ended = perf_counter()
        for lane in lanes:
            self.draft_span("draft", lane, (started, ended), lane.tree.num_nodes)

    @override
    def charge_pass(self, lanes: Sequence[Lane], trees: Sequence[TokenTree], started: float, ended: float) -> None:
        super().charge_pass(lanes, trees, started, ended)
        self.span(TARGET, "target", lanes[0], (started, ended), sum(tree.tokens.size for tree in trees))
        self._answered = ended

    @override
    def learn(self, lane: Lane, outcome: Outcome) -> None:
        started, accepted = perf_counter(), len(outcome.accepted)
        what: What = "resample" if accepted < outcome.tree.shape.max_depth else "verify"
        self.span(TARGET, what, lane, (self._answered, started), accepted)
        self.learn_from(lane, outcome)
        self._answered = perf_counter()  # start of the next lane's verdict

    def learn_from(self, lane: Lane, outcome: Outcome) -> None:
        """Let the parts of a lane learn from a step."""
        started = perf_counter()
        super().learn(lane, outcome)
        self.draft_span("learn", lane, (started, perf_counter()))

    def draft_span(self, what: What, lane: Lane, when: tuple[float, float], tokens: int = 0) -> None:
        """Add a span for a lane's drafter to the time line."""
        if self.parts.drafter is not None:
            self.span(f"draft {lane.slot + 1}", what, lane, when, tokens)

    def span(self, who: str, what: What, lane: Lane, when: tuple[float, float], tokens: int) -> None:
        """Add a :class:`~specexp.scheduling.timeline.Span` with the start and end times ``when`` to the time line."""
        number = -1 if what == "prefill" else self.passes
        self.timeline.add(who, what, *when, lane.context.sequence, tokens, number)

    def finish(self) -> None:
        """Wait until the parts have learned from the last step of every sequence."""


class Executor(AbstractContextManager["Executor"]):
    """Runs jobs with an execution strategy, ``n`` at a time. When a sequence ends, the next one takes its place.

    Close an executor after use, or use it in a ``with`` statement. This class runs all parts in the caller's thread:
    every sequence drafts, then one target pass verifies all drafts.
    """

    def __init__(self, model: PreTrainedModel | Runtime, parts: Parts, n: int, threads: int | None) -> None:
        self.model = runtime_for(model)
        self.parts = parts
        self.n = n
        self.threads = threads
        self.closed = False  # also after a run that failed
        self._begun: list[Lane] = []  # lanes started in this run
        self._held: dict[int, tuple[int, ...]] = {}  # slot -> prompt at the beginning of its cache
        join_target(parts, self.model)
        self._parts = self._copies(parts)

    @property
    def finished(self) -> dict[int | str, GenerationResult]:
        """Results of the sequences that the last run completed, keyed by sequence; kept if the run failed."""
        return {lane.context.sequence: lane.result for lane in self._begun if lane.ended}

    def run(
        self,
        jobs: Sequence[Job],
        *,
        seed: int = 0,
        eos_token_ids: Collection[int] = frozenset(),
        observers: Sequence[OutcomeObserver] = (),
    ) -> Run:
        """Decode at least one job. Observers are called with each step's outcome. An error in an observer ends the run.

        Raises:
            ValueError: a prompt is empty or does not fit the target's context, or two jobs have the same ``sequence``.
            RuntimeError: the executor is closed.
            Exception: an error that a part or a model raised. The executor is then closed.
        """
        self._check_open()
        self._check(jobs)
        self.model.conversation = None
        self.model.keep_hidden(self.parts.wants_hidden)
        self._held.clear()
        self._begun = []
        lanes = self._lanes(observers)
        timeline = lanes.timeline
        before = torch.get_num_threads()
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        try:
            timeline.start = perf_counter()
            with torch.inference_mode():
                self._run(lanes, jobs, seed, frozenset(eos_token_ids))
            timeline.end = perf_counter()
        except BaseException:
            self.close(at_once=True)
            raise
        finally:
            torch.set_num_threads(before)
        results = tuple(self.finished[job.sequence] for job in jobs)
        seconds = {phase: sum(result.seconds[phase] for result in results) for phase in PHASES}
        prefill_seconds = sum(result.prefill_seconds for result in results)
        if not self._parts:  # workers draft while the target verifies
            seconds |= {"draft": lanes.waited, "build": 0.0}
            prefill_seconds = timeline.busy(TARGET, ("prefill",))
        seconds["update"] = 0.0
        seconds["update"] = timeline.seconds - prefill_seconds - sum(seconds.values())
        return Run(results, timeline, prefill_seconds, seconds)

    def _run(self, lanes: Lanes, jobs: Sequence[Job], seed: int, eos_token_ids: frozenset[int]) -> None:
        waiting, free = deque(jobs), deque(range(min(self.n, len(jobs))))
        longest = max(len(job.prompt) + job.max_new_tokens for job in jobs)
        self.model.cache.reserve(min(longest, self.model.context_limit) + self.parts.max_rows, len(free))
        while waiting or lanes.lanes:
            while waiting and free:
                self._begin(lanes, waiting.popleft(), free.popleft(), seed, eos_token_ids)
            free.extend(lane.slot for lane in lanes.step())
        lanes.finish()

    def _begin(self, lanes: Lanes, job: Job, slot: int, seed: int, eos_token_ids: frozenset[int]) -> None:
        """Start a sequence in a free slot, reusing the longest prefix of its prompt that any slot holds."""
        context = self.parts.context(job.prompt, seed, job.sequence)
        context.constraint = job.constraint
        lane = Lane(
            context,
            self.model,
            self.parts.verifier,
            Drafting(self._parts[slot], context) if self._parts else None,
            slot=slot,
            max_new_tokens=job.max_new_tokens,
            eos_token_ids=eos_token_ids,
            stop=job.stop,
            stop_at_repetition=job.stop_at_repetition,
        )
        self._begun.append(lane)
        started = perf_counter()
        wants_logits = self.parts.wants_prefill_logits
        reads = wants_logits or self.parts.wants_hidden  # these exist only if the whole prompt is fed
        # A slot holds all tokens of its prompt except the last, which is fed with the first tree. Feeding only the rest
        # of a prompt may round differently.
        shared = {
            one: common_prefix(held[:-1], job.prompt[:-1])
            for one, held in self._held.items()
            if not reads and (held == tuple(job.prompt) or self.model.independent_rows)
        }
        best = max(shared, key=lambda one: (shared[one], one == slot), default=slot)
        if best == slot:
            self.model.cache.truncate(slot, shared.get(slot, 0))
        else:
            self.model.cache.fork(best, slot, shared[best])
        self._held.pop(slot, None)
        lanes.start(lane, wants_logits, started)
        self._held[slot] = tuple(job.prompt)

    def _lanes(self, observers: Iterable[OutcomeObserver]) -> Lanes:
        return Lanes(self.model, self.parts, observers)

    def _copies(self, parts: Parts) -> list[Parts]:
        """Return a list with a copy of the parts for each slot; an empty one if workers draft."""
        return copies(parts, self.n)

    def reset(self, drafter: Mapping[str, Any] | None = None, controller: Mapping[str, Any] | None = None) -> None:
        """Reset the parts to their initial state or a saved one. Raises ``ValueError`` if the latter does not fit."""
        self._check_open()
        self._parts = self._copies(initial(self._parts[0], drafter, controller))

    def memory(self) -> dict[str, int]:
        """Return the bytes used by draft models: ``weights``, with shared ones counted once, and all ``caches``."""
        self._check_open()
        return bytes_of(self._parts)

    def close(self, at_once: bool = False) -> None:
        """Stop the workers. With ``at_once``, their work is discarded. A closed executor cannot run jobs."""
        self.closed = True

    @override
    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self.closed:
            raise RuntimeError("the executor was closed, or a run failed: open the strategy again")

    def _check(self, jobs: Sequence[Job]) -> None:
        if not jobs:
            raise ValueError("there is no job to run: give at least one")
        (sequence, count), *_ = Counter(job.sequence for job in jobs).most_common(1)
        if count > 1:
            raise ValueError(f"two jobs are of sequence {sequence!r}: give each job its own sequence")
        for job in jobs:
            try:
                self.model.check_request(job.prompt, job.max_new_tokens)
            except ValueError as error:
                raise ValueError(f"sequence {job.sequence!r}: {error}") from error


def copies(parts: Parts, n: int) -> list[Parts]:
    """Return parts for ``n`` sequences, starting with the given ones. All share the stateless builder and verifier."""
    made = [parts]
    for _ in range(n - 1):
        drafter = None if parts.drafter is None else parts.drafter.for_new_sequence()
        made.append(parts._replace(drafter=drafter, controller=parts.controller.for_new_sequence()))
    return made


def initial(parts: Parts, drafter: Mapping[str, Any] | None, controller: Mapping[str, Any] | None) -> Parts:
    """Reset the parts in place, to their initial state or to saved states, and return them."""
    for part, state in ((parts.drafter, drafter), (parts.controller, controller)):
        if part is not None:
            part.reset()
            if state:
                part.load_state_dict(deepcopy(dict(state)))
    return parts


def bytes_of(parts: Sequence[Parts]) -> dict[str, int]:
    """Return the bytes used by draft models: ``weights``, with shared ones counted once, and ``caches``."""
    weights: dict[int, int] = {}
    caches: dict[int, int] = {}
    for part in parts:
        for model in () if part.drafter is None else part.drafter.models:
            weights |= model.weight_bytes()
            caches[id(model.cache)] = model.cache.nbytes()
    return {"weights": sum(weights.values()), "caches": sum(caches.values())}
