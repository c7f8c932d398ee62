"""SEED: several sequences draft while one target verifies, and the policy of its queue."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from pydantic import Field
from typing_extensions import override

from specexp.core.checked import Checked
from specexp.core.parts import Parts
from specexp.core.tree import TokenTree
from specexp.scheduling.execution import Execution, refuse_carried

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from specexp.core.runtime import Runtime
    from specexp.scheduling.executor import Executor


class Waiting(NamedTuple):
    """A draft that waits for the target.

    Attributes:
        sequence: whose it is.
        new_tokens: tokens its sequence has so far.
        tree: the draft.
    """

    sequence: int | str
    new_tokens: int
    tree: TokenTree

    @property
    def log_prob(self) -> float:
        """Draft log-probability of its most probable path; 0 where the drafter gives none, or drafted nothing."""
        log_probs = self.tree.log_probs
        return 0.0 if log_probs is None else float(log_probs[[*self.tree.best_path()]].sum())


class QueuePolicy(metaclass=Checked):
    """Orders the queue of drafts. It changes when a sequence is served, never what it says.

    The target never waits while a draft does, whatever the policy.
    """

    @abstractmethod
    def choose(self, waiting: Sequence[Waiting], most: int) -> list[int]:
        """Which drafts the next target pass verifies.

        Args:
            waiting: drafts that are ready, at least one, in the order of arrival.
            most: greatest number of drafts to choose, at least 1.

        Returns:
            Their places in ``waiting``, all different, at least one and at most ``most``.
        """


class FirstCome(QueuePolicy):
    """First come, first served, as in SEED (section 4.2): of n sequences none waits longer than n rounds."""

    def choose(self, waiting: Sequence[Waiting], most: int) -> list[int]:
        """The first."""
        return list(range(min(most, len(waiting))))


class LeastProgress(QueuePolicy):
    """The sequence with the fewest tokens first, so that all end at about the same time and few drafters idle then."""

    def choose(self, waiting: Sequence[Waiting], most: int) -> list[int]:
        """Those that are furthest behind; of equals the first to come."""
        return sorted(range(len(waiting)), key=lambda place: waiting[place].new_tokens)[:most]


class MostConfident(QueuePolicy):
    """The draft with the most probable path first: it likely gives the most tokens. A sequence may wait for long."""

    def choose(self, waiting: Sequence[Waiting], most: int) -> list[int]:
        """The surest; of equals the first to come."""
        return sorted(range(len(waiting)), key=lambda place: -waiting[place].log_prob)[:most]


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
        return ScheduledExecutor(model, parts, self)
