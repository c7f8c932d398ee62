"""The one shape of all tests of a composition: its samples, its decision, and what it could have found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from specexp.verify.exercised import Exercised
from specexp.verify.statistics import POWER, GoodnessOfFit

Decision = Literal["found", "excluded", "undecided"]


@dataclass(frozen=True)
class Check:
    """One test of a composition.

    Attributes:
        name: ``token equality``, ``toy equality``, ``toy joint`` or ``first tokens``.
        decision: A deviation was found, one of the stated size was excluded, or there were too few samples for that.
        samples: Number of compared outputs or tokens, or of counted samples.
        evidence: The result as a clause of a verdict.
        finds: The smallest deviation that is found with probability :data:`~specexp.verify.statistics.POWER`: the
            share of wrong tokens, or the total variation.
        p_value: One p-value for all fits, to be compared with ``level``.
        level: Probability that the test refuses an exact composition.
        fits: The chi-squares behind it, by what they count.
        outcomes: Number of compared outputs or tokens by result.
        wrong: Tokens on the toy targets that differ: (continuation, index, token, expected token).
        exercised: How the steps ended.
    """

    name: str
    decision: Decision
    samples: int
    evidence: str
    finds: float | None = None
    p_value: float | None = None
    level: float | None = None
    fits: Mapping[str, GoodnessOfFit] = field(default_factory=dict)
    outcomes: Mapping[str, int] = field(default_factory=dict)
    wrong: tuple[tuple[int, int, int, int], ...] = ()
    exercised: Exercised | None = None

    @property
    def passed(self) -> bool:
        """Whether no deviation was found."""
        return self.decision != "found"

    @property
    def worst(self) -> str | None:
        """The fit with the least p-value."""
        return min(self.fits, key=lambda name: self.fits[name].p_value, default=None)

    def to_dict(self) -> dict[str, Any]:
        """All fields, for JSON."""
        fits = {name: {**vars(fit), "samples": fit.samples} for name, fit in self.fits.items()}
        exercised = self.exercised and {**vars(self.exercised), "never": self.exercised.never}
        return {**vars(self), "fits": _plain(fits), "exercised": _plain(exercised), "power": POWER}


def _plain(value: Any) -> Any:
    """Arrays as lists of six digits, counters as tables."""
    if isinstance(value, dict | Counter):
        return {name: _plain(one) for name, one in value.items()}
    return [round(float(one), 6) for one in value] if isinstance(value, np.ndarray) else value
