"""Token Recycling: an adjacency matrix of the target's own candidate tokens (Luo et al. 2024, sections 3.1-3.3)."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from typing_extensions import override

from specexp.base.checked import Reference
from specexp.base.kernels import CannotCompileError, address, library
from specexp.core.context import Context
from specexp.core.dialogue import Candidates, Filled, Request
from specexp.core.outcome import Outcome
from specexp.core.tree import NO_CANDIDATE, TreeShape
from specexp.drafters.token_drafter import Initialisation, StatePolicy, TokenDrafter

UpdateRule = Literal["last", "first", "race", "race-distinct", "merge", "accepted"]


class TokenRecycling(TokenDrafter):
    """Proposes the ``k`` tokens that the target ranked highest when it last processed the same token.

    The defaults are our own; ``configs/token_recycling/published.yaml`` has the paper's values.

    Row ``v`` of the matrix ``[V, k]`` (int32, 1 MB at V = 32,000 and k = 8) holds the candidates after token ``v``.
    After each target pass, the row of every fed token, whether accepted or not, is replaced by the top k of its logits.

    Args:
        k: candidates per token; the paper uses 8.
        update: rule for a token that is fed more than once in a step. ``last`` and ``first`` keep the last or first
            occurrence in tree order. ``race`` imitates the paper's concurrent writes: each rank comes from a random
            occurrence (keyed by place), so a row or a tree may contain a candidate twice. Three rules are our own:
            ``race-distinct`` drops repeated candidates. ``merge`` combines the candidates of all occurrences, best
            ranks first. ``accepted`` updates only the rows of the root and accepted nodes.
        initialisation: ``empty`` starts without candidates, whereas the paper starts with token 0 everywhere.
            ``prompt`` makes each prompt token's most recent follower its first candidate, ahead of those from the
            prompt's logits. In a later turn, the prompt is all the text so far.
        prefill_update: also learn from the prompt's logits. The paper learns only from draft tokens (section 3.3).
        state: ``cold`` starts every prompt with an empty matrix. ``carry`` keeps the matrix from prompt to prompt (the
            paper's hot start). ``preloaded`` starts every prompt with ``matrix``.
        matrix: for ``state="preloaded"``: ``[V, k]`` int32 candidates after each token, best first, padded with -1; in
            a configuration, the path to an ``adjacency-matrix`` artifact.
        coupled: for the verifier ``KeyedSampling``: also store the candidates' logits (4 bytes each), and rank by them
            plus the noise that the target adds at that position. The output is unchanged, but more drafts are accepted,
            since this noise is known before the target pass. This is our addition to the paper.

    Raises:
        ValueError: only one of ``matrix`` and ``state="preloaded"`` is given, or the matrix has the wrong type or
            number of columns; or ``coupled`` is combined with ``preloaded`` (a matrix has no logits).
    """

    max_candidates: int = 1

    def __init__(
        self,
        k: Annotated[int, Field(ge=1, le=64)] = 8,
        update: UpdateRule = "last",
        initialisation: Initialisation = "empty",
        prefill_update: bool = True,
        state: StatePolicy = "cold",
        matrix: Annotated[NDArray[np.int32], Reference("adjacency-matrix")] | None = None,
        coupled: bool = False,
    ) -> None:
        if (matrix is not None) != (state == "preloaded"):
            raise ValueError(
                "TokenRecycling: matrix must be given if and only if state is 'preloaded', got state "
                f"{state!r} {'without' if matrix is None else 'with'} a matrix"
            )
        if coupled and state == "preloaded":
            raise ValueError(
                "TokenRecycling cannot be both coupled and preloaded: coupling needs logits, which a matrix lacks"
            )
        self.k = k
        self.coupled = coupled
        self.update = update
        self.max_candidates = self.learned_candidates = k
        self.learns_from = "accepted" if update == "accepted" else "all-nodes"
        self.initialisation = initialisation
        self.prefill_update = self.wants_prefill_logits = prefill_update
        self.state = state
        self.matrix = np.empty((0, k), dtype=np.int32)  # no rows until the vocabulary is known
        self._initial = self.matrix
        self._logits = np.empty((0, k), dtype=np.float32)  # [V, k], filled only if coupled
        if matrix is not None:
            _check_matrix(matrix, k)
            self._initial = matrix

    @override
    def fill(self, context: Context, shape: TreeShape) -> Filled | None:
        own = type(self).propose is TokenRecycling.propose  # a subclass may propose by another rule
        kernels = _kernels() if own else None
        if kernels is None:
            return None
        tokens = np.empty(shape.parents.size, dtype=np.int64)
        tokens[0] = context.root
        logits = noise = None
        if self.coupled and context.noise_temperature > 0:
            drawn = context.target_noise(len(context), max(shape.max_depth, 1), len(self.matrix))
            logits, noise = address(self._logits), drawn.data_ptr()
        table = (address(self.matrix), logits, *self.matrix.shape)
        rows = address(shape.table), tokens.size, address(tokens)
        kernels.fill(*table, noise, context.noise_temperature, *rows)
        return Filled(tokens)

    @override
    def check_vocabulary(self, vocab_size: int) -> None:
        if self.k > vocab_size:
            raise ValueError(
                f"TokenRecycling: k must be at most the target's vocabulary size {vocab_size}, got {self.k}"
            )
        if self.state == "preloaded":
            if self._initial.shape[0] != vocab_size:
                raise ValueError(
                    f"the adjacency matrix must have {vocab_size} rows, one per token of the target's vocabulary, "
                    f"got {self._initial.shape[0]}"
                )
        elif self._initial.shape[0] != vocab_size:
            self._initial = np.full((vocab_size, self.k), NO_CANDIDATE, dtype=np.int32)
        if self.matrix.shape[0] != vocab_size:
            self.reset()

    @override
    def begin(self, context: Context, prefill: Outcome | None) -> None:
        if self.state != "carry" and not context.continued:
            self.reset()
        if prefill is not None and self.prefill_update:
            self.observe(prefill)
        if self.initialisation == "prompt":  # not earlier, since the prefill's logits replace these rows
            prompt = context.token_ids
            for token, following in zip(prompt[:-1].tolist(), prompt[1:].tolist(), strict=True):
                self._put_first(token, following)

    @override
    def propose(self, context: Context, request: Request) -> Candidates:
        frontier = request.tokens[request.rows]  # [f]
        tokens = self.matrix[frontier].astype(np.int64)  # [f, k]
        if self.coupled and context.noise_temperature > 0:
            scores = self._logits[frontier] / np.float32(context.noise_temperature)
            depths = request.depths()
            noise = context.target_noise(len(context), max(depths) + 1, self.matrix.shape[0]).numpy()
            scores += noise[np.array(depths)[:, np.newaxis], tokens]
            scores[tokens == NO_CANDIDATE] = -np.inf  # index -1 added the last token's noise
            order = np.argsort(-scores, axis=1, kind="stable")
            tokens = tokens[np.arange(frontier.size)[:, np.newaxis], order]
        return Candidates(tokens[:, : request.k])

    @override
    def next_token(self, context: Context, path: tuple[int, ...]) -> int:
        return int(self.matrix[path[-1] if path else context.root, 0])

    @override
    def observe(self, outcome: Outcome) -> None:
        rows: list[int] | slice = slice(None)
        if self.update == "accepted":
            rows = [0, *outcome.accepted]
        elif self.update == "first":
            rows = slice(None, None, -1)  # numpy keeps the last value of a repeated index
        tokens, top_k = outcome.tree.tokens[rows], outcome.top_k(self.k)[rows]
        logits = outcome.top_k_logits(self.k)[rows] if self.coupled else None
        if self.update in ("merge", "race", "race-distinct"):
            self._combine(outcome.context, tokens, top_k, logits)
            return
        self.matrix[tokens] = top_k  # M[v] = the top-k of the target's logits after v (section 3.2)
        if logits is not None:
            self._logits[tokens] = logits

    @override
    def reset(self) -> None:
        self.matrix = self._initial.copy()
        if self.coupled:
            self._logits = np.zeros(self.matrix.shape, dtype=np.float32)

    @override
    def state_dict(self) -> dict[str, Any]:
        import torch  # imported late: checking a configuration does not need it

        state = {"matrix": torch.from_numpy(self.matrix.copy())}
        if self.coupled:
            state["logits"] = torch.from_numpy(self._logits.copy())
        return state

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        entries = ["logits", "matrix"] if self.coupled else ["matrix"]
        self.check_entries(state, entries)
        arrays = {name: np.asarray(state[name]) for name in entries}
        rows = self.matrix.shape[0] or arrays["matrix"].shape[0]  # 0 until the vocabulary is known
        for name, array in arrays.items():
            if array.shape != (rows, self.k):
                raise ValueError(f"the saved {name} must be {[rows, self.k]}, got {list(array.shape)}")
        if rows:
            _check_matrix(arrays["matrix"], self.k)
        self.matrix = arrays["matrix"].astype(np.int32)
        if self.coupled:
            self._logits = arrays["logits"].astype(np.float32)

    def _put_first(self, token: int, candidate: int) -> None:
        kept = np.flatnonzero(self.matrix[token] != candidate)[: self.k - 1]
        self.matrix[token, 1 : 1 + kept.size] = self.matrix[token, kept]
        self.matrix[token, 0] = candidate
        if self.coupled:  # its logit is unknown: take the best known one
            self._logits[token, 1 : 1 + kept.size] = self._logits[token, kept]
            self._logits[token, 0] = self._logits[token, : 1 + kept.size].max()

    def _combine(
        self,
        context: Context,
        tokens: NDArray[np.int64],
        top_k: NDArray[np.int64],
        logits: NDArray[np.float32] | None,
    ) -> None:
        """Update each token's row from all of its occurrences, by merging them or by a race."""
        chances = context.uniforms("race", len(context), size=top_k.size).reshape(top_k.shape)
        ranks = np.arange(self.k)
        for token in np.unique(tokens):
            rows = np.flatnonzero(tokens == token)
            # rank by rank, so that the best candidates of all occurrences come first
            if self.update == "merge":
                positions = np.tile(rows, self.k), np.repeat(ranks, rows.size)
            else:  # concurrent writes: every rank keeps the write of a random occurrence
                positions = rows[chances[rows].argmax(axis=0)], ranks
            candidates, kept = top_k[positions], ranks
            if self.update != "race":  # without repeats
                kept = np.sort(np.unique(candidates, return_index=True)[1])[: self.k]
            self.matrix[token] = NO_CANDIDATE
            self.matrix[token, : kept.size] = candidates[kept]
            if logits is not None:
                self._logits[token, : kept.size] = logits[positions][kept]


@cache
def _kernels() -> Any:
    """Return the compiled ``token_recycling.cpp``, or None without a compiler."""
    try:
        found = library(Path(__file__).with_suffix(".cpp"))
    except CannotCompileError:
        return None
    place, number = ctypes.c_void_p, ctypes.c_int64
    found.fill.argtypes = (place, place, number, number, place, ctypes.c_float, place, number, place)
    found.fill.restype = None
    return found


def _check_matrix(matrix: NDArray[np.int32], k: int) -> None:
    if matrix.dtype != np.int32 or matrix.ndim != 2 or 0 in matrix.shape:
        raise ValueError(f"matrix must be int32 [V, k], got {matrix.dtype} {list(matrix.shape)}")
    if matrix.shape[1] != k:
        raise ValueError(f"TokenRecycling: matrix must have k={k} columns, got {matrix.shape[1]}")
    if matrix.min() < NO_CANDIDATE or matrix.max() >= matrix.shape[0]:
        raise ValueError(
            f"matrix must have ids from {NO_CANDIDATE} to {matrix.shape[0] - 1}, got {matrix.min()} to {matrix.max()}"
        )
