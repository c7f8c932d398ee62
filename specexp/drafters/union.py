"""Several drafters in one tree."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Annotated

import numpy as np
from pydantic import Field
from typing_extensions import override

from specexp.core.context import Context
from specexp.core.contracts import Drafter
from specexp.core.dialogue import Candidates, Request
from specexp.core.tree import NO_CANDIDATE
from specexp.core.wrappers import DrafterWrapper


class Union(DrafterWrapper):
    """Gives every node the candidates of several drafters: the first drafter's, then what the next ones add.

    Args:
        drafters: 2 to 64, most trusted first, e.g. ``[PromptLookup(), TokenRecycling()]``: where the context
            repeats itself its continuation takes rank 0, and recycled tokens follow.

    Raises:
        ValueError: fewer than 2 drafters, or more than 64.
    """

    learns_from = "nothing"
    gives_log_probs = False  # those of several drafters are not comparable
    draws = False

    def __init__(self, drafters: Annotated[list[Drafter], Field(min_length=2, max_length=64)]) -> None:
        self.inner = tuple(drafters)

    @property
    def drafters(self) -> list[Drafter]:
        """The drafters, most trusted first."""
        return list(self.inner)

    @override
    def propose(self, context: Context, request: Request) -> Candidates:
        if request.length > 1:
            return self._phrases(context, request)
        return _joined(request, [drafter.propose(context, request) for drafter in self.inner])

    @property
    @override
    def team(self) -> Hashable:
        teams = tuple(drafter.team for drafter in self.inner)
        return teams if any(team is not None for team in teams) else None

    @override
    def propose_together(self, asked: Sequence[tuple[Union, Context, Request]]) -> list[Candidates]:
        if any(request.length > 1 for _, _, request in asked):
            return super().propose_together(asked)
        answers = [
            own.propose_together([(one.inner[place], context, request) for one, context, request in asked])
            for place, own in enumerate(self.inner)
        ]
        return [
            _joined(request, own)
            for (_, _, request), own in zip(asked, zip(*answers, strict=True), strict=True)
        ]

    def _phrases(self, context: Context, request: Request) -> Candidates:
        tokens = np.full((request.rows.size, request.k, request.length), NO_CANDIDATE, dtype=np.int64)
        answers = [
            drafter.propose(context, request).tokens for drafter in self.inner if drafter.phrase_length > 1
        ]
        for number, phrases in enumerate(np.concatenate(answers, axis=1)):
            there = phrases[phrases[:, 0] != NO_CANDIDATE][: request.k]
            tokens[number, : len(there)] = there
        return Candidates(tokens)


def _joined(request: Request, answers: Sequence[Candidates]) -> Candidates:
    tokens = np.full((request.rows.size, request.k), NO_CANDIDATE, dtype=np.int64)
    for number, row in enumerate(np.concatenate([one.tokens for one in answers], axis=1).tolist()):
        distinct = [token for token in dict.fromkeys(row) if token != NO_CANDIDATE][: request.k]
        tokens[number, : len(distinct)] = distinct
    return Candidates(tokens, pass_tokens=tuple(count for one in answers for count in one.pass_tokens))
