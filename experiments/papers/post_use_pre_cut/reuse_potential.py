"""The shares of drafted and of output tokens that were drafted before (Post-use & Pre-cut, figure 2b)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from typing_extensions import override

from experiments.papers.shared import DraftingAnalysis, grafted_rows, label, report_of, table_of
from experiments.reproduce.resampled import interval, prompt_weights
from specexp.bench.record import PromptRecord
from specexp.core.context import Context
from specexp.core.outcome import Outcome
from specexp.core.parts import Parts
from specexp.report.pictures import BLUE, ORANGE, legend_below, new_figure
from specexp.report.publish import Report
from specexp.report.table import Cell

AFTER = ("after draft passes", "after target passes")
"""The two groups of counted tokens: drafted tokens, and output tokens."""
COLUMNS = (
    ("drafted tokens", AFTER[0], "only rejected before"),
    ("output tokens", AFTER[1], "put out, only rejected before"),
)
"""Columns of each group: its tokens, the share of them found, and the share found in no phrase of the text."""
SHORTEST = 2
STEPS_A_POINT = 8
FEWEST = 20  # a point of a curve needs at least so many tokens

Phrase = tuple[int, ...]
Walk = tuple[list[int], list[int | None]]
"""Consecutive tokens and their ids in the count; None for a token that is not counted."""
Counts = NDArray[np.int64]


class PhraseCounts:
    """The phrases of earlier steps of a prompt, and the counts of all steps of an arm."""

    def __init__(self, longest: int) -> None:
        self.longest = longest
        self.counts: list[tuple[int, Counts]] = []
        """Per step, its number in the prompt, and ``[AFTER, (tokens, found, unread), phrase length]`` counts."""
        self.context: Context | None = None

    def step(self, outcome: Outcome) -> None:
        """Count the step's tokens that lie in phrases of earlier drafts, then add the step's own phrases."""
        text = outcome.context.token_ids.tolist()
        before = len(text) - len(outcome.new_token_ids)
        if self.context is not outcome.context:
            self.context, self.steps = outcome.context, 0
            self.drafts: set[Phrase] = set()
            self.text: set[Phrase] = set()
            self._read(text[:before], 0)
        tree = outcome.tree
        drafted = np.flatnonzero(~grafted_rows(tree)).tolist()[1:]
        paths = [list(tree.shape.path(row)) for row in drafted]
        branches = [tree.tokens[path].tolist() for path in paths]
        tail = text[max(0, before - self.longest) : before]  # a phrase may begin before the step
        unnamed: list[int | None] = [None] * len(tail)
        in_tree = [(tail + tokens, [*unnamed, *path]) for tokens, path in zip(branches, paths, strict=True)]
        output = (tail + text[before:], [*unnamed, *range(len(text) - before)])
        counts = np.empty((2, 3, self.longest + 1), dtype=np.int64)
        counts[:, 0] = [[len(drafted)], [len(text) - before]]
        counts[0, 1:] = self._cover(in_tree, ends_only=True)
        counts[1, 1:] = self._cover([output], ends_only=False)
        self.counts.append((self.steps, counts))
        self.steps += 1
        for tokens in branches:
            self.drafts.update(self._phrases(tokens, len(tokens)))
        self._read(text, before)

    def by_prompt(self) -> Counts:
        """Return ``[prompts, AFTER, (tokens, found, unread), phrase length]`` counts."""
        firsts = [number for number, (step, _) in enumerate(self.counts) if step == 0]
        return np.add.reduceat([counts for _, counts in self.counts], firsts, axis=0)

    def _read(self, text: list[int], start: int) -> None:
        """Remember the phrases of a text that end after its first ``start`` tokens."""
        for end in range(start + 1, len(text) + 1):
            self.text.update(self._phrases(text, end))

    def _cover(self, walks: Sequence[Walk], *, ends_only: bool) -> Counts:
        """Return ``[2, longest + 1]`` counts by phrase length: tokens in phrases of earlier drafts, and those of them
        in no phrase of the text. With ``ends_only``, only phrases at the end of a walk are new.
        """
        drafted: list[set[int]] = [set() for _ in range(self.longest + 1)]
        read: list[set[int]] = [set() for _ in range(self.longest + 1)]
        for tokens, names in walks:
            ends = [end for end, name in enumerate(names, start=1) if name is not None]
            # a branch adds one token to its parent's branch, so only its end is new
            for end in [len(tokens)] if ends_only else ends:
                for phrase in self._phrases(tokens, end):
                    if phrase in self.drafts:
                        n = len(phrase)
                        own = [name for name in names[end - n : end] if name is not None]
                        drafted[n].update(own)
                        if phrase in self.text:
                            read[n].update(own)
        unread = [len(names - known) for names, known in zip(drafted, read, strict=True)]
        return np.array([list(map(len, drafted)), unread], dtype=np.int64)

    def _phrases(self, tokens: list[int], end: int) -> Iterator[Phrase]:
        """Yield the phrases that end right before position ``end``."""
        for n in range(SHORTEST, min(self.longest, end) + 1):
            yield tuple(tokens[end - n : end])


class ReusePotential(DraftingAnalysis[PhraseCounts]):
    """The share of the drafted tokens, and of the output, that lies in phrases drafted in earlier steps of the prompt.

    A phrase of length n is n consecutive tokens on one path of an earlier tree, accepted or not, without grafts. It
    reappears where the same tokens are consecutive in this step's tree (after draft passes) or output (after target
    passes). At least one of them must be new: a phrase may begin in the text before. The new tokens of all reappearing
    phrases are counted. If none of a token's phrases occurred in the text so far (prompt and output), a look-up in the
    text would have missed the token.
    """

    name: ClassVar[str] = "reuse_potential"
    longest = 6  # tokens of the longest phrases
    over_steps = 3
    """Least length of the phrases drawn over the steps of a prompt; the paper has phrases longer than 2."""

    @override
    def new_state(self, parts: Parts) -> PhraseCounts:
        return PhraseCounts(self.longest)

    @override
    def watch(self, arm: str, state: PhraseCounts, outcome: Outcome) -> None:
        state.step(outcome)

    @override
    def report(self, records: Sequence[PromptRecord]) -> Report:
        found = {arm: counted for arm, counted in self.states.items() if counted.counts}
        table = table_of(
            "Tokens in phrases that earlier steps drafted",
            "arm | phrase length from"
            + "".join(
                f" | {tokens}" + "".join(f" | {share}{end}:.1%" for share in shares for end in ("", " low", " high"))
                for tokens, *shares in COLUMNS
            ),
            "After draft passes: share of the drafted tokens that lie in a phrase drafted in an earlier step of "
            "the prompt; after target passes: share of the output.",
            "Only rejected before: share of tokens in phrases that occurred only in rejected drafts, not in the "
            "prompt or the output so far.",
            "Low, high: 95 % bootstrap interval over the prompts.",
        )
        for arm, counted in found.items():
            sums = counted.by_prompt()
            draws = np.tensordot(prompt_weights(len(sums)), sums, axes=1)  # [1 + resamples, *sums.shape[1:]]
            for n in range(SHORTEST, self.longest + 1):
                row: list[Cell] = [arm, n]
                for tokens, *found_tokens in draws[:, :, :, n].transpose(1, 2, 0):
                    row.append(int(tokens[0]))
                    for part in found_tokens:
                        row += interval(part / tokens) if tokens[0] else [None] * 3
                table.rows.append(row)
        return report_of(self, table, self._draw(found) if found else None)

    def _draw(self, found: Mapping[str, PhraseCounts]) -> Figure:
        title = "Shares of drafted and of output tokens that were drafted before"
        figure, rows = new_figure(9.5, 0.8 + 3.1 * len(found), title, len(found), 2, sharey="row")
        lengths = np.arange(SHORTEST, self.longest + 1)
        for (bars, curves), (arm, counted) in zip(rows, found.items(), strict=True):
            points = np.array([step for step, _ in counted.counts]) // STEPS_A_POINT
            # [steps, AFTER, tokens found unread, length]
            counts = np.stack([counts for _, counts in counted.counts])
            for number, (after, color) in enumerate(zip(AFTER, (ORANGE, BLUE), strict=True)):
                tokens, covered, unread = counts[:, number].sum(axis=0)[:, SHORTEST:]
                places, scale = lengths + 0.4 * (number - 0.5), 100 / max(int(tokens[0]), 1)
                whole = bars.bar(places, scale * covered, 0.38, color=color, alpha=0.4, label=after)
                name = f"{after}, also in the text so far"
                bars.bar(places, scale * (covered - unread), 0.38, color=color, label=name)
                bars.bar_label(whole, fmt="%.0f", fontsize=7)
                every, again = (np.bincount(points, counts[:, number, what, self.over_steps]) for what in (0, 1))
                known = np.flatnonzero(every >= FEWEST)
                middles, shares = (known + 0.5) * STEPS_A_POINT, 100 * again[known] / every[known]
                curves.plot(middles, shares, color=color, marker="o", ms=4)
            label(bars, y="% of the tokens", title=arm, low=0, high=100, grid="y")
            label(curves, title=f"phrases of {self.over_steps} or more tokens", grid="y")
        label(rows[-1][0], "tokens of a phrase, at least")
        label(rows[-1][1], "step of the prompt")
        legend_below(figure, 2, *rows[0][0].get_legend_handles_labels())
        return figure
