"""A target whose lanes are fed one by one, so that none can change another's rounding."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from typing_extensions import override

from specexp.core.runtime import Target
from specexp.core.tree import TokenTree


class Alone(Target):
    """The same target, each tree in a pass of its own: of the shape it would have if nobody else were served.

    Args:
        target: who answers.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.context_limit, self.vocab_size = target.context_limit, target.vocab_size

    @override
    def length(self, slot: int) -> int:
        return self.target.length(slot)

    @override
    def prefill(
        self, slot: int, token_ids: Sequence[int], *, all_logits: bool = False
    ) -> torch.Tensor | None:
        return self.target.prefill(slot, token_ids, all_logits=all_logits)

    @override
    def tree_pass(self, slots: Sequence[int], trees: Sequence[TokenTree]) -> list[torch.Tensor]:
        pairs = zip(slots, trees, strict=True)
        return [logits for slot, tree in pairs for logits in self.target.tree_pass([slot], [tree])]

    @override
    def commit(self, slot: int, rows: Sequence[int]) -> None:
        self.target.commit(slot, rows)

    @override
    def synchronize(self) -> None:
        self.target.synchronize()
