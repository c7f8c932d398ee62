"""How much of what is drafted becomes output (Post-use & Pre-cut, table 4)."""

# No `from __future__ import annotations` here: jsonargparse then drops the bounds of the signature.

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from specexp.bench.analysis import Analysis, drafting
from specexp.bench.publish import Report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from specexp.bench.record import PromptRecord
    from specexp.bench.table import Cell, Table
    from specexp.core.outcome import Outcome
    from specexp.core.parts import Parts

Positive = Annotated[float, Field(gt=0)]
_Part = tuple[str, str, float, str | None]
"""Of a bar: what it is, its colour, its width, and the colour of its edge if it is hollow."""
_PALE = "#ecd3bd"


@dataclass(frozen=True)
class PublishedUtilisation:
    """A row of a paper's table, not run here.

    Attributes:
        method: what was measured, and on what.
        accepted: accepted drafts a step, without the bonus token.
        utilisation: accepted over drafted, a share.
    """

    method: str
    accepted: Positive | None = None
    utilisation: Annotated[float, Field(ge=0, le=1)] | None = None


@dataclass
class _Counts:
    """Sums over the steps of an arm.

    Attributes:
        steps: target passes.
        tokens: output.
        drafted: nodes the drafter gave.
        accepted: of them.
        grafted: nodes of phrases hung onto drafted trees.
        grafted_accepted: of them.
        passes: of a draft model.
        saved: layers of the drafted trees beyond the passes they took.
    """

    steps: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    grafted: int = 0
    grafted_accepted: int = 0
    passes: int = 0
    saved: int = 0


class Utilisation(Analysis):
    """Accepted drafts a step, and utilisation in both of the paper's senses, named apart: accepted over drafted nodes
    (its table 4), and output tokens over draft passes (its section 3.1.1).

    Nodes of phrases grafted onto a tree cost no draft pass, so the first is also told of each kind of node alone. What
    phrases that ride in a draft pass saved are the layers of a drafted tree beyond the passes it took.

    Args:
        published: rows of a paper's table to show beside it.
    """

    name: ClassVar[str] = "utilisation"

    def __init__(self, published: list[PublishedUtilisation] | None = None) -> None:
        self.published = published or []
        self._counts: dict[str, _Counts] = {}

    def begin(self, arms: "Mapping[str, Parts]") -> None:
        """Count from zero."""
        self._counts = {arm: _Counts() for arm in drafting(arms)}

    def observe(self, arm: str, outcome: "Outcome") -> None:
        """Count what was drafted, grafted and accepted."""
        if arm not in self._counts:
            return
        counts, tree = self._counts[arm], outcome.tree
        accepted, nodes, depths = len(outcome.accepted), tree.num_nodes, tree.shape.depths
        grafts = grafts_accepted = 0
        if tree.grafted is not None:
            grafts = int(tree.grafted.sum())
            grafts_accepted = int(tree.grafted[list(outcome.accepted)].sum())
            depths = depths[~tree.grafted]
        counts.steps += 1
        counts.tokens += len(outcome.new_token_ids)
        counts.drafted += nodes - grafts
        counts.accepted += accepted - grafts_accepted
        counts.grafted += grafts
        counts.grafted_accepted += grafts_accepted
        counts.passes += outcome.draft_passes
        if outcome.draft_passes:
            counts.saved += max(0, int(depths.max()) - outcome.draft_passes)

    def report(self, records: "Sequence[PromptRecord]") -> Report:
        """A table, and a picture if anything was drafted."""
        table = self._table()
        shown = {arm: counts for arm, counts in self._counts.items() if counts.drafted + counts.grafted}
        return Report({self.name: table}, {self.name: self._draw(shown)} if shown else {})

    def _table(self) -> "Table":
        from specexp.bench.table import Column, Table

        table = Table(
            "What becomes of drafted tokens",
            [
                Column("arm"),
                Column("accepted/step"),
                Column("with bonus"),
                Column("nodes/step", 1),
                Column("accepted / drafted", 1, "%"),
                Column("of the drafter's", 1, "%"),
                Column("of grafted phrases'", 1, "%"),
                Column("draft passes/step", 1),
                Column("tokens / draft pass"),
                Column("passes saved/step"),
            ],
            notes=[
                "Accepted / drafted is the utilisation of the paper's table 4: of all nodes fed to the target, of "
                "those the drafter gave, of those of grafted phrases; tokens / draft pass is that of section 3.1.1.",
                "Passes saved: layers of the drafted tree beyond the draft passes it took; phrases rode in a pass.",
            ],
        )
        for arm, counts in self._counts.items():
            table.rows.append([arm, *_cells(counts)])
        for row in self.published:
            cells: list[Cell] = [f"{row.method} (not run here)", row.accepted]
            cells += [row.accepted + 1 if row.accepted else None, None, row.utilisation, *[None] * 5]
            table.rows.append(cells)
        if self.published:
            table.notes.append(
                "Not run here: figures as published by the paper, on its models and device; its mean accepted length "
                "leaves the bonus token out, which is added here under the other heading."
            )
        return table

    def _draw(self, shown: "Mapping[str, _Counts]") -> "Figure":
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        from specexp.bench.pictures import BLUE, GREY, INK, ORANGE

        published = [row for row in self.published if row.accepted and row.utilisation]
        bars: list[tuple[str, list[_Part], float]] = []
        for arm, counts in shown.items():
            parts = {
                ("drafted, accepted", BLUE): counts.accepted,
                ("phrases, accepted", ORANGE): counts.grafted_accepted,
                ("drafted, rejected", GREY): counts.drafted - counts.accepted,
                ("phrases, rejected", _PALE): counts.grafted - counts.grafted_accepted,
            }
            bar: list[_Part] = [(*look, count / counts.steps, None) for look, count in parts.items()]
            share = (counts.accepted + counts.grafted_accepted) / (counts.drafted + counts.grafted)
            bars.append((arm, bar, share))
        for row in published:
            assert row.accepted is not None
            assert row.utilisation is not None
            rejected = row.accepted / row.utilisation - row.accepted
            bar = [("", "none", row.accepted, BLUE), ("", "none", rejected, GREY)]
            bars.append((f"{row.method} (not run here)", bar, row.utilisation))
        figure = Figure(figsize=(8.5, 1.7 + 0.42 * len(bars)), dpi=130, layout="constrained")
        FigureCanvasAgg(figure)
        figure.suptitle("What becomes of the tokens drafted in a step", fontsize=11, color=INK)
        axes = figure.subplots()
        named: set[str] = set()
        for place, (_, bar, share) in enumerate(bars):
            start = 0.0
            for label, colour, width, edge in bar:
                if width:
                    new = label if label and label not in named else None
                    drawn = axes.barh(place, width, left=start, color=colour, height=0.66, label=new)
                    if edge:
                        drawn[0].set(edgecolor=edge, linestyle="--")
                    named.add(label)
                start += width
            axes.text(start, place, f"  {100 * share:.0f} % accepted", va="center", fontsize=8, color=INK)
        axes.set_yticks(range(len(bars)), [label for label, *_ in bars], fontsize=8)
        axes.set_ylim(len(bars) - 0.5, -0.5)
        axes.margins(x=0.18)
        axes.set_xlabel("tokens drafted in a step", fontsize=9)
        axes.tick_params(labelsize=8, colors=INK)
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside lower center", ncols=4, fontsize=8, frameon=False)
        return figure


def _cells(counts: _Counts) -> "list[Cell]":
    def over(part: float, whole: float) -> float | None:
        return part / whole if whole else None

    accepted = counts.accepted + counts.grafted_accepted
    nodes = counts.drafted + counts.grafted
    return [
        over(accepted, counts.steps),
        over(counts.tokens, counts.steps),
        over(nodes, counts.steps),
        over(accepted, nodes),
        over(counts.accepted, counts.drafted),
        over(counts.grafted_accepted, counts.grafted),
        over(counts.passes, counts.steps),
        over(counts.tokens, counts.passes),
        over(counts.saved, counts.steps) if counts.passes else None,
    ]
