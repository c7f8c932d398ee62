"""Tokens per step of every drafting arm, and whether one tree is better than the next: counts, no clock."""

# No `from __future__ import annotations` here: jsonargparse then drops the bounds of the signature.

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from specexp.bench.analysis import Analysis, drafting
from specexp.bench.publish import Report

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from specexp.bench.record import PromptRecord
    from specexp.bench.statistics import Speedup
    from specexp.core.outcome import Outcome
    from specexp.core.parts import Parts


class TokensPerStep(Analysis):
    """All tokens over all target passes, arm by arm, and its ratio to another arm's.

    Both arms decode the same prompts, so prompts are drawn together for the interval of a ratio.

    Args:
        over: title of the arm all others are compared with; each with the one that follows in the file if None.
    """

    name: ClassVar[str] = "tokens_per_step"

    def __init__(self, over: str | None = None) -> None:
        self.over = over

    def begin(self, arms: "Mapping[str, Parts]") -> None:
        """Remember the arms that draft.

        Raises:
            ValueError: ``over`` is none of them.
        """
        self._arms = list(drafting(arms))
        if self.over is not None and self.over not in self._arms:
            raise ValueError(
                f"TokensPerStep compares with {self.over!r}, but the drafting arms are {self._arms}"
            )

    def observe(self, arm: str, outcome: "Outcome") -> None:
        """Nothing to see that the records do not hold."""

    def report(self, records: "Sequence[PromptRecord]") -> Report:
        """One table."""
        import numpy as np

        from specexp.bench.table import Cell, Column, Table

        other = "the arm below" if self.over is None else self.over
        table = Table(
            f"Tokens per step, each arm over {other if self.over else 'the one below it'}",
            [
                Column("arm"),
                Column("tokens/step", 3),
                Column("nodes/step", 1),
                Column("draft passes/step", 1),
                Column(f"over {other}", interval=True),
            ],
            notes=[
                "Tokens of all prompts over their target passes; 95 % bootstrap interval of prompts drawn in pairs."
            ],
        )
        counts = {arm: _counts(records, arm) for arm in self._arms}
        for place, arm in enumerate(self._arms):
            row: list[Cell] = [arm, None, None, None, None]
            if counts[arm]:
                tokens, steps, nodes, passes = np.sum(list(counts[arm].values()), axis=0)
                row[1:4] = [float(tokens / steps), float(nodes / steps), float(passes / steps)]
            compared = self._arms[place + 1 : place + 2] if self.over is None else {self.over} - {arm}
            for below in compared:
                row[4] = _ratio(arm, below, counts[arm], counts[below])
            table.rows.append(row)
        return Report({self.name: table})


def _counts(records: "Sequence[PromptRecord]", arm: str) -> "dict[str, NDArray[np.float64]]":
    """Tokens, steps, nodes and draft passes of an arm by prompt."""
    import numpy as np

    found: dict[str, NDArray[np.float64]] = {}
    for record in records:
        if record.arm == arm and not record.error and record.steps:
            tokens = record.accepted_drafts + record.bonus_tokens
            counts = np.array(
                [tokens, record.steps, record.drafted_nodes, record.draft_passes], dtype=np.float64
            )
            found[record.prompt_id] = found.get(record.prompt_id, 0.0) + counts
    return found


def _ratio(
    arm: str, below: str, first: "dict[str, NDArray[np.float64]]", second: "dict[str, NDArray[np.float64]]"
) -> "Speedup":
    """Tokens per step of one arm over another's, on the prompts both answered."""
    import numpy as np

    from specexp.bench.statistics import Speedup

    both = [prompt for prompt in first if prompt in second]
    if not both:
        nan = float("nan")
        return Speedup(arm, below, nan, nan, nan, nan, 0, f"no prompt was answered by both {arm} and {below}")
    pairs = np.array(
        [[first[prompt][:2], second[prompt][:2]] for prompt in both]
    )  # [n, arm, tokens and steps]
    drawn = np.random.default_rng(0).integers(len(both), size=(2000, len(both)))

    def ratio(totals: "NDArray[np.float64]") -> "NDArray[np.float64]":
        rates = totals[..., 0] / totals[..., 1]  # [..., arm]
        quotient: NDArray[np.float64] = rates[..., 0] / rates[..., 1]
        return quotient

    low, high = np.quantile(ratio(pairs[drawn].sum(axis=1)), [0.025, 0.975])
    value = float(ratio(pairs.sum(axis=0)))
    return Speedup(arm, below, float(np.log(value)), value, float(low), float(high), len(both))
