"""Which of the confirmed candidates is deployed: one that the interval puts above plain decoding, or none."""

from __future__ import annotations

from collections.abc import Sequence

from specexp.bench.record import PromptRecord
from specexp.bench.statistics import paired_speedup
from specexp.sweep.confirmed import Confirmed


def promoted(
    candidates: Sequence[Confirmed], records: Sequence[PromptRecord], deployed: int | None = None
) -> Confirmed | None:
    """The candidate to deploy; None where plain decoding is to be.

    The fastest of those whose interval lies above plain decoding. One that is deployed already, and whose does, stays
    until another one is faster than it, prompt by prompt, by the interval.

    Args:
        candidates: What was confirmed and can be exported, fastest first.
        records: Records of all confirmations.
        deployed: Trial that is deployed already; None where none is.
    """
    gains = [one for one in candidates if one.over_ar.is_faster]
    if not gains:
        return None
    fastest = gains[0]
    held = next((one for one in gains if one.trial == deployed), fastest)
    if held is not fastest and paired_speedup(records, fastest.name, held.name).is_faster:
        return fastest
    return held
