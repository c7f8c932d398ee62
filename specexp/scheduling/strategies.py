"""Execution strategies: several sequences on one target. A strategy changes when a token comes, never which one."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field
from typing_extensions import override

from specexp.core.checked import Checked
from specexp.core.contracts import DeterministicVerifier
from specexp.core.parts import Parts, check_composition
from specexp.scheduling.queue import FirstCome, QueuePolicy

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from specexp.core.runtime import Runtime
    from specexp.scheduling.executor import Executor

Positive = Annotated[int, Field(ge=1)]


class Execution(metaclass=Checked):
    """A strategy to decode several sequences on one target. Its constructor is its configuration; it holds no model.

    A sequence's output is the same under every strategy with ``Greedy`` and ``KeyedSampling``, and with
    ``RejectionSampling`` if its drafter and controller keep nothing from one sequence to the next.

    Attributes:
        n: sequences at a time.
        threads: number of torch's threads for the target; None leaves it as it is.

    Example:
        >>> with Scheduled(n=3).open(model, parts) as executor:  # doctest: +SKIP
        ...     run = executor.run([Job(prompt, sequence=f"sample {number}") for number in range(3)])
    """

    n: int = 1
    threads: int | None

    def check(self, parts: Parts) -> None:
        """Raise ``ValueError`` for parts that cannot work with this strategy."""
        check_composition(*parts)
        if self.n == 1 or isinstance(parts.verifier, DeterministicVerifier):
            return
        for part in (parts.drafter, parts.controller):
            if part is not None and part.shares_state:
                raise ValueError(
                    f"{type(part).__name__} shares what it learns between the sequences of {type(self).__name__}, so "
                    f"the draws of {type(parts.verifier).__name__} would depend on their timing: set its state to cold "
                    "or preloaded, or verify with KeyedSampling"
                )

    @abstractmethod
    def open(self, model: PreTrainedModel | Runtime, parts: Parts) -> Executor:
        """Start whatever the strategy needs; raises ``ValueError`` as :meth:`check`, or for an unfit target."""


class _InOneThread(Execution):
    @override
    def open(self, model: PreTrainedModel | Runtime, parts: Parts) -> Executor:
        from specexp.scheduling.executor import Executor

        self.check(parts)
        return Executor(model, parts, self.n, self.threads)


class SerialSpeculative(_InOneThread):
    """Speculative decoding of one sequence after the other (SEED, Fig. 1 b): the target idles while the drafter works.

    Args:
        threads: number of torch's threads, for target and drafter; None leaves it as it is.
    """

    def __init__(self, threads: Positive | None = None) -> None:
        self.threads = threads


class Serial(SerialSpeculative):
    """Plain autoregressive decoding of one sequence after the other (SEED, Fig. 1 a); a drafter is left out.

    Args:
        threads: number of torch's threads; None leaves it as it is.
    """

    @override
    def open(self, model: PreTrainedModel | Runtime, parts: Parts) -> Executor:
        check_composition(*parts)
        return super().open(model, Parts(verifier=parts.verifier))


class Batched(_InOneThread):
    """Decodes ``n`` sequences in lockstep: each drafts, and one target pass verifies all drafts (SEED, Fig. 1 d).

    A draft model drafts for all of them in one pass a level. Nothing overlaps: the target waits for the last draft, and
    all wait for the target. Without a drafter it is batched plain decoding. A sequence that ends makes room for the
    next one.

    Args:
        n: sequences at a time, each with a KV cache of target and draft model.
        threads: number of torch's threads, for target and drafter; None leaves it as it is.
    """

    def __init__(self, n: Positive = 3, threads: Positive | None = None) -> None:
        self.n = n
        self.threads = threads


class Scheduled(Execution):
    """Scheduled speculative decoding (SEED, Algorithm 2): the target verifies one sequence while others draft.

    ``n`` sequences draft over one copy of the draft model's weights, each with its own KV cache. A draft that is ready
    queues for the target, which serves the queue without a pause. A sequence that ends makes room for the next one.

    Args:
        n: sequences at a time; with 1 nothing overlaps.
        policy: chooses among waiting drafts; first come, first served if None.
        verify_batch: most waiting drafts in one target pass (1 in the paper). It never waits for more.
        workers: number of drafting processes, each for its share of the sequences, among which alone carried state is
            shared; or ``thread``: a thread of this process, for drafters that hardly compute, since threads of one
            interpreter hinder each other. A process imports the program's script only if a part is defined there; the
            script must then keep its actions under ``if __name__ == "__main__"``.
        threads: number of torch's threads for the target; None leaves it as it is.
        draft_threads: number of torch's threads of each drafting process; None leaves it as it is.

    Raises:
        ValueError: ``verify_batch`` or ``workers`` is above ``n``.
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
            raise ValueError(f"verify_batch was {verify_batch}, but only n={n} sequences draft at a time")
        if workers != "thread" and workers > n:
            raise ValueError(f"workers was {workers}, but only n={n} sequences draft at a time")
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
                "Scheduled overlaps drafting with the target, and the composition has no drafter: give drafter and "
                "builder, or use Serial or Batched"
            )
        if parts.wants_hidden:
            raise ValueError(
                f"Scheduled drafts away from the target, and {type(parts.drafter).__name__} reads its hidden states, "
                "which are not sent there: use Serial or Batched, or another drafter"
            )

    @override
    def open(self, model: PreTrainedModel | Runtime, parts: Parts) -> Executor:
        from specexp.scheduling.scheduler import ScheduledExecutor

        self.check(parts)
        queue = self.policy, self.verify_batch
        return ScheduledExecutor(model, parts, self.n, self.threads, queue, self.workers, self.draft_threads)
