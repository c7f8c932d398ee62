"""Drafts from a constraint: the text that a grammar forces, and every way where it leaves few."""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import override

from specexp.core.context import Context
from specexp.core.contracts import Drafter
from specexp.core.dialogue import Candidates, Request
from specexp.drafters.ranking import candidates_of


class Grammar(Drafter):
    """Proposes what the sequence's constraint (:class:`~specexp.core.constraint.Constraint`) leaves no choice about.

    After a row, that is the next token of the forced text, such as braces, keys and quotes of a JSON schema. Its tokens
    are those that the tokenizer writes. Where nothing is forced but at most 4 tokens are allowed, all are candidates.
    Other drafters draft forced text as well, but only where they have no candidates that are allowed. Sequences without
    a constraint get no candidates, so join it with other drafters in a ``Union``.
    """

    learns_from = "nothing"
    max_candidates: int = 4

    @override
    def propose(self, context: Context, request: Request) -> Candidates:
        return candidates_of(request, (self._after(context, request.path_tokens(row)) for row in request.rows.tolist()))

    def _after(self, context: Context, path: Sequence[int]) -> list[int]:
        if context.constraint is None:
            return []
        if forced := context.constraint.forced(path):
            return forced[:1]
        tokens = context.constraint.some(path, self.max_candidates + 1)
        return tokens if len(tokens) <= self.max_candidates else []
