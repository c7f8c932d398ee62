"""Constraints on an output, such as a JSON schema: which tokens may come next, and which must."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from specexp.core.dialogue import Candidates, Request
from specexp.core.tree import NO_CANDIDATE, NodeKind, TokenTree

if TYPE_CHECKING:
    import torch


_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, np.newaxis], axis=1, bitorder="little")
_BIAS = np.where(_BITS, np.float32(0), np.float32(-np.inf))
"""``[256, 8]``: what is added to the logits of eight tokens, by the byte of their bits."""


class Constraint(ABC):
    """The rule of one output, after its committed tokens. A *path* is the tokens of a draft after them."""

    eos_token_ids: frozenset[int]  # tokens that end the output once the rule is satisfied

    @abstractmethod
    def mask(self, path: Sequence[int]) -> NDArray[np.uint8]:
        """Return the tokens allowed after a path; none if the path itself is not allowed.

        A token is a bit, the lowest of a byte first: ``[ceil(V / 8)]``, and perhaps bytes of zeros behind.
        """

    @abstractmethod
    def allowed(self, path: Sequence[int], tokens: Sequence[int]) -> int:
        """Return how many of the tokens, one after the other, are in the masks after a path. It is cheap."""

    @abstractmethod
    def forced(self, path: Sequence[int]) -> list[int]:
        """Return the tokens of the text that must follow a path, as the tokenizer writes it.

        The last of them may be wrong if its text shares a token with what follows. Empty if the path is not allowed.
        """

    @abstractmethod
    def commit(self, tokens: Sequence[int]) -> None:
        """Append allowed tokens to the output; raises ``ValueError`` if one is not allowed."""

    def some(self, path: Sequence[int], most: int) -> list[int]:
        """Return ``most`` of the tokens allowed after a path, or all of them if there are fewer."""
        mask = self.mask(path)
        used = np.flatnonzero(mask)[:most]  # each of these bytes has a token, so the others need not be unpacked
        return tokens_in(mask[: used[-1] + 1])[:most].tolist() if used.size else []


def tokens_in(mask: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the tokens of a mask, in ascending order."""
    return np.flatnonzero(np.unpackbits(mask, bitorder="little").view(bool))


def masked(constraint: Constraint | None, tree: TokenTree, logits: torch.Tensor) -> torch.Tensor:
    """Return ``[n + 1, V]`` logits of a tree, with ``-inf`` for tokens that are not allowed after their rows.

    Rows that are not allowed themselves, or end the output, keep their logits, since no token after them counts.
    """
    if constraint is None:
        return logits
    import torch

    rows, vocab_size = logits.shape
    everything = np.full(-(-vocab_size // 8), 255, dtype=np.uint8)
    masks = [constraint.mask(path_tokens(tree, row)) for row in range(rows)]
    packed = [mask[: len(everything)] if mask.any() else everything for mask in masks]
    # adding a table's rows takes a quarter of the time of masked_fill
    bias = _BIAS.take(np.concatenate(packed), axis=0).reshape(rows, -1)[:, :vocab_size]
    return logits + torch.from_numpy(bias).to(logits)


def path_tokens(tree: TokenTree, row: int) -> list[int]:
    """Return the tokens from depth 1 down to a row."""
    return [int(tree.tokens[node]) for node in tree.shape.path(row)]


def constrained(constraint: Constraint, request: Request, answer: Candidates) -> Candidates:
    """Return the candidates that are allowed, in the same order; phrases are cut at their first token that is not.

    A row that is left without candidates gets the text that must follow it, if any. So every drafter drafts what the
    constraint forces. Drawn candidates stay: a verifier of draws must see all of them.
    """
    if request.kind is not NodeKind.POINT_MASS:
        return answer
    phrases = answer.tokens.ndim == 3
    given = answer.tokens if phrases else answer.tokens[:, :, np.newaxis]  # [f, k, length]
    width = max(1, given.shape[1])  # room for forced text
    tokens = np.full((len(given), width, given.shape[2]), NO_CANDIDATE)
    log_probs = None if answer.log_probs is None else np.full(tokens.shape[:2], -np.inf, dtype=np.float32)
    for row, frontier in enumerate(request.rows.tolist()):
        path, place = request.path_tokens(frontier), 0
        for old, phrase in enumerate(given[row].tolist()):
            written = [token for token in phrase if token != NO_CANDIDATE]
            if kept := written[: constraint.allowed(path, written)]:
                tokens[row, place, : len(kept)] = kept
                if log_probs is not None and answer.log_probs is not None:
                    log_probs[row, place] = answer.log_probs[row, old]
                place += 1
        if place == 0 and (forced := constraint.forced(path)[: tokens.shape[2]]):
            tokens[row, 0, : len(forced)] = forced
            if log_probs is not None:
                log_probs[row, 0] = 0.0
    return replace(answer, tokens=tokens if phrases else tokens[:, :, 0], log_probs=log_probs)
