"""How far a target holds two continuations apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specexp.models.pair import ModelPair
    from specexp.verify.endpoint import Scorer


def scorer_of(pair: ModelPair) -> Scorer:
    """Scores by the logits of a pair's target, which had best be in float32.

    Args:
        pair: The models; Hugging Face's, for a GGUF file's logits are not looked at.
    """

    def score(prompt: str, common: str, one: str, other: str) -> float | None:
        before = len(pair.tokenizer(prompt).input_ids)
        answers = [pair.tokenizer(prompt + common + rest).input_ids for rest in (one, other)]
        place = next((at for at, (a, b) in enumerate(zip(*answers, strict=False)) if a != b), None)
        if place is None or place < before:
            return None
        return gap_of(pair, answers[0][:place], answers[0][place], answers[1][place])

    return score


def gap_of(pair: ModelPair, before: Sequence[int], one: int, other: int) -> float:
    """By how much the target's log-probability of one token exceeds that of another.

    Args:
        pair: The models.
        before: Token ids that stand before them.
        one: Token id.
        other: Token id.
    """
    with torch.inference_mode():
        logits = pair.target(torch.tensor([list(before)])).logits[0, -1].float()
    return float(logits[one] - logits[other])
