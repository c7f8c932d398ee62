"""Parallel drafts: one pass over mask tokens drafts every depth, as in PARD (An et al. 2025), P-EAGLE and DFlash.

The row for depth d attends to the committed tokens and d mask tokens, or in DFlash to a whole block of them. All nodes
at a given depth therefore have the same candidates.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from typing_extensions import override

from specexp.core.context import Context
from specexp.core.runtime import Growth
from specexp.drafters.draft_source import DraftSource, Fed, ModelSource
from specexp.drafters.eagle_source import EagleSource


class ParallelSource(DraftSource):
    """A source with one answer for all nodes at a depth. A pass feeds one mask token per level of the previous tree."""

    parallel = True
    _pending, _depths = 0, 4  # committed tokens in the step; depths that the last tree, or this one, needed
    _answers: list[Any]  # by depth

    @abstractmethod
    def extend(self, token_ids: Sequence[int], masks: int) -> list[Any]:
        """Feed committed tokens and then mask tokens, after the step's earlier rows. Return the answers for the last
        committed token, if any was fed, and for the mask tokens.
        """

    @override
    def feed(self, context: Context, fed: Fed) -> list[Any]:
        if fed.known == 0:
            self._pending = fed.pending
            room = self.context_limit - self.length - fed.pending
            self._answers = self.extend(fed.tokens[: fed.pending], max(0, min(self._depths - 1, room)))
            self._depths = 1
        paths = fed.ancestors[fed.known :]
        self._depths = max(self._depths, *(len(path) for path in paths))
        if self._depths > len(self._answers):  # this tree is deeper
            self._answers += self.extend((), self._depths - len(self._answers))
        return [self._answers[len(path) - 1] for path in paths]


class PardSource(ParallelSource, ModelSource):
    """A causal LM that was trained to predict from mask tokens. Its configuration has their id in ``pard_token``."""

    # each sequence feeds its own number of mask tokens
    feed_together = DraftSource.feed_together
    draft = DraftSource.draft

    @override
    def extend(self, token_ids: Sequence[int], masks: int) -> list[Any]:
        known = 0 if token_ids else self._pending + len(self._answers) - 1  # rows of the step
        count = len(token_ids) + masks
        tokens = np.array([*token_ids, *[self.model.model.config.pard_token] * masks])
        growth = Growth(tokens, np.arange(known, known + count), np.tri(count, known + count, known, dtype=np.bool_))
        (logits,) = self.model.grow([self.slot], [growth]).logits
        return [(logits, row) for row in range(max(0, len(token_ids) - 1), count)]

    @override
    def commit(self, rows: Sequence[int]) -> None:
        self.model.commit(self.slot, [row for row in rows if row < self._pending])


class ParallelEagleSource(ParallelSource, EagleSource):
    """A P-EAGLE head: an EAGLE-3 head with a mask token and a learned input for this token."""

    @override
    @torch.inference_mode()
    def extend(self, token_ids: Sequence[int], masks: int) -> list[Any]:
        if token_ids:
            self._run_committed(token_ids)
        first, count = self._made.shape[0], self._made.shape[0] + masks
        if masks:
            past = self.length
            inputs = self._head.fuse_states(self._head.mask_hidden[0, 0]).expand(masks, -1)
            visible = np.tri(masks, past + count, past + first, dtype=np.bool_)
            self._run([self._head.config.mask_token_id] * masks, inputs, np.arange(past + first, past + count), visible)
        start = first - bool(token_ids)
        logits = self._output(self._made[start:])
        return [(logits, row) for row in range(count - start)]


class DFlashSource(ParallelSource, EagleSource):
    """A DFlash draft with its keys and values for one sequence.

    A token's keys are computed from the target's states for the same token. The last token of a step has no state yet,
    so its keys are added in the next step.
    """

    _known = 0  # positions with keys and values

    def __init__(self, head: Any, *given: Any) -> None:
        super().__init__(head, *given)
        self.most_depth = head.config.block_size - 1

    @override
    @torch.inference_mode()
    def extend(self, token_ids: Sequence[int], masks: int) -> list[Any]:
        config, end = self._head.config, self.length + len(token_ids) - 1
        self._append(end)
        self._cache.rows = end  # the block's rows are overwritten by the next step's
        device = self._states.device
        tokens = [token_ids[-1], *[config.mask_token_id] * self.most_depth]
        embedded = self._embed(torch.tensor([tokens], device=device)).to(self._states)
        made = self._head(embedded, torch.arange(end, end + len(tokens), device=device), self._cache)
        logits = self._output(made[0, 1:])
        return [(logits, row) for row in range(self.most_depth)]

    @override
    def truncate(self, rows: int) -> None:
        super().truncate(rows)
        self._known = min(self._known, rows)

    @override
    def copy_from(self, other: DraftSource, rows: int) -> None:
        super().copy_from(other, rows)
        assert isinstance(other, DFlashSource)
        self._known = min(other._known, rows)

    @override
    def _run_committed(self, tokens: Sequence[int]) -> None:
        self._pending = len(tokens)
        self._append(self.length + len(tokens))

    @torch.inference_mode()
    def _append(self, end: int) -> None:
        """Append keys and values for the positions before ``end``."""
        positions = torch.arange(self._known, end, device=self._states.device)
        if len(positions):
            self._cache.rows = self._known
            self._known = end
            self._head.append(self._states[None, positions], positions, self._cache)
