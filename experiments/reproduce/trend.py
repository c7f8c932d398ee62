"""The test of a paper's trend: inequalities between figures of a row's record, declared before anything is measured."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import ge, gt, le, lt

VERDICTS = ("agrees", "partly", "disagrees")

COMPARED: dict[str, Callable[[float, float], bool]] = {">=": ge, "<=": le, ">": gt, "<": lt}
_SIGN = re.compile(r" (>=|<=|>|<) ")
_TERM = re.compile(r"(?:(?P<factor>\d+(?:\.\d+)?) \* )?(?P<figure>[^{}]+?)\{(?P<place>[^{}]+)\}")


@dataclass(frozen=True)
class Figure:
    """A figure with its 95 % interval.

    Attributes:
        value: the figure.
        low: lower end; None where no interval was computed.
        high: upper end.
    """

    value: float
    low: float | None = None
    high: float | None = None

    def times(self, factor: float) -> Figure:
        """The figure and its interval in another unit."""
        ends = (None if end is None else factor * end for end in (self.low, self.high))
        return Figure(factor * self.value, *ends)

    def meets(self, other: Figure) -> bool:
        """Whether the two intervals have a number in common; without any, whether the figures are equal."""
        mine, theirs = (
            (one.value if one.low is None else one.low, one.value if one.high is None else one.high)
            for one in (self, other)
        )
        return mine[0] <= theirs[1] and theirs[0] <= mine[1]

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.value:.4g}"
        return f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}]"


@dataclass(frozen=True)
class Term:
    """One side of an inequality.

    Attributes:
        figure: name of a metric, ``speedup``, or ``TABLE: COLUMN`` of an analysis; empty for a number.
        place: arm, or label of the table's row; before it the run where a row has several, behind it the category.
        factor: what the figure is multiplied with; the number itself where there is no figure.
    """

    figure: str
    place: tuple[str, ...]
    factor: float

    def __str__(self) -> str:
        if not self.figure:
            return f"{self.factor:g}"
        times = "" if self.factor == 1 else f"{self.factor:g} * "
        return f"{times}{self.figure} of {', '.join(self.place)}"


@dataclass(frozen=True)
class Clause:
    """A chain of inequalities, as ``tokens_per_step{tree} > 0.9 * tokens_per_step{chain} > 1``.

    Attributes:
        text: as it was declared.
        terms: at least two.
        signs: between them.
    """

    text: str
    terms: tuple[Term, ...]
    signs: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> Clause:
        """Read a clause.

        Raises:
            ValueError: it is no chain of inequalities between figures and numbers.
        """
        first, *rest = _SIGN.split(text.strip())
        terms = [_term(piece, text) for piece in (first, *rest[1::2])]
        if len(terms) < 2 or not any(term.figure for term in terms):
            raise ValueError(
                f"the test {text!r} compares nothing; write as in 'alpha{{tree}} > alpha{{chain}}'"
            )
        return cls(text, tuple(terms), tuple(rest[::2]))

    def test(self, look_up: Callable[[Term], Figure]) -> Tested:
        """Whether it holds.

        Args:
            look_up: gives the figure of a term, without its factor; raises KeyError where there is none.
        """
        figures = [
            look_up(term).times(term.factor) if term.figure else Figure(term.factor) for term in self.terms
        ]
        pairs = list(zip(figures, self.signs, figures[1:], strict=False))
        holds = all(COMPARED[sign](one.value, other.value) for one, sign, other in pairs)
        return Tested(self, tuple(figures), holds, any(one.meets(other) for one, _, other in pairs))


@dataclass(frozen=True)
class Tested:
    """What became of a clause.

    Attributes:
        clause: which.
        figures: of its terms, in their order.
        holds: whether every inequality does, of the figures as they are.
        within_noise: whether the intervals of two neighbours overlap.
    """

    clause: Clause
    figures: tuple[Figure, ...]
    holds: bool
    within_noise: bool

    def __str__(self) -> str:
        told = [f"{term} {figure}" if term.figure else f"{figure}" for term, figure in self.named()]
        chain = told[0] + "".join(
            f" {sign} {one}" for sign, one in zip(self.clause.signs, told[1:], strict=True)
        )
        verdict = "holds" if self.holds else "does not hold"
        return f"{chain}: {verdict}{', within noise' if self.within_noise else ''}"

    def named(self) -> Iterator[tuple[Term, Figure]]:
        """Every term with its figure."""
        return zip(self.clause.terms, self.figures, strict=True)


def verdict(outcomes: Sequence[Tested]) -> str:
    """One word for all clauses of a row, ``agrees``, ``partly`` or ``disagrees``, and whether noise could turn it."""
    held = [outcome for outcome in outcomes if outcome.holds]
    agrees, partly, disagrees = VERDICTS
    word = agrees if len(held) == len(outcomes) else partly if held else disagrees
    count = f" ({len(held)} of {len(outcomes)} tests)" if word == partly else ""
    return f"{word}{count}{', within noise' if any(outcome.within_noise for outcome in outcomes) else ''}"


def _term(piece: str, text: str) -> Term:
    piece = piece.strip()
    found = _TERM.fullmatch(piece)
    if found is not None:
        place = tuple(part.strip() for part in found["place"].split(" | "))
        return Term(found["figure"].strip(), place, float(found["factor"] or 1))
    try:
        return Term("", (), float(piece))
    except ValueError as error:
        raise ValueError(
            f"the test {text!r} has the term {piece!r}; a number, FIGURE{{ARM}} or 0.9 * FIGURE{{ARM}} is expected"
        ) from error
