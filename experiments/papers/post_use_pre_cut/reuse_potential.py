"""How much of what is drafted and put out was drafted before (Post-use & Pre-cut, figure 2b)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from pydantic import Field
from typing_extensions import override

from specexp.bench.analysis import Analysis, drafting, grafted_rows, over
from specexp.bench.pictures import BLUE, INK, ORANGE, new_figure, rule
from specexp.bench.publish import Report
from specexp.bench.record import PromptRecord
from specexp.bench.table import Cell, Table, columns
from specexp.core.context import Context
from specexp.core.outcome import Outcome
from specexp.core.parts import Parts

AFTER = ("after draft passes", "after target passes")
"""Whose tokens are looked at: the drafted ones, and the output's."""
SHORTEST = 2
_STEPS_A_POINT = 8
FEWEST = 20
"""Tokens a point of a curve is of at least."""

Phrase = tuple[int, ...]
Walk = tuple[list[int], list[int | None]]
"""Tokens in a row with the name of each, None where it is not counted."""
Counts = NDArray[np.int64]


class ReusePotential(Analysis):
    """The share of the drafted tokens, and of the output, that lies in phrases drafted in earlier steps of the prompt.

    A phrase of length n are n tokens in a row on one path of an earlier tree, accepted or not; grafts are left out. It
    reappears where the same n tokens stand in a row in this step's tree (after draft passes) or output (after target
    passes), with at least one new token among them: a phrase may begin in the text before. Counted are the new tokens
    in any such phrase. Those in none that also stood in the text so far (prompt and output) only rejected drafts could
    have foretold: a look-up in the text would have missed them.

    The paper speaks of phrases longer than 2: length 3 is drawn over the steps of a prompt.

    Args:
        longest: Phrase length up to which shares are told, from 2 on.
        over_steps: Phrase length whose shares are drawn over the steps.
        most_arms: Arms in the picture, the first ones; the table has all.
    """

    name: ClassVar[str] = "reuse_potential"

    def __init__(
        self,
        longest: Annotated[int, Field(ge=2, le=16)] = 6,
        over_steps: Annotated[int, Field(ge=2, le=16)] = 3,
        most_arms: Annotated[int, Field(ge=1)] = 3,
    ) -> None:
        if over_steps > longest:
            raise ValueError(
                f"over_steps was {over_steps}, but phrases are only looked for up to longest, {longest}"
            )
        self.longest = longest
        self.over_steps = over_steps
        self.most_arms = most_arms
        self._seen: dict[str, _Seen] = {}
        self._found: dict[str, list[Counts]] = {}

    @override
    def begin(self, arms: Mapping[str, Parts]) -> None:
        self._seen = {arm: _Seen(self.longest) for arm in drafting(arms)}
        self._found = {arm: [] for arm in self._seen}

    @override
    def observe(self, arm: str, outcome: Outcome) -> None:
        if arm not in self._seen:
            return
        seen = self._seen[arm]
        text = outcome.context.token_ids.tolist()
        before = len(text) - len(outcome.new_token_ids)
        if seen.context is not outcome.context:
            seen = self._seen[arm] = _Seen(self.longest, outcome.context)
            seen.read(text[:before], 0)
        tree = outcome.tree
        drafted = np.flatnonzero(~grafted_rows(tree)).tolist()[1:]
        paths = [list(tree.shape.path(row)) for row in drafted]
        branches = [tree.tokens[path].tolist() for path in paths]
        tail = text[max(0, before - self.longest) : before]
        unnamed: list[int | None] = [None] * len(tail)
        in_tree = [(tail + tokens, [*unnamed, *path]) for tokens, path in zip(branches, paths, strict=True)]
        output = (tail + text[before:], [*unnamed, *range(len(text) - before)])
        counts = np.empty((3, 3, self.longest + 1), dtype=np.int64)
        counts[0] = seen.steps
        counts[1:, 0] = [[len(drafted)], [len(text) - before]]
        counts[1, 1:] = seen.cover(in_tree, ends_only=True)
        counts[2, 1:] = seen.cover([output], ends_only=False)
        self._found[arm].append(counts)
        seen.steps += 1
        for tokens in branches:
            seen.drafts.update(_phrases(tokens, len(tokens), self.longest))
        seen.read(text, before)

    @override
    def report(self, records: Sequence[PromptRecord]) -> Report:
        # [steps, number of the step and after which passes, tokens and found and unread, length]
        found = {arm: np.stack(steps) for arm, steps in self._found.items() if steps}
        shown = dict(list(found.items())[: self.most_arms])
        return Report({self.name: self._table(found)}, {self.name: self._draw(shown)} if shown else {})

    def _table(self, found: Mapping[str, Counts]) -> Table:
        table = Table(
            "Tokens in phrases that earlier steps drafted",
            columns(
                f"arm | phrase length from | drafted tokens | {AFTER[0]}:.1% | only rejected before:.1%"
                f" | output tokens | {AFTER[1]}:.1% | put out, only rejected before:.1%"
            ),
            notes=[
                "After draft passes: share of the drafted tokens that lie in a phrase drafted in an earlier step of "
                "the prompt; after target passes: share of the output.",
                "Only rejected before: of the same tokens, those whose phrases stood in rejected drafts alone, not in "
                "the prompt or the output so far.",
            ],
        )
        for arm, steps in found.items():
            sums = steps[:, 1:].sum(axis=0)
            for n in range(SHORTEST, self.longest + 1):
                row: list[Cell] = [arm, n]
                for tokens, covered, unread in sums[:, :, n].tolist():
                    row += [tokens, over(covered, tokens), over(unread, tokens)]
                table.rows.append(row)
        return table

    def _draw(self, found: Mapping[str, Counts]) -> Figure:
        title = "How much of what is drafted and put out was drafted before"
        figure, rows = new_figure(
            9.5, 0.8 + 3.1 * len(found), title, len(found), 2, width_ratios=(1.2, 1), sharey="row"
        )
        for (bars, curves), (arm, steps) in zip(rows, found.items(), strict=True):
            for number, colour in enumerate((ORANGE, BLUE)):
                self._draw_bars(bars, steps[:, 1 + number].sum(axis=0), number, colour)
                self._draw_curve(curves, steps, number, colour)
            bars.set_title(arm, fontsize=9, loc="left", color=INK)
            bars.set_ylabel("% of the tokens", fontsize=9)
            bars.set_xticks(range(SHORTEST, self.longest + 1))
            told = f"phrases of {self.over_steps} or more, as a prompt goes on"
            curves.set_title(told, fontsize=9, color=INK)
            for axes in (bars, curves):
                axes.set_ylim(0, 100)
                rule(axes)
        rows[0][0].legend(fontsize=8, frameon=False)
        rows[-1][0].set_xlabel("tokens of a phrase, at least", fontsize=9)
        rows[-1][1].set_xlabel("step of the prompt", fontsize=9)
        return figure

    def _draw_bars(self, axes: Axes, sums: Counts, number: int, colour: str) -> None:
        """Of each phrase length: what is found, and of it what only rejected drafts held."""
        lengths = np.arange(SHORTEST, self.longest + 1)
        tokens, covered, unread = (100 * sums[:, SHORTEST:] / max(int(sums[0, SHORTEST]), 1)).tolist()
        if not tokens[0]:
            return
        places = lengths + 0.4 * (number - 0.5)
        read = np.subtract(covered, unread)
        label = AFTER[number]
        axes.bar(places, read, width=0.38, color=colour, label=f"{label}, also in the text so far")
        label += ", in rejected drafts alone"
        axes.bar(places, unread, bottom=read, width=0.38, color=colour, alpha=0.4, label=label)
        for place, share in zip(places.tolist(), covered, strict=True):
            axes.text(place, share + 1, f"{share:.0f}", ha="center", fontsize=7, color=colour)

    def _draw_curve(self, axes: Axes, steps: Counts, number: int, colour: str) -> None:
        """Shares of the steps of all prompts, several steps a point."""
        place = steps[:, 0, 0, 0] // _STEPS_A_POINT
        tokens, covered = (
            np.bincount(place, steps[:, 1 + number, what, self.over_steps]) for what in range(2)
        )
        known = np.flatnonzero(tokens >= FEWEST)
        middles, shares = (known + 0.5) * _STEPS_A_POINT, 100 * covered[known] / tokens[known]
        axes.plot(middles, shares, color=colour, marker="o", ms=4, label=AFTER[number])


@dataclass
class _Seen:
    """What the earlier steps of a prompt held.

    Attributes:
        longest: Tokens of a phrase at most.
        context: Text of the prompt.
        steps: Steps so far.
        drafts: Phrases on the paths of their trees.
        text: Phrases of the prompt and the output.
    """

    longest: int
    context: Context | None = None
    steps: int = 0
    drafts: set[Phrase] = field(default_factory=set)
    text: set[Phrase] = field(default_factory=set)

    def read(self, text: list[int], start: int) -> None:
        """Remember the phrases of a text that end behind ``start`` tokens."""
        for end in range(start + 1, len(text) + 1):
            self.text.update(_phrases(text, end, self.longest))

    def cover(self, walks: Sequence[Walk], *, ends_only: bool) -> Counts:
        """``[2, longest + 1]`` by phrase length: tokens in phrases of earlier drafts, and those in none that also
        stood in the text.

        Args:
            walks: Tokens and their names.
            ends_only: Whether every token ends a walk of its own, so that only phrases at the end are new.
        """
        drafted: list[set[int]] = [set() for _ in range(self.longest + 1)]
        read: list[set[int]] = [set() for _ in range(self.longest + 1)]
        for tokens, names in walks:
            ends = [end for end, name in enumerate(names, start=1) if name is not None]
            for end in [len(tokens)] if ends_only else ends:
                for phrase in _phrases(tokens, end, self.longest):
                    if phrase in self.drafts:
                        n = len(phrase)
                        own = [name for name in names[end - n : end] if name is not None]
                        drafted[n].update(own)
                        if phrase in self.text:
                            read[n].update(own)
        found = [[len(names) for names in drafted], [len(a - b) for a, b in zip(drafted, read, strict=True)]]
        return np.array(found, dtype=np.int64)


def _phrases(tokens: list[int], end: int, longest: int) -> Iterator[Phrase]:
    """Phrases that end before a place of a text."""
    for n in range(SHORTEST, min(longest, end) + 1):
        yield tuple(tokens[end - n : end])
