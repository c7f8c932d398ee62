"""What several analyses ask of the records of groups of sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specexp.bench.record import PromptRecord
    from specexp.bench.statistics import Speedup


def answered(records: Sequence[PromptRecord], arm: str) -> list[PromptRecord]:
    """An arm's records that did not fail."""
    return [record for record in records if record.arm == arm and not record.error]


def whole_seconds(record: PromptRecord) -> float:
    """All that a prompt took: of a group end to end, otherwise prefill and decoding."""
    if record.group is not None:
        return record.group.wall_seconds
    return record.prefill_seconds + record.decode_seconds


def end_to_end(records: Sequence[PromptRecord], arm: str, baseline: str) -> Speedup:
    """The paired speedup in all seconds per token."""
    from specexp.bench.statistics import paired_speedup

    def cost(record: PromptRecord) -> float | None:
        return over(whole_seconds(record), record.new_tokens)

    return paired_speedup(records, arm, baseline, cost=cost)


def tokens_per_second(records: Sequence[PromptRecord]) -> float | None:
    """All tokens over all seconds, end to end."""
    return over(sum(record.new_tokens for record in records), sum(map(whole_seconds, records)))


def busy_share(records: Sequence[PromptRecord]) -> float | None:
    """Share of all seconds in which the target runs a pass or a prefill; None without a group."""
    groups = [record.group for record in records if record.group is not None]
    return over(sum(group.busy_seconds for group in groups), sum(group.wall_seconds for group in groups))


def overlapped_share(records: Sequence[PromptRecord]) -> float | None:
    """Share of the target's busy seconds in which a drafter works too; None without a group."""
    groups = [record.group for record in records if record.group is not None]
    return over(sum(group.overlap_seconds for group in groups), sum(group.busy_seconds for group in groups))


def plain_name(baseline: str) -> str:
    """What a picture calls the arm that speedups are over."""
    return "plain decoding" if baseline == "engine" else baseline


def over(part: float, whole: float) -> float | None:
    """A ratio; None over nothing."""
    return part / whole if whole else None
