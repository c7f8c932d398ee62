"""Tokens per step of every drafting arm, and whether one tree is better than the next: counts, no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from specexp.bench.analysis import Analysis, check_arms, drafting
from specexp.bench.publish import Report
from specexp.bench.record import PromptRecord
from specexp.bench.statistics import Speedup
from specexp.bench.table import Cell, Table, columns
from specexp.core.parts import Parts

Counts = dict[str, NDArray[np.float64]]
"""``[4]`` tokens, steps, nodes and draft passes by prompt."""


class TokensPerStep(Analysis):
    """All tokens over all target passes, arm by arm, and its ratio to another arm's.

    Both arms decode the same prompts, so prompts are drawn together for the interval of a ratio.

    Args:
        over: Title of the arm all others are compared with; each with the one that follows in the file if None.
    """

    name: ClassVar[str] = "tokens_per_step"

    def __init__(self, over: str | None = None) -> None:
        self.over = over
        self._arms: list[str] = []

    @override
    def begin(self, arms: Mapping[str, Parts]) -> None:
        self._arms = list(drafting(arms))
        check_arms(self, "over", [self.over] if self.over else [], self._arms)

    @override
    def report(self, records: Sequence[PromptRecord]) -> Report:
        other = "the arm below" if self.over is None else self.over
        table = Table(
            f"Tokens per step, each arm over {self.over or 'the one below it'}",
            columns(f"arm | tokens/step:.3 | nodes/step:.1 | draft passes/step:.1 | over {other}:interval"),
            notes=[
                "Tokens of all prompts over their target passes; 95 % bootstrap interval of prompts drawn in pairs."
            ],
        )
        counts = {arm: _counts(records, arm) for arm in self._arms}
        for place, arm in enumerate(self._arms):
            row: list[Cell] = [arm, None, None, None, None]
            if counts[arm]:
                tokens, steps, nodes, passes = np.sum(list(counts[arm].values()), axis=0).tolist()
                row[1:4] = [tokens / steps, nodes / steps, passes / steps]
            compared = self._arms[place + 1 : place + 2] if self.over is None else {self.over} - {arm}
            for below in compared:
                row[4] = _ratio(arm, below, counts[arm], counts[below])
            table.rows.append(row)
        return Report({self.name: table})


def _counts(records: Sequence[PromptRecord], arm: str) -> Counts:
    found: Counts = {}
    for record in records:
        if record.arm == arm and not record.error and record.steps:
            tokens = record.accepted_drafts + record.bonus_tokens
            own = [tokens, record.steps, record.drafted_nodes, record.draft_passes]
            found[record.prompt_id] = found.get(record.prompt_id, 0.0) + np.array(own, dtype=np.float64)
    return found


def _ratio(arm: str, below: str, first: Counts, second: Counts) -> Speedup:
    """Tokens per step of one arm over another's, on the prompts both answered."""
    both = [prompt for prompt in first if prompt in second]
    if not both:
        return Speedup.refuse(arm, below, f"no prompt was answered by both {arm} and {below}")
    # [n, arm, tokens and steps]
    pairs = np.array([[first[prompt][:2], second[prompt][:2]] for prompt in both])
    drawn = np.random.default_rng(0).integers(len(both), size=(2000, len(both)))

    def ratio(totals: NDArray[np.float64]) -> NDArray[np.float64]:
        rates = totals[..., 0] / totals[..., 1]  # [..., arm]
        quotient: NDArray[np.float64] = rates[..., 0] / rates[..., 1]
        return quotient

    low, high = np.quantile(ratio(pairs[drawn].sum(axis=1)), [0.025, 0.975])
    value = float(ratio(pairs.sum(axis=0)))
    return Speedup(arm, below, float(np.log(value)), value, float(low), float(high), len(both))
