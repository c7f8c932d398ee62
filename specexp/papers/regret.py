"""How far controllers stay behind the hindsight optimum, and behind each other, prompt by prompt."""

# No `from __future__ import annotations` here: jsonargparse then drops the bounds of the signature.

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from specexp.bench.analysis import Analysis, drafting
from specexp.bench.publish import Report
from specexp.controllers import Oracle

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from specexp.bench.record import PromptRecord
    from specexp.bench.statistics import Speedup
    from specexp.bench.table import Cell, Table
    from specexp.core.outcome import Outcome
    from specexp.core.parts import Parts


class Regret(Analysis):
    """Regret of an arm on a prompt: log(its seconds per token / those of the oracle's arm). Told is the geometric mean
    of the ratio over prompts, with a paired bootstrap interval; so 1.10x is a tenth more time than the optimum.

    Two arms' regrets differ by log(seconds per token of one / of the other), whoever the oracle is: the second table
    holds these paired ratios, with intervals.

    Args:
        against: arm the regret is told against; the one with an :class:`~specexp.controllers.Oracle` if None, and
            without one the fastest.
        compare: arms told against each other in pairs; all if None.
    """

    name: ClassVar[str] = "regret"

    def __init__(self, against: str | None = None, compare: list[str] | None = None) -> None:
        self.against = against
        self.compare = compare
        self._arms: list[str] = []
        self._oracle: str | None = None

    def begin(self, arms: "Mapping[str, Parts]") -> None:
        """Look which arm has the oracle.

        Raises:
            ValueError: ``against`` or ``compare`` names no arm.
        """
        for given, names in (
            ("against", [self.against] if self.against else []),
            ("compare", self.compare or []),
        ):
            for name in names:
                if name not in arms:
                    raise ValueError(f"Regret was given {given} {name!r}, but the arms are {list(arms)}")
        self._arms = list(arms)
        oracles = [
            name for name, strategy in drafting(arms).items() if isinstance(strategy.controller, Oracle)
        ]
        self._oracle = self.against or (oracles[0] if oracles else None)

    def observe(self, arm: str, outcome: "Outcome") -> None:
        """Nothing to see that the records do not hold."""

    def report(self, records: "Sequence[PromptRecord]") -> Report:
        """Regrets with a picture, and the pairs."""
        from specexp.bench.statistics import paired_speedup, summarise

        against, kind = self._oracle, "the oracle"
        if against is None:
            pace = {arm: summarise(records, arm).seconds_per_token for arm in self._arms}
            known = {arm: seconds for arm, seconds in pace.items() if seconds}
            against, kind = min(known, key=known.__getitem__, default=None), "the fastest arm"
        elif self.against is not None:
            kind = against
        regrets = {
            arm: paired_speedup(records, against, arm) for arm in self._arms if against not in (None, arm)
        }
        clock = "measured" if against is None else summarise(records, against).clock
        tables = {self.name: self._table(records, regrets, against, kind, clock)}
        compared = [arm for arm in self.compare or self._arms if arm != self._oracle]
        if len(compared) > 1 and records:
            tables[f"{self.name}_pairs"] = _pairs(records, compared, clock)
        given = {arm: regret for arm, regret in regrets.items() if regret.refused is None}
        figures = {self.name: _draw(given, kind, clock)} if given else {}
        return Report(tables, figures)

    def _table(
        self,
        records: "Sequence[PromptRecord]",
        regrets: "Mapping[str, Speedup]",
        against: str | None,
        kind: str,
        used: str,
    ) -> "Table":
        from specexp.bench import clock
        from specexp.bench.statistics import summarise
        from specexp.bench.table import Column, Table

        table = Table(
            clock.title(f"Time per token over that of {kind}", used),
            [
                Column("arm"),
                Column(f"{clock.word(used)}regret", interval=True),
                Column("prompts", 0),
                Column("nodes/step", 1),
                Column("draft passes/step", 1),
                Column("accepted / drafted", 1, "%"),
            ],
            notes=["Geometric mean over prompts, with a paired bootstrap interval; 1.00x is no regret."],
        )
        if self._oracle is None:
            table.notes.append(
                "No arm has an Oracle, so the fastest arm is what the others are told against."
            )
        for arm in self._arms:
            summary, regret = summarise(records, arm), regrets.get(arm)
            row: list[Cell] = [
                f"{arm} ({kind})" if arm == against and kind != arm else arm,
                regret,
                None if regret is None else regret.n,
                summary.nodes_per_step,
                summary.draft_passes_per_step,
                summary.utilisation,
            ]
            table.rows.append(row)
        return table


def _pairs(records: "Sequence[PromptRecord]", arms: Sequence[str], used: str) -> "Table":
    from specexp.bench import clock
    from specexp.bench.statistics import paired_speedup
    from specexp.bench.table import Column, Table

    table = Table(
        clock.title("Time per token of one arm (row) over another's (column)", used),
        [Column("arm"), *(Column(f"{clock.word(used)}over {arm}", interval=True) for arm in arms)],
        notes=[
            "Below 1 the row's arm is faster, so its regret is lower: paired by prompt, 95 % bootstrap interval."
        ],
    )
    for arm in arms:
        row: list[Cell] = [arm]
        row += [None if other == arm else paired_speedup(records, other, arm) for other in arms]
        table.rows.append(row)
    return table


def _draw(regrets: "Mapping[str, Speedup]", kind: str, used: str) -> "Figure":
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from specexp.bench import clock
    from specexp.bench.pictures import BLUE, INK

    ordered = sorted(regrets.items(), key=lambda item: item[1].ratio)
    figure = Figure(figsize=(8.5, 1.5 + 0.36 * len(ordered)), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(
        clock.title(f"Time per token over that of {kind}", used), fontsize=10, color=INK, wrap=True
    )
    axes = figure.subplots()
    for place, (_, regret) in enumerate(ordered):
        error = [[regret.ratio - regret.low], [regret.high - regret.ratio]]
        axes.errorbar(regret.ratio, place, xerr=error, color=BLUE, marker="o", ms=5, capsize=3)
        axes.text(regret.high, place, f"  {regret.ratio:.3f}", va="center", fontsize=8, color=INK)
    axes.axvline(1, color=INK, lw=0.8, ls=":")
    axes.set_yticks(range(len(ordered)), [arm for arm, _ in ordered], fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.12, y=0.1)
    axes.set_xlabel(f"{clock.word(used)}time per token, {kind} = 1", fontsize=9)
    axes.tick_params(labelsize=8, colors=INK)
    axes.grid(axis="x", color="#e3e8ec", lw=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure
