"""Several drafters in one tree."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field
from typing_extensions import override

from specexp.core.context import Context
from specexp.core.dialogue import Candidates, Request
from specexp.core.drafter import Drafter
from specexp.core.outcome import Outcome
from specexp.core.tree import NO_CANDIDATE

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from specexp.core.runtime import Runtime
    from specexp.drafters.draft_source import DraftSource


_MOST = 64


class Union(Drafter):
    """Gives every node the candidates of several drafters: the first drafter's, then what the next ones add.

    Args:
        drafters: 2 to 64, most trusted first, e.g. ``[PromptLookup(), TokenRecycling()]``: where the context
            repeats itself its continuation takes rank 0, and recycled tokens follow.

    Raises:
        ValueError: fewer than 2 drafters, or more than 64.
    """

    learns_from = "nothing"

    def __init__(self, drafters: Annotated[list[Drafter], Field(max_length=_MOST)]) -> None:
        if not 2 <= len(drafters) <= _MOST:
            raise ValueError(f"Union takes 2 to {_MOST} drafters, got {len(drafters)}")
        self.drafters = drafters

    @property
    @override
    def draft_passes(self) -> int:  # type: ignore[override]
        return sum(drafter.draft_passes for drafter in self.drafters)

    @property
    @override
    def fed_tokens(self) -> int:  # type: ignore[override]
        return sum(drafter.fed_tokens for drafter in self.drafters)

    @property
    @override
    def coupled(self) -> bool:  # type: ignore[override]
        return any(drafter.coupled for drafter in self.drafters)

    @property
    @override
    def inner(self) -> tuple[Drafter, ...]:
        return tuple(self.drafters)

    @property
    @override
    def max_candidates(self) -> int:
        return sum(drafter.max_candidates for drafter in self.drafters)

    @property
    @override
    def phrase_length(self) -> int:  # type: ignore[override]
        return max(drafter.phrase_length for drafter in self.drafters)

    @property
    @override
    def wants_prefill_logits(self) -> bool:
        return any(drafter.wants_prefill_logits for drafter in self.drafters)

    @property
    @override
    def wants_hidden(self) -> bool:
        return any(drafter.wants_hidden for drafter in self.drafters)

    @property
    @override
    def shares_state(self) -> bool:
        return any(drafter.shares_state for drafter in self.drafters)

    @property
    @override
    def models(self) -> tuple[Runtime, ...]:
        return tuple(model for drafter in self.drafters for model in drafter.models)

    @override
    def alone(self) -> Drafter | None:
        return next((own for drafter in self.drafters if (own := drafter.alone()) is not None), None)

    @override
    def for_new_sequence(self) -> Union:
        return Union([drafter.for_new_sequence() for drafter in self.drafters])

    @override
    def costs_pass(self, request: Request) -> bool:
        return any(drafter.costs_pass(request) for drafter in self.drafters)

    @override
    def begin(self, context: Context, prefill: Outcome | None) -> None:
        for drafter in self.drafters:
            drafter.begin(context, prefill)

    @override
    def propose(self, context: Context, request: Request) -> Candidates:
        """Concatenate the drafters' candidates row by row and drop repetitions."""
        if request.length > 1:
            return self._phrases(context, request)
        return _joined(request, [drafter.propose(context, request) for drafter in self.drafters])

    @property
    @override
    def team(self) -> Hashable:
        """That of all its drafters, where one of them has any."""
        teams = tuple(drafter.team for drafter in self.drafters)
        return teams if any(team is not None for team in teams) else None

    @override
    def propose_together(self, asked: Sequence[tuple[Union, Context, Request]]) -> list[Candidates]:
        if any(request.length > 1 for _, _, request in asked):
            return super().propose_together(asked)
        answers = [
            own.propose_together([(one.drafters[place], context, request) for one, context, request in asked])
            for place, own in enumerate(self.drafters)
        ]
        return [
            _joined(request, said)
            for (_, _, request), said in zip(asked, zip(*answers, strict=True), strict=True)
        ]

    def _phrases(self, context: Context, request: Request) -> Candidates:
        """Phrases of the drafters that have any, as many of each one's as there is still room for."""
        tokens = np.full((request.rows.size, request.k, request.length), NO_CANDIDATE, dtype=np.int64)
        answers = [
            drafter.propose(context, request).tokens for drafter in self.drafters if drafter.phrase_length > 1
        ]
        for number, phrases in enumerate(np.concatenate(answers, axis=1)):
            there = phrases[phrases[:, 0] != NO_CANDIDATE][: request.k]
            tokens[number, : len(there)] = there
        return Candidates(tokens)

    @override
    def observe(self, outcome: Outcome) -> None:
        for drafter in self.drafters:
            drafter.observe(outcome)

    @override
    def reset(self) -> None:
        for drafter in self.drafters:
            drafter.reset()

    @override
    def state_dict(self) -> dict[str, Any]:
        return {str(number): drafter.state_dict() for number, drafter in enumerate(self.drafters)}

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        expected = [str(number) for number in range(len(self.drafters))]
        self.check_entries(state, expected)
        for number, drafter in enumerate(self.drafters):
            drafter.load_state_dict(state[str(number)])

    @override
    def use_draft_model(self, model: PreTrainedModel | DraftSource | None) -> None:
        for drafter in self.drafters:
            drafter.use_draft_model(model)

    @override
    def use_target(self, target: Runtime) -> None:
        for drafter in self.drafters:
            drafter.use_target(target)

    @override
    def check_vocabulary(self, vocab_size: int) -> None:
        for drafter in self.drafters:
            drafter.check_vocabulary(vocab_size)


def _joined(request: Request, answers: Sequence[Candidates]) -> Candidates:
    """The candidates of all drafters row by row, without repetitions."""
    tokens = np.full((request.rows.size, request.k), NO_CANDIDATE, dtype=np.int64)
    for number, row in enumerate(np.concatenate([said.tokens for said in answers], axis=1).tolist()):
        distinct = [token for token in dict.fromkeys(row) if token != NO_CANDIDATE][: request.k]
        tokens[number, : len(distinct)] = distinct
    return Candidates(tokens)
