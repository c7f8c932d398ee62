"""What the passes of a run would cost with other models: DySpec's offloaded target (Xiong et al. 2024, table 3)."""

# No `from __future__ import annotations` here: jsonargparse then drops the bounds of the signature.

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from specexp.analyses._base import Analysis, Report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from specexp.evaluation.record import PromptRecord
    from specexp.evaluation.statistics import Speedup
    from specexp.outcome import Outcome
    from specexp.sequence import Strategy

PLAIN = "plain decoding"
Positive = Annotated[float, Field(gt=0)]


@dataclass(frozen=True)
class PublishedLatency:
    """A row of a paper's table, not run here.

    Attributes:
        method: what was measured, and on what.
        tokens_per_step: as published.
        seconds_per_token: as published.
        speedup: over plain decoding, as published or their ratio.
    """

    method: str
    tokens_per_step: Positive | None = None
    seconds_per_token: Positive | None = None
    speedup: Positive | None = None


class ModelledLatency(Analysis):
    """Seconds per token as they would be with a target pass of ``target_seconds`` and a draft pass of
    ``draft_seconds``, whatever they are fed: ``(steps * target_seconds + draft passes * draft_seconds) / tokens``.

    The passes and tokens are counted in this run, with its own models: no such target is run, and everything shown is
    called modelled. Right where a pass mostly moves weights, as an offloaded target's does.

    Args:
        target_seconds: of a target pass.
        draft_seconds: of a draft pass.
        published: rows of a paper's table to show beside it.
    """

    name: ClassVar[str] = "modelled_latency"

    def __init__(
        self,
        target_seconds: Positive,
        draft_seconds: Annotated[float, Field(ge=0)],
        published: list[PublishedLatency] | None = None,
    ) -> None:
        self.target_seconds = target_seconds
        self.draft_seconds = draft_seconds
        self.published = published or []

    def begin(self, arms: "Mapping[str, Strategy]") -> None:
        """Nothing to forget: the records hold all counts."""

    def observe(self, arm: str, outcome: "Outcome") -> None:
        """Nothing to see that the records do not hold."""

    def report(self, records: "Sequence[PromptRecord]") -> Report:
        """A table, and a picture if anything was decoded."""
        from specexp.evaluation.statistics import arm_names, summarise
        from specexp.evaluation.table import Cell, Column, Table

        table = Table(
            f"Modelled latency: a target pass of {self.target_seconds:g} s, a draft pass of {self.draft_seconds:g} s",
            [
                Column("arm"),
                Column("tokens/step"),
                Column("draft passes/step", 1),
                Column("modelled s/token", 3),
                Column(f"modelled vs {PLAIN}", interval=True),
            ],
            notes=[
                "Modelled: (steps * target pass + draft passes * draft pass) / tokens, counted in this run with its "
                f"own models. {PLAIN.capitalize()} takes a target pass a token; geometric mean over prompts, 95 % "
                "bootstrap interval."
            ],
        )
        speedups = {name: self._speedup(records, name) for name in arm_names(records)}
        for name, speedup in speedups.items():
            summary = summarise(records, name)
            row: list[Cell] = [name, None, None, None, speedup]
            if summary.tokens_per_step:
                seconds = self._step_seconds(summary.draft_passes_per_step) / summary.tokens_per_step
                row[1:4] = [summary.tokens_per_step, summary.draft_passes_per_step, seconds]
            table.rows.append(row)
        for item in self.published:
            told = None if item.speedup is None else f"{item.speedup:.2f}x published"
            label = f"{item.method} (not run here)"
            table.rows.append([label, item.tokens_per_step, None, item.seconds_per_token, told])
        if self.published:
            table.notes.append(
                "Not run here: measured figures as published by the paper, on its models and device."
            )
        shown = {name: speedup for name, speedup in speedups.items() if speedup.refused is None}
        return Report({self.name: table}, {self.name: self._draw(shown)} if shown else {})

    def _step_seconds(self, draft_passes: float) -> float:
        return self.target_seconds + draft_passes * self.draft_seconds

    def _speedup(self, records: "Sequence[PromptRecord]", arm: str) -> "Speedup":
        """Over plain decoding, prompt by prompt."""
        import numpy as np

        from specexp.evaluation.statistics import Speedup, bootstrap_interval

        ratios: dict[str, list[float]] = defaultdict(list)
        for record in records:
            if record.arm == arm and not record.error and record.new_tokens:
                seconds = record.steps * self.target_seconds + record.draft_passes * self.draft_seconds
                ratios[record.prompt_id].append(
                    float(np.log(self.target_seconds * record.new_tokens / seconds))
                )
        if not ratios:
            nan = float("nan")
            return Speedup(arm, PLAIN, nan, nan, nan, nan, 0, f"no prompt was answered by {arm}")
        logs = np.array([np.mean(values) for values in ratios.values()])
        mean = float(logs.mean())
        ratio, low, high = (float(np.exp(value)) for value in (mean, *bootstrap_interval(logs)))
        return Speedup(arm, PLAIN, mean, ratio, low, high, logs.size)

    def _draw(self, speedups: "Mapping[str, Speedup]") -> "Figure":
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        from specexp.evaluation.figures import BLUE, GREY, INK

        published = {row.method: row.speedup for row in self.published if row.speedup is not None}
        figure = Figure(
            figsize=(7.5, 1.3 + 0.36 * (len(speedups) + len(published))), dpi=130, layout="constrained"
        )
        FigureCanvasAgg(figure)
        figure.suptitle(
            f"Modelled: a target pass of {self.target_seconds:g} s, a draft pass of {self.draft_seconds:g} s",
            fontsize=11,
            color=INK,
        )
        axes = figure.subplots()
        for place, speedup in enumerate(speedups.values()):
            errors = [[speedup.ratio - speedup.low], [speedup.high - speedup.ratio]]
            axes.barh(place, speedup.ratio, color=BLUE, height=0.62)
            axes.errorbar(speedup.ratio, place, xerr=errors, color=INK, capsize=3, lw=1.2)
            axes.text(
                speedup.high, place, f"  {speedup.ratio:.2f}x modelled", va="center", fontsize=8, color=INK
            )
        for place, ratio in enumerate(published.values(), start=len(speedups)):
            axes.barh(place, ratio, fill=False, edgecolor=GREY, ls="--", height=0.62)
            axes.text(ratio, place, f"  {ratio:.2f}x published", va="center", fontsize=8, color=INK)
        labels = [*speedups, *(f"{name} (not run here)" for name in published)]
        axes.set_yticks(range(len(labels)), labels, fontsize=8)
        axes.axvline(1, color=INK, lw=0.8, ls=":")
        axes.invert_yaxis()
        axes.margins(x=0.3)
        axes.set_xlim(left=0)
        axes.set_xlabel(f"modelled speedup over {PLAIN} (95 % interval)", fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
        return figure
