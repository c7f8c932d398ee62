"""Greedy verification: the output of plain greedy decoding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specexp.core.context import Context
from specexp.core.verifier import DeterministicVerifier

if TYPE_CHECKING:
    import torch


class Greedy(DeterministicVerifier):
    """Accepts the tokens the target itself finds most probable; among equals the lowest token id."""

    @property
    def noise_temperature(self) -> float:
        """No noise."""
        return 0.0

    def target_token(self, context: Context, logits: torch.Tensor, position: int) -> int:
        """``argmax`` of the logits."""
        return int(logits.argmax())
