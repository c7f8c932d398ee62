"""What a target pass said: everything that learns, learns from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from specexp.core.context import Context
from specexp.core.sampling import on_host, to_host
from specexp.core.tree import TokenTree, TreeShape

if TYPE_CHECKING:  # torch takes seconds, and parts are checked before a model is needed
    import torch


Top = tuple[NDArray[np.int64], NDArray[np.float32]]
"""``[n + 1, k]`` most probable tokens after every row, best first, and their logits."""


@dataclass(slots=True)
class Outcome:
    """The target's answer to one tree, and what was made of it.

    Attributes:
        context: the sequence; the new tokens are already committed.
        tree: what was fed. The prefill is step 0: a chain whose every node is accepted.
        logits: ``[n + 1, V]`` the target's answer after every row, on the target's device.
        accepted: rows of the accepted nodes, from depth 1 down.
        new_token_ids: tokens committed by the step: accepted drafts, then the bonus token unless the output ended
            before it.
        pass_tokens: tokens fed in each forward pass of a draft model this step took.
        seconds: time of the step by phase, up to here: learning from it is not over.
        hidden: ``[n + 1, d]`` what the target's output layer read in every row, where a drafter wants it; else None.
        top: ``[n + 1, k]`` what is known of :meth:`top_k` and :meth:`top_k_logits`; more is read when it is asked for.
    """

    context: Context
    tree: TokenTree
    logits: torch.Tensor
    accepted: tuple[int, ...]
    new_token_ids: tuple[int, ...]
    pass_tokens: tuple[int, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    hidden: torch.Tensor | None = None
    top: Top | None = field(default=None, repr=False)

    @property
    def draft_passes(self) -> int:
        """Forward passes of a draft model this step took."""
        return len(self.pass_tokens)

    def answers(self) -> NDArray[np.int64]:
        """``[n + 1]`` what the target said comes after every row: the token that was committed after the root and the
        accepted nodes, its most probable one after the others.
        """
        tokens = self._first()
        rows = (0, *self.accepted)[: len(self.new_token_ids)]
        tokens[list(rows)] = self.new_token_ids[: len(rows)]
        return tokens

    def top_k(self, k: int) -> NDArray[np.int64]:
        """``[n + 1, k]`` the target's most probable tokens after every row, best first."""
        return self._best(k)[0][:, :k]

    def top_k_logits(self, k: int) -> NDArray[np.float32]:
        """``[n + 1, k]`` logits of :meth:`top_k`."""
        return self._best(k)[1][:, :k]

    def _first(self) -> NDArray[np.int64]:
        if self.top is None and on_host(self.logits):
            logits = self.logits.float() if self.logits.element_size() < 4 else self.logits
            tokens: NDArray[np.int64] = logits.numpy(force=True).argmax(axis=1)
            return tokens  # in a tenth of the time of torch's topk
        return self.top_k(1)[:, 0].copy()

    def _best(self, k: int) -> Top:
        if self.top is None or self.top[0].shape[1] < k:
            values, indices = self.logits.topk(k, dim=-1)
            ids, highest = to_host(indices, values.float())
            self.top = ids, highest
        return self.top


def prefill_outcome(
    context: Context, fed: NDArray[np.int64], logits: torch.Tensor, hidden: torch.Tensor | None = None
) -> Outcome:
    """The prefill as step 0, all accepted.

    Args:
        context: the sequence.
        fed: ``[p]`` prompt tokens.
        logits: ``[p, V]`` of them; ``[0, 0]`` where only hidden states were asked for.
        hidden: ``[p, d]`` of them, where they were.
    """
    rows = np.arange(fed.size)
    chain = TokenTree(TreeShape(rows - 1, np.where(rows == 0, -1, 0)), fed)
    return Outcome(
        context, chain, logits, accepted=tuple(range(1, fed.size)), new_token_ids=(), hidden=hidden
    )
