"""Execution strategies for several sequences on one target. A strategy changes the timing but never the tokens."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field
from typing_extensions import override

from specexp.base.checked import Checked
from specexp.core.contracts import DeterministicVerifier
from specexp.core.parts import Parts, check_composition
from specexp.scheduling.queue import FirstCome, QueuePolicy

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from specexp.core.runtime import Runtime
    from specexp.scheduling.executor import Executor

Positive = Annotated[int, Field(ge=1)]


class Execution(metaclass=Checked):
    """A strategy for decoding several sequences on one target. It holds only its configuration, not the model.

    With ``Greedy`` and ``KeyedSampling``, all strategies produce the same output. With ``RejectionSampling``, they do
    if the drafter and controller share no state between sequences.

    Example:
        >>> with Scheduled(n=3).open(model, parts) as executor:  # doctest: +SKIP
        ...     run = executor.run([Job(prompt, sequence=f"sample {number}") for number in range(3)])
    """

    n: int = 1  # sequences decoded at the same time
    threads: int | None  # of torch for the target; None keeps the current number

    def check(self, parts: Parts) -> None:
        """Raise ``ValueError`` if the parts do not work with this strategy."""
        check_composition(*parts)
        if self.n == 1 or isinstance(parts.verifier, DeterministicVerifier):
            return
        for part in (parts.drafter, parts.controller):
            if part is not None and part.shares_state:
                raise ValueError(
                    f"{type(part).__name__} shares what it learns between the sequences of {type(self).__name__}, so "
                    f"the output of {type(parts.verifier).__name__} would depend on timing: set state to cold or "
                    "preloaded, or use KeyedSampling"
                )

    @abstractmethod
    def open(self, model: PreTrainedModel | Runtime, parts: Parts) -> Executor:
        """Return an executor. Raises ``ValueError`` if the parts or the target are unsuitable, see :meth:`check`."""


class _InOneThread(Execution):
    @override
    def open(self, model: PreTrainedModel | Runtime, parts: Parts) -> Executor:
        from specexp.scheduling.executor import Executor

        self.check(parts)
        return Executor(model, parts, self.n, self.threads)


class SerialSpeculative(_InOneThread):
    """Speculative decoding of one sequence at a time (SEED, Fig. 1 b). The target is idle while the drafter works.

    Args:
        threads: number of torch threads for target and drafter. None keeps the current number.
    """

    def __init__(self, threads: Positive | None = None) -> None:
        self.threads = threads


class Serial(SerialSpeculative):
    """Plain autoregressive decoding of one sequence at a time (SEED, Fig. 1 a). Any drafter is ignored.

    Args:
        threads: number of torch threads. None keeps the current number.
    """

    @override
    def open(self, model: PreTrainedModel | Runtime, parts: Parts) -> Executor:
        check_composition(*parts)
        return super().open(model, Parts(verifier=parts.verifier))


class Batched(_InOneThread):
    """Decodes ``n`` sequences in lockstep: all draft, and one target pass verifies all drafts (SEED, Fig. 1 d).

    A draft model drafts one tree level of all sequences in one pass. Drafting and verification do not overlap.
    Without a drafter, this is batched plain decoding. When a sequence ends, the next one takes its place.

    Args:
        n: number of sequences decoded at the same time, each with its own KV caches.
        threads: number of torch threads for target and drafter. None keeps the current number.
    """

    def __init__(self, n: Positive = 3, threads: Positive | None = None) -> None:
        self.n = n
        self.threads = threads


class Scheduled(Execution):
    """Scheduled speculative decoding (SEED, Algorithm 2): the target verifies one sequence while others draft.

    The ``n`` sequences share the draft model's weights, and each has its own KV cache. Finished drafts wait in a queue,
    and the target verifies them without pause. When a sequence ends, the next one takes its place.

    Args:
        n: number of sequences decoded at the same time. With 1, drafting and verification do not overlap.
        policy: rule that chooses among waiting drafts. If None, first come, first served.
        verify_batch: maximum drafts per target pass (1 in the paper). The target never waits for a fuller pass.
        workers: number of drafting processes. Each drafts for a share of the sequences, and carried state is shared
            only within a process. ``thread`` drafts in a thread of this process, for drafters with little computation.
            If a part is defined in the main script, each process imports that script, so its top-level code must be
            guarded by ``if __name__ == "__main__"``.
        threads: number of torch threads for the target. None keeps the current number.
        draft_threads: number of torch threads for each drafting process. None keeps the current number.

    Raises:
        ValueError: ``verify_batch`` or ``workers`` is greater than ``n``.
    """

    def __init__(
        self,
        n: Positive = 3,
        policy: QueuePolicy | None = None,
        verify_batch: Positive = 1,
        workers: Positive | Literal["thread"] = 1,
        threads: Positive | None = None,
        draft_threads: Positive | None = 1,
    ) -> None:
        if verify_batch > n:
            raise ValueError(f"verify_batch must be at most n={n} sequences, got {verify_batch}")
        if workers != "thread" and workers > n:
            raise ValueError(f"workers must be at most n={n} sequences, got {workers}")
        self.n = n
        self.policy = policy or FirstCome()
        self.verify_batch = verify_batch
        self.workers: int | Literal["thread"] = workers
        self.threads = threads
        self.draft_threads = draft_threads

    @override
    def check(self, parts: Parts) -> None:
        super().check(parts)
        if parts.drafter is None:
            raise ValueError(
                "Scheduled needs a drafter, but the composition has none: set drafter and builder, or use Serial or "
                "Batched"
            )
        if parts.wants_hidden:
            raise ValueError(
                "Scheduled drafts in a worker, which has no access to the target's hidden states that "
                f"{type(parts.drafter).__name__} reads: use Serial or Batched, or another drafter"
            )

    @override
    def open(self, model: PreTrainedModel | Runtime, parts: Parts) -> Executor:
        from specexp.scheduling.scheduler import ScheduledExecutor

        self.check(parts)
        queue = self.policy, self.verify_batch
        return ScheduledExecutor(model, parts, self.n, self.threads, queue, self.workers, self.draft_threads)
