"""What several analyses ask of the records of groups of sequences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from specexp.bench.analysis import over
from specexp.bench.metrics import metric_named
from specexp.bench.record import PromptRecord
from specexp.bench.statistics import Speedup, categories, paired_speedup


def answered(records: Sequence[PromptRecord], arm: str) -> list[PromptRecord]:
    """An arm's records that did not fail."""
    return [record for record in records if record.arm == arm and not record.error]


def by_task(records: Sequence[PromptRecord]) -> dict[str, list[PromptRecord]]:
    """Records by the task they are of, in the order the tasks appear."""
    return {task: [record for record in records if record.category == task] for task in categories(records)}


def answers(
    tasks: Mapping[str, Sequence[PromptRecord]], arms: Sequence[str]
) -> Iterator[tuple[str, str, list[PromptRecord]]]:
    """Task, arm and what it answered, of every arm that answered anything."""
    for task, records in tasks.items():
        for arm in arms:
            if good := answered(records, arm):
                yield task, arm, good


def whole_seconds(record: PromptRecord) -> float:
    """All that a prompt took: of a group end to end, otherwise prefill and decoding."""
    if record.group is not None:
        return record.group.wall_seconds
    return record.prefill_seconds + record.decode_seconds


def end_to_end(records: Sequence[PromptRecord], arm: str, baseline: str) -> Speedup:
    """The paired speedup in all seconds per token."""

    def cost(record: PromptRecord) -> float | None:
        return over(whole_seconds(record), record.new_tokens)

    return paired_speedup(records, arm, baseline, cost=cost)


def both_speedups(records: Sequence[PromptRecord], arm: str, baseline: str) -> list[Speedup | None]:
    """End to end, and of decoding alone; none of the baseline itself."""
    if arm == baseline:
        return [None, None]
    return [end_to_end(records, arm, baseline), paired_speedup(records, arm, baseline)]


def tokens_per_second(records: Sequence[PromptRecord]) -> float | None:
    """All tokens over all seconds, end to end."""
    return over(sum(record.new_tokens for record in records), sum(map(whole_seconds, records)))


def busy_share(records: Sequence[PromptRecord]) -> float | None:
    """Share of all seconds in which the target runs a pass or a prefill; None without a group."""
    return metric_named("target_utilisation").over(records)


def overlapped_share(records: Sequence[PromptRecord]) -> float | None:
    """Share of the target's busy seconds in which a drafter works too; None without a group."""
    groups = [record.group for record in records if record.group is not None]
    return over(sum(group.overlap_seconds for group in groups), sum(group.busy_seconds for group in groups))


def plain_name(baseline: str) -> str:
    """What a picture calls the arm that speedups are over."""
    return "plain decoding" if baseline == "engine" else baseline
