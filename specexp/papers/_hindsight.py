"""Draft lengths in hindsight: the best of every step, the best fixed one, and what they bring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Step(NamedTuple):
    """What became of a draft; grafts are left out."""

    accepted: int
    drafted: int
    passes: int
    """Of the draft model."""
    ended: bool
    """Whether the output ended inside the draft, without a bonus token."""


@dataclass(frozen=True)
class Costs:
    """What drafting costs an arm, in steps of plain decoding.

    Attributes:
        step: of a step beside its draft passes.
        draft_pass: of a draft pass.
        source: where the figures are from.
    """

    step: float
    draft_pass: float
    source: str

    @property
    def word(self) -> str:
        """What stands before a figure that rests on them: ``"modelled "``, or nothing."""
        return "" if self.source == "measured" else "modelled "


def local_optima(steps: Sequence[Step], cost: Costs) -> NDArray[np.int64]:
    """``[steps]`` the length that would have been best in each."""
    found = np.zeros(len(steps), dtype=np.int64)
    for number, (accepted, drafted, passes, _) in enumerate(steps):
        lengths = np.arange(1, accepted + 1)
        gains = (lengths + 1) / (cost.step + lengths * passes / drafted * cost.draft_pass)
        if accepted and gains.max() > 1:
            found[number] = 1 + gains.argmax()
    return found


def cut_short(steps: Sequence[Step]) -> NDArray[np.bool_]:
    """``[steps]`` whether nothing was rejected, so that the optimum may be longer."""
    return np.array([accepted == drafted or ended for accepted, drafted, _, ended in steps])


def speed_of(steps: Sequence[Step], cost: Costs, length: int | None) -> float:
    """Tokens over their cost with a fixed length, or with every step's optimum (None); 1 is plain decoding."""
    tokens, spent = 0, 0.0
    optima = local_optima(steps, cost) if length is None else None
    for number, (accepted, drafted, passes, ended) in enumerate(steps):
        brought = accepted + (not ended)
        tokens += brought
        own = length if optima is None else int(optima[number])
        if own:
            times = -(-brought // (own + 1))
            spent += times * (cost.step + own * passes / drafted * cost.draft_pass)
        else:
            spent += brought
    return tokens / spent if spent else 1.0


def global_optimum(steps: Sequence[Step], cost: Costs) -> tuple[int, float]:
    """The best fixed length and its speed; 0 where drafting does not pay."""
    speeds = [
        1.0,
        *(speed_of(steps, cost, length) for length in range(1, max(step.drafted for step in steps) + 1)),
    ]
    best = int(np.argmax(speeds))
    return best, speeds[best]
