"""A drafter that combines several drafters in one tree."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Annotated

import numpy as np
from pydantic import Field
from typing_extensions import override

from specexp.core.context import Context, PerSequence
from specexp.core.contracts import Drafter
from specexp.core.dialogue import Candidates, Request
from specexp.core.tree import NO_CANDIDATE
from specexp.core.wrappers import DrafterWrapper
from specexp.drafters.ranking import candidates_of
from specexp.drafters.token_drafter import TokenDrafter


class Union(DrafterWrapper, TokenDrafter):
    """Proposes several drafters' candidates at each node: all of the first drafter's, then new ones from the others.

    Args:
        drafters: 2 to 64 drafters, most trusted first. With ``[PromptLookup(), TokenRecycling()]``, a continuation
            found in the context has rank 0, and recycled tokens follow.

    Raises:
        ValueError: fewer than 2 drafters, or more than 64.
    """

    learns_from = "nothing"
    gives_log_probs = False  # those of different drafters are not comparable
    draws = False

    def __init__(self, drafters: Annotated[list[Drafter], Field(min_length=2, max_length=64)]) -> None:
        self.inner = tuple(drafters)
        # the last step's requests, each with the candidates of every inner drafter
        self._answered: PerSequence[tuple[int, list[tuple[Request, Sequence[Candidates]]]]] = PerSequence()

    @override
    def propose(self, context: Context, request: Request) -> Candidates:
        if request.length > 1:
            return self._phrases(context, request)
        return self._joined(context, request, [one.propose(context, request) for one in self.inner])

    @override
    def next_token(self, context: Context, path: tuple[int, ...]) -> int:
        found = (one.next_token(context, path) for one in self.inner if isinstance(one, TokenDrafter))
        return next((token for token in found if token != NO_CANDIDATE), NO_CANDIDATE)

    @override
    def source_of(self, context: Context, path: tuple[int, ...]) -> str:
        """Return the source according to the first inner drafter that proposed the token."""
        for request, answers in self._answered[context][1]:
            for row, number in enumerate(request.rows.tolist()):
                if request.path_tokens(number) == path[:-1]:
                    for drafter, answer in zip(self.inner, answers, strict=True):
                        if path[-1] in answer.tokens[row]:
                            return drafter.source_of(context, path)
        return super().source_of(context, path)

    @property
    @override
    def team(self) -> Hashable:
        teams = tuple(drafter.team for drafter in self.inner)
        return teams if any(team is not None for team in teams) else None

    @override
    def propose_together(self, requested: Sequence[tuple[Union, Context, Request]]) -> list[Candidates]:
        if any(request.length > 1 for _, _, request in requested):
            return super().propose_together(requested)
        answers = [
            own.propose_together([(one.inner[place], context, request) for one, context, request in requested])
            for place, own in enumerate(self.inner)
        ]
        return [
            one._joined(context, request, own)
            for (one, context, request), own in zip(requested, zip(*answers, strict=True), strict=True)
        ]

    def _phrases(self, context: Context, request: Request) -> Candidates:
        answers = [one.propose(context, request).tokens for one in self.inner if one.phrase_length > 1]
        phrases = np.concatenate(answers, axis=1)  # [f, k of all, length]
        # a stable sort moves empty phrases behind the others of their row
        order = np.argsort(phrases[:, :, 0] == NO_CANDIDATE, axis=1, kind="stable")
        return Candidates(np.take_along_axis(phrases, order[:, :, np.newaxis], axis=1)[:, : request.k])

    def _joined(self, context: Context, request: Request, answers: Sequence[Candidates]) -> Candidates:
        step = len(context)
        if self._answered.get(context, (None,))[0] != step:
            self._answered[context] = step, []
        self._answered[context][1].append((request, answers))
        rows = np.concatenate([one.tokens for one in answers], axis=1).tolist()  # [f, k of all]
        distinct = ([token for token in dict.fromkeys(row) if token != NO_CANDIDATE] for row in rows)
        passes = tuple(count for one in answers for count in one.pass_tokens)
        return replace(candidates_of(request, distinct), pass_tokens=passes)
