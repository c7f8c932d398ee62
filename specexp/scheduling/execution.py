"""What an execution strategy is: sequences in, their tokens and a time line out; it changes when, never what."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from specexp.core.checked import Checked
from specexp.core.contracts import DeterministicVerifier
from specexp.core.parts import Parts, check_composition

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from specexp.core.runtime import Runtime
    from specexp.scheduling.executor import Executor


class Execution(metaclass=Checked):
    """How several sequences are decoded on one target. Its constructor is its configuration; it holds no model.

    Whatever the strategy, a sequence says the same under ``Greedy`` and ``KeyedSampling``, and under
    ``RejectionSampling`` if its drafter and controller keep nothing from one sequence to the next.

    Attributes:
        threads: number of torch's threads for the target; None leaves it as it is.

    Example:
        >>> with Scheduled(n=3).open(model, parts) as executor:  # doctest: +SKIP
        ...     run = executor.run([Job(prompt, sequence=f"sample {number}") for number in range(3)])
    """

    threads: int | None

    def check(self, parts: Parts) -> None:
        """Refuse parts that cannot work so.

        Raises:
            ValueError: one sentence that says what to change.
        """
        check_composition(*parts)

    @abstractmethod
    def open(self, model: PreTrainedModel | Runtime, parts: Parts) -> Executor:
        """Start what the strategy needs.

        Raises:
            ValueError: as :meth:`check`, or the parts do not go with the target.
        """


def refuse_carried(parts: Parts, strategy: str) -> None:
    """Refuse a verifier whose output depends on the draft together with parts that learn from one sequence for another.

    Raises:
        ValueError: one sentence that says what to change.
    """
    if isinstance(parts.verifier, DeterministicVerifier):
        return
    for part in (parts.drafter, parts.controller):
        if part is not None and part.shares_state:
            raise ValueError(
                f"{type(part).__name__} shares what it learns between the sequences of {strategy}, so what "
                f"{type(parts.verifier).__name__} draws would depend on their timing: set its state to cold or "
                "preloaded, or verify with KeyedSampling"
            )
