"""Tests of a paper's trend, written as Python comparisons between figures of a row's record."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

AGREES, PARTLY, DISAGREES = "agrees", "partly", "disagrees"

Figure = Sequence[float]  # ``[number]``, or ``[number, low, high]`` with its 95 % interval


class Term(NamedTuple):
    """A figure that a test names as ``figure("NAME", "PLACE", ...)``."""

    figure: str  # a metric, ``speedup``, or ``TABLE: COLUMN`` of an analysis
    # the run if the row has several, then the arm or the label of a table's row, then the category if any
    place: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.figure} of {', '.join(self.place)}"


class Outcome(NamedTuple):
    """The result of a clause: its text with figures, whether all inequalities hold, and whether intervals overlap."""

    text: str
    holds: bool
    within_noise: bool

    def __str__(self) -> str:
        holds = "holds" if self.holds else "does not hold"
        return f"{self.text}: {holds}{', within noise' if self.within_noise else ''}"


@dataclass(frozen=True)
class Clause:
    """A chain of inequalities, e.g. ``figure("alpha", "tree") > 0.9 * figure("alpha", "chain") > 0.5``."""

    text: str

    def __post_init__(self) -> None:
        try:
            compares = isinstance(ast.parse(self.text, mode="eval").body, ast.Compare) and self.terms
        except SyntaxError:
            compares = False
        if not compares:
            example = """figure("alpha", "tree") > figure("alpha", "chain")"""
            raise ValueError(f"{self.text!r} must compare a figure, as in {example}")

    @property
    def terms(self) -> dict[str, Term]:
        """The terms of the clause by their source text, in order."""
        calls = (node for node in ast.walk(ast.parse(self.text)) if isinstance(node, ast.Call))
        arguments = {ast.unparse(call): list(map(ast.literal_eval, call.args)) for call in calls}
        return {source: Term(name, tuple(place)) for source, (name, *place) in arguments.items()}

    def test(self, look_up: Callable[[Term], Figure]) -> Outcome:
        """Test the clause; ``look_up`` returns the figure of a term."""
        comparison = ast.parse(self.text, mode="eval").body
        assert isinstance(comparison, ast.Compare)
        shown = ast.unparse(comparison)
        for source, term in self.terms.items():
            value, *ends = (f"{number:.4g}" for number in look_up(term))
            shown = shown.replace(source, f"{term} {value}" + (f" [{', '.join(ends)}]" if ends else ""))

        def ends_of(side: ast.expr) -> NDArray[np.float64]:
            # an array, so that a factor scales the ends of the interval too
            scope = {"figure": lambda name, *place: np.array(look_up(Term(name, place)))}
            return np.atleast_1d(eval(ast.unparse(side), scope))  # the declarations are our own

        sides = list(map(ends_of, [comparison.left, *comparison.comparators]))
        holds = eval(self.text, {"figure": lambda name, *place: look_up(Term(name, place))[0]})
        return Outcome(shown, bool(holds), any(_overlap(*pair) for pair in pairwise(sides)))


def verdict(outcomes: Sequence[Outcome]) -> str:
    """Return ``agrees``, ``partly`` or ``disagrees`` for a row, with ``within noise`` if two intervals overlap."""
    held = sum(outcome.holds for outcome in outcomes)
    word = AGREES if held == len(outcomes) else PARTLY if held else DISAGREES
    count = f" ({held} of {len(outcomes)} tests)" if word == PARTLY else ""
    return f"{word}{count}{', within noise' if any(outcome.within_noise for outcome in outcomes) else ''}"


def _overlap(left: Figure | NDArray[np.float64], right: Figure | NDArray[np.float64]) -> bool:
    """Return whether two intervals overlap; a number without an interval counts as a point."""
    (low, high), (other_low, other_high) = ((one[-2:][0], one[-1]) for one in (left, right))
    return bool(low <= other_high and other_low <= high)
