"""Prompt lookup: drafts the tokens that followed earlier occurrences of the last tokens (Saxena 2023)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from typing_extensions import override

from specexp.core.context import Context, PerSequence
from specexp.core.dialogue import Candidates, Request
from specexp.core.outcome import Outcome
from specexp.core.tree import NO_CANDIDATE
from specexp.drafters.ranking import candidates_of
from specexp.drafters.token_drafter import TokenDrafter


class PromptLookup(TokenDrafter):
    """Proposes tokens that followed earlier occurrences of the last n tokens, largest n first, then newest first.

    The index of a sequence contains only committed tokens, so each draft only adds the tokens since the last draft.

    Args:
        max_ngram: length of the longest suffix to look up, in tokens.
        min_ngram: length of the shortest suffix to look up, in tokens.
        candidates: maximum number of candidates per node; the published method uses 1.

    Raises:
        ValueError: ``min_ngram`` is larger than ``max_ngram``.
    """

    learns_from = "nothing"
    max_candidates: int = 1

    def __init__(
        self,
        max_ngram: Annotated[int, Field(ge=1, le=16)] = 3,
        min_ngram: Annotated[int, Field(ge=1, le=16)] = 1,
        candidates: Annotated[int, Field(ge=1, le=64)] = 1,
    ) -> None:
        if min_ngram > max_ngram:
            raise ValueError(f"PromptLookup: min_ngram must be at most max_ngram {max_ngram}, got {min_ngram}")
        self.max_ngram = max_ngram
        self.min_ngram = min_ngram
        self.max_candidates = candidates
        self._indexes: PerSequence[_SuffixIndex] = PerSequence()

    @override
    def begin(self, context: Context, prefill: Outcome | None) -> None:
        self._indexes.setdefault(context, _SuffixIndex(self.min_ngram, self.max_ngram)).extend_to(context)

    @override
    def propose(self, context: Context, request: Request) -> Candidates:
        tail = tuple(context.token_ids[-self.max_ngram :].tolist())
        index = self._indexes[context]
        index.extend_to(context)
        wanted = min(request.k, self.max_candidates)
        texts = (tail + request.path_tokens(row) for row in request.rows.tolist())
        return candidates_of(request, (index.continuations(text, wanted) for text in texts))

    @override
    def next_token(self, context: Context, path: tuple[int, ...]) -> int:
        index = self._indexes[context]
        index.extend_to(context)
        found = index.continuations((*context.token_ids[-self.max_ngram :].tolist(), *path), 1)
        return found[0] if found else NO_CANDIDATE

    @override
    def reset(self) -> None:
        self._indexes.clear()


class _SuffixIndex:
    """The tokens that followed each run of ``shortest`` to ``longest`` tokens, as ordered sets, newest last."""

    def __init__(self, shortest: int, longest: int) -> None:
        self._lengths = range(longest, shortest - 1, -1)
        self._followers: dict[tuple[int, ...], dict[int, None]] = {}
        self._indexed = 0

    def extend_to(self, context: Context) -> None:
        if self._indexed == len(context):
            return
        start = max(0, self._indexed - self._lengths[0])
        tokens = context.token_ids[start:].tolist()
        for end in range(max(1, self._indexed - start), len(tokens)):
            follower = tokens[end]
            for length in self._lengths:
                if length <= end:
                    followers = self._followers.setdefault(tuple(tokens[end - length : end]), {})
                    followers.pop(follower, None)  # move it to the end, as the newest
                    followers[follower] = None
        self._indexed = len(context)

    def continuations(self, tail: tuple[int, ...], wanted: int) -> list[int]:
        found: dict[int, None] = {}
        for length in self._lengths:
            if length > len(tail):
                continue
            for follower in reversed(self._followers.get(tail[-length:], {})):
                found[follower] = None
                if len(found) == wanted:
                    return list(found)
        return list(found)
