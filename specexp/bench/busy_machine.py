"""A sentence about a machine that was busy while plain decoding was measured."""

from __future__ import annotations

from collections.abc import Iterable

from specexp.bench.record import MEASURED, PromptRecord

FOLD = 4.0
"""Largest ratio of two times per token that the prompts themselves may explain."""


def busy_machine(seconds_per_token: Iterable[float]) -> str:
    """Return how much plain decoding's time per token varied, in a sentence; empty if it varied little.

    Args:
        seconds_per_token: Plain decoding's, one for each prompt and repetition.
    """
    seconds = [one for one in seconds_per_token if one > 0]
    fold = max(seconds) / min(seconds) if seconds else 1.0
    if fold < FOLD:
        return ""
    return (
        f"Plain decoding's time per token varied {fold:.0f}-fold between prompts: the machine was busy, so read the "
        "intervals, not the ratios."
    )


def busy_machine_of(records: Iterable[PromptRecord], arm: str) -> str:
    """Return the sentence of :func:`busy_machine` for the measured records of an arm.

    Args:
        records: Records of a run or a confirmation.
        arm: The arm of plain decoding.
    """
    return busy_machine(
        record.seconds_per_token
        for record in records
        if record.arm == arm and record.clock == MEASURED and not record.error and record.seconds_per_token
    )
