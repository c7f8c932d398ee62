"""SEED: several sequences draft while one target verifies, in rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field
from typing_extensions import override

from specexp.core.parts import Parts
from specexp.scheduling.execution import Execution, refuse_carried
from specexp.scheduling.queue import FirstCome, QueuePolicy

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from specexp.core.runtime import Runtime
    from specexp.scheduling.executor import Executor


class Scheduled(Execution):
    """Scheduled speculative decoding (SEED, Algorithm 2): the target verifies one sequence while others draft.

    ``n`` sequences draft over one copy of the draft model's weights, each with a KV cache of its own; a draft that is
    ready queues for the target, which serves the queue without a pause. A sequence that ends makes room for the next.

    Args:
        n: sequences at a time; with 1 nothing overlaps.
        policy: which of the waiting drafts is served; first come, first served if None.
        verify_batch: most waiting drafts that one target pass verifies (1 in the paper). It never waits for more.
        workers: how many processes draft, each for its share of the sequences, which alone share what its parts carry;
            ``thread``: a thread of this one drafts, for drafters that hardly compute, since threads of one interpreter
            hinder each other. A process imports the
            program's script only if parts come from there; it then keeps what it does under
            ``if __name__ == "__main__"``.
        threads: number of torch's threads for the target; None leaves it as it is.
        draft_threads: number of torch's threads for drafting, of each process; None leaves it as it is.

    Raises:
        ValueError: ``verify_batch`` or ``workers`` is above ``n``.
    """

    def __init__(
        self,
        n: Annotated[int, Field(ge=1)] = 3,
        policy: QueuePolicy | None = None,
        verify_batch: Annotated[int, Field(ge=1)] = 1,
        workers: Annotated[int, Field(ge=1)] | Literal["thread"] = 1,
        threads: Annotated[int, Field(ge=1)] | None = None,
        draft_threads: Annotated[int, Field(ge=1)] | None = 1,
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

    def check(self, parts: Parts) -> None:
        """There must be something to overlap, and outputs that depend on drafts must not depend on timing."""
        super().check(parts)
        if parts.drafter is None:
            raise ValueError(
                "Scheduled overlaps drafting with the target, and the composition has no drafter: give drafter and "
                "builder, or take Serial or Batched"
            )
        if parts.wants_hidden:
            raise ValueError(
                f"Scheduled drafts beside the target, and {type(parts.drafter).__name__} reads its hidden states, "
                "which are not sent there: take Serial or Batched, or another drafter"
            )
        refuse_carried(parts, "Scheduled")

    @override
    def open(self, model: PreTrainedModel | Runtime, parts: Parts) -> Executor:
        from specexp.scheduling.scheduler import ScheduledExecutor

        self.check(parts)
        shared = self.policy, self.verify_batch
        return ScheduledExecutor(model, parts, self.n, self.threads, shared, self.workers, self.draft_threads)
