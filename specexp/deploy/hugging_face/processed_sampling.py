"""What of a draft is accepted inside ``generate``: what any of Hugging Face's logits processors leave of the scores."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import LogitsProcessorList

from specexp.core.context import Context
from specexp.core.contracts import DeterministicVerifier
from specexp.core.dialogue import Verdict
from specexp.core.tree import TokenTree


class ProcessedSampling(DeterministicVerifier):
    """Greedy or keyed sampling of scores that Hugging Face's logits processors have changed.

    Every token of the output passes the processors once, in order, with the tokens before it, just as in
    plain ``generate``: so penalties on repetition and processors with a memory work. With temperature, top-k
    and top-p alone it is :class:`~specexp.verifiers.KeyedSampling`.

    Args:
        processors: applied in their order.
        sample: add the keyed noise; otherwise the highest score wins.
        temperature: among the processors, so that a coupled drafter can follow.
        before: padding before the prompt, which plain ``generate`` shows the processors too.
        row: which row of a batch it is; some processors hold something for each, so they are shown a whole batch.
        rows: number of rows of the batch.
    """

    def __init__(
        self,
        processors: LogitsProcessorList,
        *,
        sample: bool,
        temperature: float = 1.0,
        before: Sequence[int] = (),
        row: int = 0,
        rows: int = 1,
    ) -> None:
        self.logits_processors = processors
        self.sample = sample
        self.noise_temperature = temperature if sample else 0.0
        self.before = list(before)
        self.row = row
        self.rows = rows

    def target_token(self, context: Context, logits: torch.Tensor, position: int) -> int:
        """Of the position after the context's last token alone: processors may look at every token before.

        Raises:
            ValueError: of a later position.
        """
        if position != len(context):
            raise ValueError(
                f"position was {position}; processors know the tokens before {len(context)} alone"
            )
        return self._token(context, self._ids(context, logits), logits, position)

    def verify(self, context: Context, tree: TokenTree, logits: torch.Tensor) -> Verdict:
        """Walk down the tree along the tokens that plain decoding would choose."""
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
        """``[1, t]`` what the processors see; nothing where there are none."""
        known = [*self.before, *context.token_ids.tolist()] if self.logits_processors else []
        return torch.tensor([known], device=logits.device)

    def _token(self, context: Context, ids: torch.Tensor, logits: torch.Tensor, position: int) -> int:
        shown = ids.repeat(self.rows, 1), logits.float().repeat(self.rows, 1)
        scores = self.logits_processors(*shown)[self.row]  # [V]
        if self.sample:
            scores = scores + context.target_noise(position, 1, scores.shape[0], scores.device)[0]
        return int(scores.argmax())
