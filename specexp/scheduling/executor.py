"""An execution strategy at work: what all executors have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from specexp.core.context import Context
from specexp.core.language_model import LanguageModel
from specexp.core.outcome import Outcome, prefill_outcome
from specexp.core.parts import Parts
from specexp.core.sequence import PHASES, Verification
from specexp.scheduling._base import Job
from specexp.scheduling.timeline import TARGET, TimeLine

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from specexp.core.generation_result import GenerationResult

OutcomeObserver = Callable[[Outcome], None]


@dataclass(frozen=True)
class Run:
    """What decoding some jobs gave.

    Attributes:
        results: in the order of the jobs. A result's seconds are the work done for its sequence, a shared pass in
            equal parts; in an overlapped run they add up to more than the run took.
        timeline: who did what when.
        prefill_seconds: spent on prompts, by the target alone where the drafters have a worker of their own.
        seconds: everything else by phase, as the target saw it: ``draft`` is the time it waited for drafts. They and
            the prefill add up to the run.
    """

    results: tuple[GenerationResult, ...]
    timeline: TimeLine
    prefill_seconds: float
    seconds: Mapping[str, float]

    @property
    def decode_seconds(self) -> float:
        """The run without its prefills."""
        return sum(self.seconds.values())

    @property
    def wall_seconds(self) -> float:
        """The whole run."""
        return self.prefill_seconds + self.decode_seconds


class Executor(AbstractContextManager["Executor"]):
    """An execution strategy at work. Close it, or use it in a ``with`` statement.

    Args:
        model: the target.
        parts: of every sequence.
        threads: of torch, for the target.

    Attributes:
        finished: results of the run so far by sequence; those of a run that failed stay.
        closed: whether it can be used no more: it was closed, or a run failed.
    """

    def __init__(self, model: PreTrainedModel | LanguageModel, parts: Parts, threads: int | None) -> None:
        self.model = model if isinstance(model, LanguageModel) else LanguageModel(model)
        self.parts = parts
        self.threads = threads
        self.finished: dict[int | str, GenerationResult] = {}
        self.closed = False
        self._observers: tuple[OutcomeObserver, ...] = ()
        self._held: dict[int, tuple[int, ...]] = {}  # the prompt that a slot begins with
        self._timeline = TimeLine()
        self._phases = dict.fromkeys(PHASES, 0.0)
        self._prefill_seconds = 0.0
        if parts.drafter is not None:
            parts.drafter.check_vocabulary(self.model.vocab_size)
        if parts.builder is not None and parts.builder.max_nodes >= self.model.context_limit:
            raise ValueError(
                f"{type(parts.builder).__name__} makes trees of up to {parts.builder.max_nodes} nodes and the target's "
                f"context holds {self.model.context_limit} tokens: lower its budget"
            )

    def run(
        self,
        jobs: Sequence[Job],
        *,
        seed: int = 0,
        eos_token_ids: Collection[int] = frozenset(),
        observers: Sequence[OutcomeObserver] = (),
    ) -> Run:
        """Decode sequences.

        Args:
            jobs: at least one, of different sequences.
            seed: of verifiers and drafters that draw.
            eos_token_ids: tokens that end an output.
            observers: called with every step's outcome, within the run's time; one that raises ends the run.

        Raises:
            ValueError: a prompt is empty or does not fit the target, or two jobs share a sequence.
            RuntimeError: the executor is closed.
            Exception: whatever a part or a model raised; what it had to stop is stopped, and :attr:`finished` holds the
                sequences that were done.
        """
        import torch

        self._check_open()
        self._check(jobs)
        model = self.model
        model.conversation = None
        self._observers = tuple(observers)
        self._held.clear()
        self.finished = {}
        self._timeline = TimeLine()
        self._phases = dict.fromkeys(PHASES, 0.0)
        self._prefill_seconds = 0.0
        before = torch.get_num_threads()
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        try:
            self._timeline.start = started = perf_counter()
            with torch.inference_mode():
                self._run(jobs, seed, frozenset(eos_token_ids))
            self._timeline.end = perf_counter()
        except BaseException:
            self.abort()
            raise
        finally:
            torch.set_num_threads(before)
        wall = self._timeline.end - started
        self._phases["update"] += wall - self._prefill_seconds - sum(self._phases.values())
        results = tuple(self.finished[job.sequence] for job in jobs)
        return Run(results, self._timeline, self._prefill_seconds, self._phases)

    @abstractmethod
    def _run(self, jobs: Sequence[Job], seed: int, eos_token_ids: frozenset[int]) -> None:
        """Decode, and fill :attr:`finished`, time line and phases."""

    @abstractmethod
    def reset(
        self, drafter: Mapping[str, Any] | None = None, controller: Mapping[str, Any] | None = None
    ) -> None:
        """Return the parts to their initial state, or to a saved one.

        Args:
            drafter: its ``state_dict``.
            controller: the same of the controller.

        Raises:
            RuntimeError: the executor is closed.
            ValueError: a state does not go with its part.
        """

    @abstractmethod
    def memory(self) -> dict[str, int]:
        """Bytes of the draft models: ``weights``, each counted once, and ``caches`` of all sequences."""

    def abort(self) -> None:
        """Stop at once, after a failure; no wait for what is under way."""
        self.closed = True

    def close(self) -> None:
        """Stop whatever the strategy started; nothing can be run after that."""
        self.closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _context(self, job: Job, seed: int) -> Context:
        noise_temperature = self.parts.verifier.noise_temperature or 0.0
        return Context(job.prompt, seed=seed, sequence=job.sequence, noise_temperature=noise_temperature)

    def _verification(self, job: Job, context: Context, slot: int, eos: frozenset[int]) -> Verification:
        return Verification(
            self.model,
            self.parts.verifier,
            context,
            slot=slot,
            max_new_tokens=job.max_new_tokens,
            eos_token_ids=eos,
            stop=job.stop,
        )

    def _reserve(self, jobs: Sequence[Job], slots: int) -> None:
        builder = self.parts.builder
        longest = max(len(job.prompt) + job.max_new_tokens for job in jobs)
        rows = 1 + (0 if builder is None else builder.max_nodes)
        self.model.cache.reserve(min(longest, self.model.context_limit) + rows, slots)

    def _prefill(self, context: Context, slot: int) -> tuple[Outcome | None, float]:
        """Bring all of a prompt but its root into a slot: what a slot holds already is shared, bit by bit.

        Returns:
            Step 0 where the drafter learns from it, and the seconds it took.
        """
        model, prompt = self.model, tuple(context.token_ids.tolist())
        started = perf_counter()
        fed = context.token_ids[:-1]
        learns = self.parts.drafter is not None and self.parts.drafter.wants_prefill_logits
        source = None
        if not learns:
            held = [known for known, tokens in self._held.items() if tokens == prompt]
            source = slot if slot in held else next(iter(held), None)
        logits = None
        self._held.pop(slot, None)
        if source is None:
            model.cache.truncate(slot, 0)
            logits = model.prefill(slot, fed.tolist(), all_logits=learns)
        elif source == slot:
            model.cache.truncate(slot, fed.size)
        else:
            model.cache.fork(source, slot, fed.size)
        model.synchronize()
        self._held[slot] = prompt
        ended = perf_counter()
        self._prefill_seconds += ended - started
        self._timeline.add(
            TARGET, "prefill", started, ended, context.sequence, fed.size if source is None else 0
        )
        outcome = None if logits is None else prefill_outcome(context, np.array(fed), logits)
        return outcome, ended - started

    def _check_open(self) -> None:
        if self.closed:
            raise RuntimeError("this executor was closed, or a run failed: open the strategy again")

    def _check(self, jobs: Sequence[Job]) -> None:
        if not jobs:
            raise ValueError("there is no job to run: at least one is needed")
        sequences = [job.sequence for job in jobs]
        twice = [sequence for sequence in sequences if sequences.count(sequence) > 1]
        if twice:
            raise ValueError(f"two jobs are of sequence {twice[0]!r}: every job needs a sequence of its own")
        for job in jobs:
            try:
                self.model.check_request(job.prompt, job.max_new_tokens)
            except ValueError as error:
                raise ValueError(f"sequence {job.sequence!r}: {error}") from error
