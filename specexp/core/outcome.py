"""The outcome of one step, which parts learn from, and the result of a whole sequence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from specexp.core.context import Context
from specexp.core.sampling import on_host, to_host
from specexp.core.tree import TokenTree, TreeShape

if TYPE_CHECKING:  # importing torch takes seconds, and parts are checked before that
    import torch

Top = tuple[NDArray[np.int64], NDArray[np.float32]]
"""The ``[n + 1, k]`` most probable tokens after each row, best first, and their logits."""


@dataclass(slots=True)
class Outcome:
    """The target's answer to one tree, and the verdict on it."""

    context: Context  # the sequence's context, with the new tokens already committed
    tree: TokenTree  # the tree that was fed; for the prefill (step 0), a chain that is fully accepted
    logits: torch.Tensor  # [n + 1, V] target logits after each row, on the target's device
    accepted: tuple[int, ...]  # rows of the accepted nodes, from depth 1 down
    new_token_ids: tuple[int, ...]  # accepted drafts, then the bonus token unless the output ended before it
    pass_tokens: tuple[int, ...] = ()  # tokens fed in each draft pass of the step
    seconds: Mapping[str, float] = field(default_factory=dict)  # by phase (PHASES), before learning
    # [n + 1, d] the target's hidden states, if a drafter wants them
    hidden: torch.Tensor | None = None
    top: Top | None = field(default=None, repr=False)  # the part of top_k that has been computed so far
    # [m, d] states of the draft model after the first m nodes of the tree's best path, if a controller reads them
    draft_states: NDArray[np.float32] | None = None

    @property
    def draft_passes(self) -> int:
        """Number of forward passes of a draft model in this step."""
        return len(self.pass_tokens)

    def answers(self) -> NDArray[np.int64]:
        """Return the target's ``[n + 1]`` next tokens, one per row: the committed token for the root and accepted
        nodes, and the argmax elsewhere.
        """
        tokens = self._first()
        rows = (0, *self.accepted)[: len(self.new_token_ids)]
        tokens[list(rows)] = self.new_token_ids[: len(rows)]
        return tokens

    def top_k(self, k: int) -> NDArray[np.int64]:
        """Return the target's ``[n + 1, k]`` most probable tokens after each row, best first."""
        return self._best(k)[0][:, :k]

    def top_k_logits(self, k: int) -> NDArray[np.float32]:
        """Return the ``[n + 1, k]`` logits of the tokens in :meth:`top_k`."""
        return self._best(k)[1][:, :k]

    def _first(self) -> NDArray[np.int64]:
        """Return the argmax of every row as a new array, using :meth:`top_k` for recordings and logits on a device."""
        if self.top is not None or not on_host(self.logits):
            return self.top_k(1)[:, 0].copy()
        logits = self.logits.float() if self.logits.element_size() < 4 else self.logits
        # much faster than torch's topk
        tokens: NDArray[np.int64] = logits.numpy(force=True).argmax(axis=1)
        return tokens

    def _best(self, k: int) -> Top:
        if self.top is None or self.top[0].shape[1] < k:  # computed again only for a larger k
            values, indices = self.logits.topk(k, dim=-1)
            ids, highest = to_host(indices, values.float())
            self.top = ids, highest
        return self.top


def prefill_outcome(
    context: Context, fed: NDArray[np.int64], logits: torch.Tensor, hidden: torch.Tensor | None = None
) -> Outcome:
    """Return the outcome of step 0, the prefill of ``[p]`` prompt tokens, in which all tokens are accepted. ``logits``
    is ``[p, V]``, or ``[0, 0]`` if not kept; ``hidden`` is ``[p, d]``.
    """
    rows = np.arange(fed.size)
    chain = TokenTree(TreeShape(rows - 1, np.where(rows == 0, -1, 0)), fed)
    return Outcome(context, chain, logits, accepted=tuple(range(1, fed.size)), new_token_ids=(), hidden=hidden)


FinishReason = Literal["", "eos", "stop", "repetition", "length", "context"]
"""The reason why an output ended: EOS, a stop rule, repetition (:func:`~specexp.core.context.repeats`),
``max_new_tokens`` or the context limit; empty until it ends."""
PHASES = ("draft", "build", "target", "verify", "commit", "update")
"""The phases of a step: drafting, building (with the controller), the target pass, verification, committing to cache
and context, and learning. Their durations add up to that of the step."""


@dataclass
class GenerationResult:
    """Tokens, counts and times from decoding one sequence. Every metric in the papers derives from these."""

    # the new tokens, including any EOS, once the output has ended
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason = ""
    seed: int = 0  # the same seed, sequence and prompt give the same tokens
    steps: int = 0  # target passes, excluding the prefill
    accepted_drafts: int = 0  # drafted tokens that became output
    bonus_tokens: int = 0  # tokens added by the target, at most one per step
    draft_passes: int = 0
    drafted_nodes: int = 0  # nodes fed to the target, without roots
    # number of steps in which the tree reached each depth, from depth 1
    drafted_at: list[int] = field(default_factory=list)
    # number of steps in which the accepted path reached each depth
    accepted_at: list[int] = field(default_factory=list)
    prefill_seconds: float = 0.0  # time before the first step
    # total over all steps, by phase
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))

    @property
    def decode_seconds(self) -> float:
        """Total seconds of all steps, excluding the prefill."""
        return sum(self.seconds.values())

    @property
    def tokens_per_step(self) -> float:
        """New tokens per target pass."""
        return len(self.token_ids) / self.steps


def count_step(result: GenerationResult, tree: TokenTree, accepted: int, new_tokens: int, draft_passes: int) -> None:
    """Add one step to a result's counters."""
    result.steps += 1
    result.accepted_drafts += accepted
    result.bonus_tokens += new_tokens - accepted
    result.drafted_nodes += tree.num_nodes
    result.draft_passes += draft_passes
    for counts, reached in ((result.drafted_at, tree.shape.max_depth), (result.accepted_at, accepted)):
        counts.extend([0] * (reached - len(counts)))
        for depth in range(reached):
            counts[depth] += 1
