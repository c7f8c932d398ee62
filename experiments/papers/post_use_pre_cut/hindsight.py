"""Draft lengths in hindsight: the best of every step, the best fixed one, and what they bring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specexp.bench import clock


class Step(NamedTuple):
    """What became of a draft; grafts are left out."""

    accepted: int
    drafted: int
    passes: int
    """Of the draft model."""
    ended: bool
    """Whether the output ended inside the draft, without a bonus token."""


@dataclass(frozen=True)
class StepCosts:
    """What drafting costs an arm, in steps of plain decoding.

    Attributes:
        step: Cost of a step beside its draft passes.
        draft_pass: Cost of a draft pass.
        source: Clock of the seconds they are made of, or that they were given.
    """

    step: float
    draft_pass: float
    source: str

    @property
    def word(self) -> str:
        """What stands before a figure that rests on them: ``"modelled "``, or nothing."""
        return clock.adjective(self.source)


def local_optima(steps: Sequence[Step], cost: StepCosts) -> NDArray[np.int64]:
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


def speed_of(steps: Sequence[Step], cost: StepCosts, lengths: int | NDArray[np.int64]) -> float:
    """Tokens over their cost with a fixed length, or with one for every step ``[steps]``; 1 is plain decoding."""
    tokens, spent = 0, 0.0
    of_steps = np.broadcast_to(lengths, len(steps)).tolist()
    for (accepted, drafted, passes, ended), length in zip(steps, of_steps, strict=True):
        brought = accepted + (not ended)
        tokens += brought
        if length:
            times = -(-brought // (length + 1))
            spent += times * (cost.step + length * passes / drafted * cost.draft_pass)
        else:
            spent += brought
    return tokens / spent if spent else 1.0


def global_optimum(steps: Sequence[Step], cost: StepCosts) -> tuple[int, float]:
    """The best fixed length and its speed; 0 where drafting does not pay."""
    longest = max(step.drafted for step in steps)
    speeds = [1.0, *(speed_of(steps, cost, length) for length in range(1, longest + 1))]
    best = int(np.argmax(speeds))
    return best, speeds[best]
