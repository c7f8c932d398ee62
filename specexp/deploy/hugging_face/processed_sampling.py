"""Verification by the scores that Hugging Face's logits processors leave."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from transformers import LogitsProcessorList
from typing_extensions import override

from specexp.core.context import Context, PerSequence
from specexp.core.contracts import DeterministicVerifier
from specexp.core.dialogue import Verdict
from specexp.core.tree import TokenTree


class ProcessedSampling(DeterministicVerifier):
    """Greedy or keyed sampling of scores that Hugging Face's logits processors have changed.

    Every token of the output passes the processors once, in order, with the tokens before it, as in plain ``generate``:
    so penalties on repetition and processors with a memory work. With temperature, top-k and top-p alone it is
    :class:`~specexp.verifiers.KeyedSampling`.

    Args:
        processors: applied in their order.
        sample: add the keyed noise; otherwise the highest score wins.
        temperature: that of the processors, so that a coupled drafter can follow.
        padding: tokens before the prompt, which plain ``generate`` passes to the processors too.
        row: number of the row in its batch of ``rows``; some processors have an entry for each row.
    """

    def __init__(
        self,
        processors: LogitsProcessorList,
        *,
        sample: bool,
        temperature: float = 1.0,
        padding: Sequence[int] = (),
        row: int = 0,
        rows: int = 1,
    ) -> None:
        self.logits_processors = processors
        self.sample = sample
        self.noise_temperature = temperature if sample else 0.0
        self.padding = list(padding)
        self.row = row
        self.rows = rows

    @override
    def target_token(self, context: Context, logits: torch.Tensor, position: int) -> int:
        if position != len(context):
            raise ValueError(
                f"position must be {len(context)}, since processors need every token before it, got {position}"
            )
        return self._token(context, self._ids(context, logits), logits, position)

    @override
    def verify(self, context: Context, tree: TokenTree, logits: torch.Tensor) -> Verdict:
        ids = self._ids(context, logits)
        accepted: list[int] = []
        row = 0
        while True:
            token = self._token(context, ids, logits[row], len(context) + len(accepted))
            child = tree.child_with_token(row, token)
            if child is None:
                return Verdict(tuple(accepted), token)
            accepted.append(child)
            row = child
            if self.logits_processors:
                ids = torch.cat((ids, ids.new_tensor([[token]])), dim=1)

    def _ids(self, context: Context, logits: torch.Tensor) -> torch.Tensor:
        """``[1, t]`` tokens for the processors; ``[1, 0]`` without any."""
        known = [*self.padding, *context.token_ids.tolist()] if self.logits_processors else []
        return torch.tensor([known], device=logits.device)

    def _token(self, context: Context, ids: torch.Tensor, logits: torch.Tensor, position: int) -> int:
        batch = ids.repeat(self.rows, 1), logits.float().repeat(self.rows, 1)
        scores = self.logits_processors(*batch)[self.row]  # [V]
        if self.sample:
            scores = scores + context.target_noise(position, 1, scores.shape[0], scores.device)[0]
        return int(scores.argmax())


class RowSampling(ProcessedSampling):
    """:class:`ProcessedSampling` for the rows of a batch, each with its own processors, since some have a memory."""

    def __init__(self) -> None:
        super().__init__(LogitsProcessorList(), sample=False)

    def set_up(
        self,
        processors: LogitsProcessorList,
        sample: bool,
        temperature: float,
        padding: Sequence[Sequence[int]],
    ) -> None:
        """Prepare for the next batch; ``padding`` holds the tokens before each row's prompt."""
        self._settings: dict[str, Any] = {"sample": sample, "temperature": temperature, "rows": len(padding)}
        self._processors = processors
        self._row_padding = padding
        self._by_row: PerSequence[ProcessedSampling] = PerSequence()

    @override
    def verify(self, context: Context, tree: TokenTree, logits: torch.Tensor) -> Verdict:
        if context not in self._by_row:
            row, processors = int(context.sequence), deepcopy(self._processors)
            self._by_row[context] = ProcessedSampling(
                processors, padding=self._row_padding[row], row=row, **self._settings
            )
        return self._by_row[context].verify(context, tree, logits)
