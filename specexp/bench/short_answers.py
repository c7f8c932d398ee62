"""Answers so short that a run says little about decoding."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

from specexp.core.messages import counted

if TYPE_CHECKING:
    from specexp.bench.record import PromptRecord

FEWEST_TOKENS = 8
"""Of a median answer that is long enough."""


def short_answers(records: Sequence[PromptRecord], arm: str) -> str | None:
    """A warning where the median answer is short although the length did not end it; None where it is not.

    Args:
        records: Records of a run.
        arm: Whose answers are looked at.
    """
    answers = [
        (tokens, reason)
        for record in records
        if record.arm == arm and not record.error
        for tokens, reason in zip(record.turn_tokens, record.finish_reasons, strict=False)
    ]
    short = [reason for tokens, reason in answers if tokens < FEWEST_TOKENS]
    middle = median(tokens for tokens, _ in answers) if answers else FEWEST_TOKENS
    if middle >= FEWEST_TOKENS:
        return None
    if short.count("length") * 2 > len(short):  # as short as was asked for
        return None
    return (
        f"Warning: the median answer of {arm} has {counted(round(middle), 'token')}, so these figures say little about "
        "decoding: look at what the prompts end in, and whether the target answers them."
    )
