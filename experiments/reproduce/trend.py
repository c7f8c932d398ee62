"""Tests of a paper's trend, written as Python comparisons between figures of a row's record."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

INFINITE = 1e9  # stands for a ratio to 0
AGREES, DISAGREES, UNDECIDED, TOO_SMALL = "agrees", "disagrees", "undecided", "too small"

Figure = Sequence[float] | NDArray[np.float64]  # ``[number]``, or ``[number, low, high]`` with its 95 % interval


class Term(NamedTuple):
    """A figure that a test names as ``figure("NAME", "PLACE", ...)``."""

    figure: str  # a metric, ``speedup``, or ``TABLE: COLUMN`` of an analysis
    # the run if the row has several, then the arm or the label of a table's row, then the category if any
    place: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.figure} of {', '.join(self.place)}"


class Outcome(NamedTuple):
    """The result of a clause: its text with figures, whether it holds, and whether it is within noise.

    ``ratios`` are left over right sides of its inequalities, with paired intervals, and ``differences`` left less right
    sides of the other inequalities.
    """

    text: str
    holds: bool
    within_noise: bool
    figures: dict[str, Figure]
    ratios: dict[str, Figure]
    differences: dict[str, Figure]

    @property
    def smallest_effect(self) -> float:
        """The smallest ratio that the sample could have shown to differ from 1, by its widest interval; or 0."""
        return max((float(np.sqrt(high / low)) for _, low, high in self.ratios.values()), default=0.0)

    def __str__(self) -> str:
        holds = "holds" if self.holds else "does not hold"
        why = "within noise" if all(len(one) > 1 for one in self.differences.values()) else "without an interval"
        tested = [f"ratio {format_figure(ratio)}" for ratio in self.ratios.values()]
        tested += [f"difference {format_figure(one)}" for one in self.differences.values()]
        return f"{self.text} ({'; '.join(tested)}): {holds}{f', {why}' if self.within_noise else ''}"


@dataclass(frozen=True)
class Clause:
    """A chain of inequalities, e.g. ``figure("alpha", "tree") > 0.9 * figure("alpha", "chain") > 0.5``.

    It holds if it holds for the point estimates. It is within noise if the 95 % interval of the ratio of two sides,
    paired by prompt, includes 1. Sides without a paired ratio (figures of two runs, or of an analysis' table) are
    within noise if the interval of their difference includes 0. Without an interval they decide nothing either.
    """

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

    @property
    def inequalities(self) -> dict[str, tuple[str, str]]:
        """The left and the right side of each inequality, by its text ``LEFT over RIGHT``."""
        comparison = ast.parse(self.text, mode="eval").body
        assert isinstance(comparison, ast.Compare)
        sides = map(ast.unparse, [comparison.left, *comparison.comparators])
        return {f"{left} over {right}": (left, right) for left, right in pairwise(sides)}

    def named(self, name: Callable[[str, Term], str] = lambda _, term: str(term)) -> str:
        """Return the clause with names for its figures; ``name`` gets the source text of a term and the term."""
        shown = ast.unparse(ast.parse(self.text))
        for source, term in self.terms.items():
            shown = shown.replace(source, name(source, term))
        return shown

    def test(self, look_up: Callable[[Term], Figure], ratios: Mapping[str, Figure] = MappingProxyType({})) -> Outcome:
        """Test the clause. ``look_up`` returns a term's figure, ``ratios`` has the paired ratios by inequality."""
        found = {source: look_up(term) for source, term in self.terms.items()}
        shown = self.named(lambda source, term: f"{term} {format_figure(found[source])}")
        paired = {name: ratios[name] for name in self.inequalities if name in ratios}
        others = {name: difference(*sides, look_up) for name, sides in self.inequalities.items() if name not in paired}
        noise = any(low <= 1 <= high for _, low, high in paired.values())
        noise |= any(len(one) < 3 or one[1] <= 0 <= one[2] for one in others.values())
        holds = bool(value_of(self.text, lambda term: look_up(term)[:1]).all())
        figures = {str(term): found[source] for source, term in self.terms.items()}
        return Outcome(shown, holds, noise, figures, paired, others)


def value_of(side: str, look_up: Callable[[Term], Figure]) -> NDArray[Any]:
    """Return the value of an expression. Figures are arrays, so a factor scales all draws or ends of an interval."""
    scope = {"figure": lambda name, *place: np.asarray(look_up(Term(name, place)))}
    return np.atleast_1d(eval(side, scope))  # the declarations are our own


def verdict(outcomes: Sequence[Outcome], main: int = 1, effect: float | None = None) -> str:
    """Return the verdict of a row with the ``main``-th clause as its main one, and the number of clauses that hold.

    A clause within noise decides nothing. The row agrees if the main clause and most of the others hold outside noise,
    disagrees if the main clause fails outside noise, and is undecided otherwise. It is too small instead if the paper's
    ``effect``, a ratio of the main clause's sides above 1, is less than the sample could have shown.
    """
    held = [outcome.holds and not outcome.within_noise for outcome in outcomes]
    chief, others = outcomes[main - 1], [*held[: main - 1], *held[main:]]
    if chief.within_noise:
        word = TOO_SMALL if effect and effect < chief.smallest_effect else UNDECIDED
    elif not chief.holds:
        word = DISAGREES
    else:
        word = AGREES if not others or 2 * sum(others) > len(others) else UNDECIDED
    noise = sum(outcome.within_noise for outcome in outcomes)
    return f"{word} ({sum(held)} of {len(held)} hold{f', {noise} within noise' if noise else ''})"


def format_figure(figure: Figure) -> str:
    """Return a figure with its interval, e.g. ``3 [2.8, 3.2]``; a ratio to 0 is infinite."""
    value, *ends = ("infinite" if number >= INFINITE else f"{number:.4g}" for number in figure)
    return value + (f" [{', '.join(ends)}]" if ends else "")


def difference(left: str, right: str, look_up: Callable[[Term], Figure]) -> Figure:
    """Return left less right side, with its interval if all of their figures have one.

    The squares of the changes by the figures' separate intervals are added (Newcombe 1998, method 10).
    """

    def changed(moved: Term | None = None) -> NDArray[np.float64]:
        """Return the difference on the interval of one figure, with the point estimates of the others."""
        sides = (value_of(one, lambda term: look_up(term)[: None if term == moved else 1]) for one in (left, right))
        return np.asarray(np.subtract(*sides))

    terms, point = Clause(f"{left} > {right}").terms.values(), float(changed()[0])
    if any(len(look_up(term)) == 1 for term in terms):
        return [point]
    changes = [changed(term) - point for term in terms]
    below, above = (float(np.sqrt(sum(end(0.0, *one) ** 2 for one in changes))) for end in (min, max))
    return [point, point - below, point + above]


def proportion(sides: Sequence[str], others: Sequence[str]) -> float | None:
    """Return the quotient of ``sides`` over that of ``others`` if it is the same for all figures, None otherwise."""
    found: dict[Term, NDArray[np.float64]] = {}
    random = np.random.default_rng(0)
    left, right, other_left, other_right = (
        value_of(side, lambda term: found.setdefault(term, random.uniform(1, 2, 8))) for side in (*sides, *others)
    )
    factor = left / right * other_right / other_left
    return float(factor[0]) if np.allclose(factor, factor[0]) else None
