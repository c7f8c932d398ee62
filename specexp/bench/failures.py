"""Prompts that could not be answered: how many, of which arms, and why the first was not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specexp.bench.record import PromptRecord


def failed_answers(records: Sequence[PromptRecord]) -> str | None:
    """What failed, as a clause that names the arms and the first reason; None where every prompt was answered.

    Args:
        records: Records of a run, those of failed prompts among them.

    Example:
        >>> failed_answers(records)  # doctest: +SKIP
        "3 of 24 answers failed (engine: 1, chain of 2: all 2), e.g. engine on prompt '0': ValueError: no room"
    """
    failed = [record for record in records if record.error]
    if not failed:
        return None
    asked, lost = (Counter(record.arm for record in some) for some in (records, failed))
    arms = ", ".join(f"{arm}: {'all ' if count == asked[arm] else ''}{count}" for arm, count in lost.items())
    first = failed[0]
    return (
        f"{len(failed)} of {len(records)} answers failed ({arms}), e.g. {first.arm} on prompt "
        f"{first.prompt_id!r}: {first.error}"
    )
