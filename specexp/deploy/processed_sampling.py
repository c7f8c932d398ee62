"""Greedy decoding and keyed sampling from processed scores, for Hugging Face's ``generate`` and the server."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

import torch
from transformers import LogitsProcessor, LogitsProcessorList
from typing_extensions import override

from specexp.core.context import Context, PerSequence
from specexp.core.contracts import DeterministicVerifier
from specexp.core.dialogue import Verdict
from specexp.core.tree import TokenTree


class ProcessedSampling(DeterministicVerifier):
    """Greedy decoding or keyed sampling from scores modified by Hugging Face's logits processors.

    The processors are called once for each output token, in order and with all preceding tokens, as in plain
    ``generate``. Penalties and stateful processors therefore work. If only temperature, top-k and top-p are set, the
    result equals that of :class:`~specexp.verifiers.KeyedSampling`.
    """

    noise_temperature = 0.0

    def set_up(
        self,
        processors: LogitsProcessorList,
        temperature: float,
        padding: Sequence[Sequence[int]] = ((),),
    ) -> None:
        """Set the processors, which include the temperature's; 0 is greedy decoding. ``padding`` holds the padding
        tokens of each row of a batch.
        """
        self.noise_temperature = temperature  # coupled drafters use it
        self._processors = processors
        self._padding = padding
        self._by_row: PerSequence[LogitsProcessorList] = PerSequence()

    @override
    def target_token(self, context: Context, logits: torch.Tensor, position: int) -> int:
        if position != len(context):
            raise ValueError(
                f"position must be {len(context)}, the next one, since processors need every earlier token, got "
                f"{position}"
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
            if self._processors:
                ids = torch.cat((ids, ids.new_tensor([[token]])), dim=1)

    def _row(self, context: Context) -> int:
        return int(context.sequence) if len(self._padding) > 1 else 0

    def _ids(self, context: Context, logits: torch.Tensor) -> torch.Tensor:
        """Return the tokens passed to the processors, ``[1, t]``, with padding as in plain ``generate``.

        Without processors, the result is empty, ``[1, 0]``.
        """
        padding = self._padding[self._row(context)]
        known = [*padding, *context.token_ids.tolist()] if self._processors else []
        return torch.tensor([known], device=logits.device)

    def _token(self, context: Context, ids: torch.Tensor, logits: torch.Tensor, position: int) -> int:
        rows, number = len(self._padding), self._row(context)
        if context not in self._by_row:  # processors may be stateful, so each row of a batch gets a copy
            self._by_row[context] = deepcopy(self._processors) if rows > 1 else self._processors
        # processors may hold an entry for each row of the batch, so they are given all rows
        scores = self._by_row[context](ids.repeat(rows, 1), logits.float().repeat(rows, 1))[number]  # [V]
        if self.noise_temperature:
            scores = scores + context.target_noise(position, 1, scores.shape[0], scores.device)[0]
        return int(scores.argmax())


class CountPenalties(LogitsProcessor):  # type: ignore[misc]
    """OpenAI's penalties: a token's score falls by ``frequency`` for each time that the output holds it, and once by
    ``presence``. Tokens of the prompt do not count.
    """

    def __init__(self, prompt_length: int, presence: float, frequency: float) -> None:
        self.prompt_length = prompt_length
        self.presence = presence
        self.frequency = frequency

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return ``[b, V]`` scores after ``[b, t]`` tokens."""
        output = input_ids[:, self.prompt_length :]
        counts = torch.zeros_like(scores).scatter_add_(1, output, torch.ones_like(output, dtype=scores.dtype))
        return scores - self.frequency * counts - self.presence * (counts > 0)
