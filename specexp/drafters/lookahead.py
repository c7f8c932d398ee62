"""Lookahead decoding: the target refines its own guesses of later tokens during its regular passes (Fu et al. 2024)."""

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

_KEYS = 10_000  # maximum number of tokens with stored n-grams


class Lookahead(Drafter):
    """Drafts n-grams that the target itself generates, by Jacobi iteration over the next positions.

    Each step adds one level of guesses to a window of ``window`` columns. A column's next level holds the guess for the
    following position. In the tree, the oldest level is a chain below the root. A column's later levels branch off at
    its place in that chain. The target thus processes the window as draft nodes, which are accepted if correct. Its
    tokens after the columns' last guesses form the newest level. Once the window is full, each also completes an
    n-gram, which is stored in a pool. Stored n-grams that follow the root token are drafted too (the verification
    branch). The builder :class:`~specexp.builders.AllCandidates` feeds both parts completely if it has room for (N -
    1)(W + G) nodes, G + 2 candidates and W + N - 2 levels. In a smaller tree, the last columns are not updated.

    The window always begins right after the root, however many tokens a step adds. Its first level repeats the prompt's
    last tokens, whereas the published method starts with random ones.

    Args:
        window: number of positions ahead of the root; the paper's W.
        ngram: number of tokens in an n-gram; the paper's N. The window has N - 1 levels.
        verified: number of n-grams stored and drafted per preceding token; the paper's G.
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
        # in addition to the stored n-grams: the oldest level's next token, and the column's own branch
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
            return list(dict.fromkeys(one[depth] for one in paths if len(one) > depth and one[:depth] == path))

        return candidates_of(request, (after(request.path_tokens(row)) for row in request.rows.tolist()))

    @override
    def observe(self, outcome: Outcome) -> None:
        levels, answers = self._levels, outcome.answers()
        nodes = [_node(outcome, path) for path in self._columns()]
        if not nodes or nodes[0] is None:  # a step without a draft
            return
        # near the end of an output, the deepest columns are not fed and keep their guesses
        newest = [guess if node is None else int(answers[node]) for node, guess in zip(nodes, levels[-1], strict=True)]
        if len(levels) == self.ngram - 1:  # a full column and its answer form an n-gram
            for column, (token, node) in enumerate(zip(newest, nodes, strict=True)):
                first, *rest = (level[column] for level in levels)
                if node is not None:
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
                f"each saved level must have {self.window} tokens, got {[len(level) for level in state['levels']]}"
            )
        self._pool.load_state_dict(state["pool"])
        self._levels = [list(level) for level in state["levels"]]

    def _columns(self) -> Iterator[tuple[int, ...]]:
        """Yield each column's path below the root: first the oldest level up to it, then its later levels."""
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
