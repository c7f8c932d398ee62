"""What a study compares, from the records of one arm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specexp.bench import clock
from specexp.bench.record import PromptRecord
from specexp.bench.statistics import summarise

if TYPE_CHECKING:
    from specexp.bench.arm import Arm
    from specexp.data import Prompt


def metrics_of(records: Sequence[PromptRecord]) -> dict[str, float]:
    """Means per target pass and decode speed, over all tokens of one arm's records; modelled ones are called so.

    Of groups also the share of the time in which the target was busy.
    """
    summary = summarise(records, records[0].arm)
    before = clock.key(summary.clock)
    phases = {phase: sum(record.seconds[phase] for record in records) for phase in records[0].seconds}
    groups = [record.group for record in records if record.group is not None]
    busy = sum(group.busy_seconds for group in groups)
    return {
        **({"target_utilisation": busy / sum(group.wall_seconds for group in groups)} if groups else {}),
        "tokens_per_step": summary.tokens_per_step,
        "drafted_nodes": summary.nodes_per_step,
        "draft_passes": summary.draft_passes_per_step,
        f"{before}tokens_per_second": summary.tokens_per_second,
        f"{before}decode_seconds": sum(record.decode_seconds for record in records),
        **{f"{before}seconds/{phase}": spent for phase, spent in phases.items()},
    }


def decode_all(arm: Arm, prompt: Prompt, samples: int) -> list[PromptRecord]:
    """Decode every continuation of a prompt."""
    return [arm.decode(prompt, sample) for sample in range(samples)]


def seconds_per_token(records: Sequence[PromptRecord]) -> float:
    """Decode seconds per token of a prompt, all its samples together.

    Raises:
        ValueError: Nothing was decoded.
    """
    tokens = sum(record.decode_tokens for record in records)
    if tokens == 0:
        raise ValueError(f"prompt {records[0].prompt_id!r} gave no token with arm {records[0].arm!r}")
    return sum(record.decode_seconds for record in records) / tokens
