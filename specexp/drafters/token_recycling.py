"""Token Recycling: an adjacency matrix of the target's own candidate tokens (Luo et al. 2024, sections 3.1-3.3)."""

# No `from __future__ import annotations` here: jsonargparse then drops the bounds of the signature.

from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specexp.context import Context
from specexp.drafters._base import Candidates, Drafter, Request
from specexp.outcome import Outcome
from specexp.tree import NO_CANDIDATE

UpdateRule = Literal["last", "first", "merge", "accepted"]
Initialisation = Literal["empty", "prompt"]
StatePolicy = Literal["cold", "carry", "preloaded"]


class TokenRecycling(Drafter):
    """Proposes, after a token, the ``k`` most probable tokens the target last gave after that token.

    Row ``v`` of the matrix ``[V, k]`` (int32, 1 MB at V = 32,000 and k = 8) holds the candidates after token ``v``.
    After each target pass the rows of the fed tokens, accepted or not, take the top-k of their logits.

    Args:
        k: candidates a token; the paper uses 8.
        update: which occurrence of a token fed twice in one step counts: ``last`` or ``first`` in tree order,
            ``merge`` (candidates of all occurrences, best ranks first), or ``accepted`` (only the root and the
            accepted nodes update their rows).
        initialisation: ``empty`` (no candidate, instead of the paper's token 0 everywhere) or ``prompt`` (the token
            that follows in the prompt is the first candidate).
        prefill_update: also learn from the logits of the prompt.
        state: ``cold`` starts every prompt anew, ``carry`` keeps what earlier prompts taught (the paper's hot
            start), ``preloaded`` starts every prompt from ``matrix``.
        matrix: path of an ``adjacency-matrix`` artifact, for ``state="preloaded"``.

    Raises:
        ValueError: ``matrix`` is given without ``preloaded`` or the other way round, or holds another ``k``.

    Example:
        >>> drafter = TokenRecycling(k=8, state="carry")
    """

    def __init__(
        self,
        k: Annotated[int, Field(ge=1, le=64)] = 8,
        update: UpdateRule = "last",
        initialisation: Initialisation = "empty",
        prefill_update: bool = True,
        state: StatePolicy = "cold",
        matrix: str | None = None,
    ) -> None:
        if (matrix is not None) != (state == "preloaded"):
            raise ValueError(
                f"TokenRecycling was given state {state!r} and matrix {matrix!r}: "
                "'preloaded' needs a matrix, and only it takes one"
            )
        self.k = k
        self.update = update
        self.initialisation = initialisation
        self.prefill_update = prefill_update
        self.state = state
        self._matrix = np.empty((0, k), dtype=np.int32)  # [V, k], allocated when the vocabulary is known
        self._initial = self._matrix
        if matrix is not None:
            from specexp.artifacts import load_adjacency_matrix

            self._initial = load_adjacency_matrix(matrix)
            if self._initial.shape[1] != k:
                raise ValueError(
                    f"the matrix in {matrix} has k={self._initial.shape[1]}, TokenRecycling was given k={k}"
                )

    @property
    def max_candidates(self) -> int:
        """The matrix has ``k`` candidates a token."""
        return self.k

    @property
    def wants_prefill_logits(self) -> bool:
        """Only if the prompt's logits update the matrix."""
        return self.prefill_update

    @property
    def matrix(self) -> NDArray[np.int32]:
        """``[V, k]`` candidates after each token, best first, ``NO_CANDIDATE`` where there is none."""
        return self._matrix

    def check_vocabulary(self, vocab_size: int) -> None:
        """Allocate for ``vocab_size`` tokens, at least ``k``; a preloaded matrix must have as many rows."""
        if self.k > vocab_size:
            raise ValueError(
                f"TokenRecycling was given k={self.k}, but the target's vocabulary has only {vocab_size} tokens"
            )
        if self.state == "preloaded":
            if self._initial.shape[0] != vocab_size:
                raise ValueError(
                    f"the adjacency matrix has {self._initial.shape[0]} rows, the target's vocabulary {vocab_size} tokens"
                )
        elif self._initial.shape[0] != vocab_size:
            self._initial = np.full((vocab_size, self.k), NO_CANDIDATE, dtype=np.int32)
        if self._matrix.shape[0] != vocab_size:
            self.reset()

    def begin(self, context: Context, prefill: Outcome | None) -> None:
        """Apply the state policy, then learn from the prompt as configured."""
        if self.state != "carry" and not context.continued:
            self.reset()
        if self.initialisation == "prompt":
            prompt = context.token_ids
            for token, following in zip(prompt[:-1].tolist(), prompt[1:].tolist(), strict=True):
                self._put_first(token, following)
        if prefill is not None and self.prefill_update:
            self.observe(prefill)

    def propose(self, context: Context, request: Request) -> Candidates:
        """Look the frontier's tokens up."""
        return Candidates(self._matrix[request.tokens[request.rows], : request.k].astype(np.int64))

    def observe(self, outcome: Outcome) -> None:
        """Rows of the fed tokens take the top-k of their logits."""
        top_k = outcome.top_k(self.k)  # [n + 1, k]
        tokens = outcome.tree.tokens
        if self.update == "accepted":
            rows = [0, *outcome.accepted]
            tokens, top_k = tokens[rows], top_k[rows]
        if self.update == "merge":
            self._merge(tokens, top_k)
        elif self.update == "first":
            self._matrix[tokens[::-1]] = top_k[::-1]  # numpy keeps the last value of a repeated index
        else:
            self._matrix[tokens] = top_k

    def reset(self) -> None:
        """Back to the empty or the preloaded matrix."""
        self._matrix = self._initial.copy()

    def state_dict(self) -> dict[str, Any]:
        """The matrix."""
        import torch  # late: a configuration is checked without it

        return {"matrix": torch.from_numpy(self._matrix.copy())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved matrix of the same size."""
        if state.keys() != {"matrix"}:
            raise ValueError(
                f"the state of a TokenRecycling has the entry 'matrix', but {sorted(state)} was given"
            )
        matrix = np.asarray(state["matrix"], dtype=np.int32)
        rows = self._matrix.shape[0] or matrix.shape[0]  # any number until the vocabulary is known
        if matrix.shape != (rows, self.k):
            raise ValueError(f"the saved matrix is {list(matrix.shape)}, this drafter's {[rows, self.k]}")
        self._matrix = matrix.copy()

    def _put_first(self, token: int, candidate: int) -> None:
        row = self._matrix[token]
        others = row[row != candidate][: self.k - 1]
        row[1 : 1 + others.size] = others.copy()
        row[0] = candidate

    def _merge(self, tokens: NDArray[np.int64], top_k: NDArray[np.int64]) -> None:
        for token in np.unique(tokens):
            # rank by rank over the occurrences, so that every occurrence's best candidates come first
            ranked = dict.fromkeys(top_k[tokens == token].T.ravel().tolist())
            self._matrix[token] = list(ranked)[: self.k]
