"""Lookahead: the target drafts for itself, by guesses that are fed in its own passes (Fu et al. 2024)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field
from typing_extensions import override

from specexp.core.context import Context
from specexp.core.contracts import Drafter
from specexp.core.dialogue import Candidates, Request
from specexp.core.outcome import Outcome
from specexp.drafters.phrases import PhraseStore
from specexp.drafters.ranking import candidates_of

_KEYS = 10_000  # tokens with phrases


class Lookahead(Drafter):
    """Keeps the last steps of Jacobi iterations over the next positions, and drafts the n-grams of these iterations.

    A column of the window holds the successive guesses of one position and those after it, one level per step. Each
    column is a path of the tree. The oldest level of all columns is a chain below the root, and the later levels of a
    column are below its place in the chain. So the window is fed in the target's pass as nodes, which are accepted if
    they are right. The target's token after a column's end completes an n-gram of the pool, and is the newest level.
    The pool's phrases after the root are the verification branch. :class:`~specexp.builders.AllCandidates` feeds all of
    both.

    The window keeps its place before the root, however many tokens a step adds. The first level repeats the prompt's
    last tokens, where the published one is random.

    Args:
        window: positions ahead of the root, the paper's W.
        ngram: tokens of an n-gram, the paper's N; the window has one level less.
        verified: phrases of a token that are kept and drafted, the paper's G.
    """

    learns_from = "all-nodes"
    max_candidates: int = 1

    def __init__(
        self,
        window: Annotated[int, Field(ge=1, le=64)] = 5,
        ngram: Annotated[int, Field(ge=2, le=16)] = 4,
        verified: Annotated[int, Field(ge=1, le=64)] = 5,
    ) -> None:
        self.window = window
        self.ngram = ngram
        self.verified = verified
        # in addition to the phrases: the oldest level's next token, and the column's own branch
        self.max_candidates = verified + 2
        self.reset()

    @override
    def begin(self, context: Context, prefill: Outcome | None) -> None:
        if not context.continued:
            self.reset()
            last = context.token_ids[-self.window :].tolist()
            self._levels = [(last * self.window)[: self.window]]

    @override
    def propose(self, context: Context, request: Request) -> Candidates:
        # the verification branch (n-grams after the root) first, then the window
        paths = [*self._pool.lookup(context.root, self.verified), *self._columns()]

        def after(path: tuple[int, ...]) -> list[int]:
            depth = len(path)
            return list(
                dict.fromkeys(one[depth] for one in paths if len(one) > depth and one[:depth] == path)
            )

        return candidates_of(request, (after(request.path_tokens(row)) for row in request.rows.tolist()))

    @override
    def observe(self, outcome: Outcome) -> None:
        levels, answers = self._levels, outcome.answers()
        nodes = [_node(outcome, path) for path in self._columns()]
        if not nodes or None in nodes:  # a column was not fed, as in a step without a draft
            return
        newest = [int(answers[node]) for node in nodes if node is not None]
        if len(levels) == self.ngram - 1:  # each column of the full window and its answer are an n-gram
            for column, token in enumerate(newest):
                first, *rest = (level[column] for level in levels)
                self._pool.insert(first, [*rest, token])
            del levels[0]
        # a Jacobi iteration: y_i(t + 1) = argmax p(y | y_1(t), ..., y_(i - 1)(t)) for all positions i at once
        levels.append(newest)

    @override
    def reset(self) -> None:
        self._levels = list[list[int]]()  # oldest first, each [window]
        self._pool = PhraseStore(self.ngram - 1, _KEYS, self.verified)

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"levels": [list(level) for level in self._levels], "pool": self._pool.state_dict()}

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.check_entries(state, ("levels", "pool"))
        if any(len(level) != self.window for level in state["levels"]):
            raise ValueError(
                f"the saved window has columns {[len(level) for level in state['levels']]}, this one {self.window}"
            )
        self._pool.load_state_dict(state["pool"])
        self._levels = [list(level) for level in state["levels"]]

    def _columns(self) -> Iterator[tuple[int, ...]]:
        """Yield the path of each column below the root: the oldest level up to it, then its later levels."""
        if self._levels:
            oldest, *later = self._levels
            for column in range(self.window):
                yield (*oldest[: column + 1], *(level[column] for level in later))


def _node(outcome: Outcome, path: tuple[int, ...]) -> int | None:
    row: int | None = 0
    for token in path:
        if row is not None:
            row = outcome.tree.child_with_token(row, token)
    return row
