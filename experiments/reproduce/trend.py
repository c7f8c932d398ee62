"""Tests of a paper's trend: chains of inequalities between figures of a row's record."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from operator import ge, gt, le, lt
from typing import NamedTuple

AGREES, PARTLY, DISAGREES = "agrees", "partly", "disagrees"
_COMPARISONS: dict[str, Callable[[float, float], bool]] = {">=": ge, "<=": le, ">": gt, "<": lt}
_SIGN = re.compile(r" (>=|<=|>|<) ")
_TERM = re.compile(r"(?:(\d+(?:\.\d+)?)(?: \* |$))?(?:([^{}]+?)\{([^{}]+)\})?")

Figure = Sequence[float]
"""A number alone, or with the two ends of its 95 % interval."""


@dataclass(frozen=True)
class Term:
    """One side of an inequality.

    Attributes:
        figure: A metric, ``speedup``, or ``TABLE: COLUMN`` of an analysis. Empty for a number.
        place: The run if the row has several, then the arm or the label of a table's row, then the category if any.
        factor: Multiplies the figure. The number itself if ``figure`` is empty.
    """

    figure: str
    place: tuple[str, ...]
    factor: float

    @classmethod
    def parse(cls, text: str) -> Term:
        """Read ``1.5``, ``alpha{tree}`` or ``0.9 * alpha{run | tree | category}``; raises ValueError for another."""
        found = _TERM.fullmatch(text)
        if not text or found is None:
            raise ValueError(f"{text!r} must be a number, FIGURE{{ARM}} or 0.9 * FIGURE{{ARM}}")
        factor, figure, place = found.groups()
        return cls(figure or "", tuple(place.split(" | ")) if place else (), float(factor or 1))

    def __str__(self) -> str:
        if not self.figure:
            return ""
        times = "" if self.factor == 1 else f"{self.factor:g} * "
        return f"{times}{self.figure} of {', '.join(self.place)}"


class Outcome(NamedTuple):
    """The result of a clause: its figures, whether they meet every inequality, and whether two intervals overlap."""

    text: str
    holds: bool
    within_noise: bool

    def __str__(self) -> str:
        holds = "holds" if self.holds else "does not hold"
        return f"{self.text}: {holds}{', within noise' if self.within_noise else ''}"


@dataclass(frozen=True)
class Clause:
    """A chain of inequalities, as ``tokens_per_step{tree} > 0.9 * tokens_per_step{chain} > 1``."""

    text: str
    terms: tuple[Term, ...]
    signs: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Clause:
        """Read a clause; raises ValueError if it does not compare a figure."""
        pieces = _SIGN.split(text.strip())
        terms = tuple(Term.parse(piece.strip()) for piece in pieces[::2])
        if len(terms) < 2 or not any(term.figure for term in terms):
            raise ValueError(f"{text!r} must compare a figure, as in 'alpha{{tree}} > alpha{{chain}}'")
        return cls(text, terms, tuple(pieces[1::2]))

    def test(self, look_up: Callable[[Term], Figure]) -> Outcome:
        """Test the clause; ``look_up`` returns a term's figure without its factor."""
        figures = [
            [term.factor * number for number in (look_up(term) if term.figure else (1.0,))]
            for term in self.terms
        ]
        parts = zip(("", *self.signs), map(str, self.terms), map(_show, figures), strict=True)
        pairs = list(zip(self.signs, pairwise(figures), strict=True))
        return Outcome(
            " ".join(filter(None, chain.from_iterable(parts))),
            all(_COMPARISONS[sign](left[0], right[0]) for sign, (left, right) in pairs),
            any(_overlap(left, right) for _, (left, right) in pairs),
        )


def verdict(outcomes: Sequence[Outcome]) -> str:
    """Return ``agrees``, ``partly`` or ``disagrees`` for all clauses of a row, and whether noise could turn it."""
    held = sum(outcome.holds for outcome in outcomes)
    word = AGREES if held == len(outcomes) else PARTLY if held else DISAGREES
    count = f" ({held} of {len(outcomes)} tests)" if word == PARTLY else ""
    return f"{word}{count}{', within noise' if any(outcome.within_noise for outcome in outcomes) else ''}"


def _show(figure: Figure) -> str:
    value, *ends = (f"{number:.4g}" for number in figure)
    return f"{value} [{', '.join(ends)}]" if ends else value


def _overlap(left: Figure, right: Figure) -> bool:
    """Whether two intervals overlap. A number alone is its own interval."""
    (low, high), (other_low, other_high) = ((one[-2:][0], one[-1]) for one in (left, right))
    return low <= other_high and other_low <= high
