"""What drafters share that draft with something of the target's own, through the tree cache of a draft model."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Self

from typing_extensions import override

from specexp.core.context import Context
from specexp.core.dialogue import Candidates, Request
from specexp.core.drafter import Drafter
from specexp.core.outcome import Outcome
from specexp.drafters.draft_model import DraftModel

if TYPE_CHECKING:
    from specexp.core.runtime import Runtime


class SelfDrafter(Drafter):
    """A :class:`~specexp.drafters.DraftModel` whose model is made of the target, so that no recording holds it.

    Args:
        temperature: as of a draft model.
        top_k: likewise.
        top_p: likewise.
        coupled: likewise.
    """

    gives_log_probs = True
    runs_model = True

    def __init__(
        self, temperature: float | None, top_k: int | None, top_p: float | None, coupled: bool
    ) -> None:
        self._drafting = DraftModel(None, temperature, top_k, top_p, coupled)
        self.coupled = coupled
        self.draws = not coupled

    @property
    @override
    def draft_passes(self) -> int:  # type: ignore[override]
        return self._drafting.draft_passes

    @property
    @override
    def fed_tokens(self) -> int:  # type: ignore[override]
        return self._drafting.fed_tokens

    @property
    @override
    def max_candidates(self) -> int:
        return self._drafting.max_candidates

    @property
    @override
    def models(self) -> tuple[Runtime, ...]:
        return self._drafting.models

    @abstractmethod
    @override
    def use_target(self, target: Runtime) -> None: ...

    @override
    def for_new_sequence(self) -> Self:
        """The same weights, with rows of its own."""
        other = copy(self)
        other._drafting = self._drafting.for_new_sequence()
        return other

    @override
    def begin(self, context: Context, prefill: Outcome | None) -> None:
        self._drafting.begin(context, prefill)

    @override
    def costs_pass(self, request: Request) -> bool:
        return self._drafting.costs_pass(request)

    @override
    def propose(self, context: Context, request: Request) -> Candidates:
        return self._drafting.propose(context, request)

    @property
    @override
    def team(self) -> Hashable:
        return self._drafting.team

    @override
    def propose_together(self, asked: Sequence[tuple[Self, Context, Request]]) -> list[Candidates]:
        return self._drafting.propose_together(
            [(one._drafting, context, request) for one, context, request in asked]
        )

    @override
    def observe(self, outcome: Outcome) -> None:
        self._drafting.observe(outcome)

    @override
    def reset(self) -> None:
        self._drafting.reset()
