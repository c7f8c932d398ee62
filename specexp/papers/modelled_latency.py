"""What the passes of a run would cost with other models: DySpec's offloaded target (Xiong et al. 2024, table 3)."""

# No `from __future__ import annotations` here: jsonargparse then drops the bounds of the signature.

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from specexp.bench.analysis import Analysis
from specexp.bench.publish import Report
from specexp.core.latency import LatencyProfile

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from specexp.bench.record import PromptRecord
    from specexp.bench.statistics import Speedup
    from specexp.core.outcome import Outcome
    from specexp.core.parts import Drafter, Parts

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
    """Seconds per token as a latency profile has them, from the tokens fed in every pass of the run, beside whatever
    clock the run itself has.

    The passes and tokens are counted in this run, with its own models: the profile's are not run, and everything shown
    is called modelled. Hugging Face's own loops cannot be watched: their passes are known where they draft nothing, or
    the profile has one figure for any number of tokens.

    Args:
        profile: milliseconds of the passes.
        published: rows of a paper's table to show beside it.
    """

    name: ClassVar[str] = "modelled_latency"

    def __init__(
        self,
        profile: LatencyProfile,
        published: list[PublishedLatency] | None = None,
    ) -> None:
        self.profile = profile
        self.published = published or []
        self._label = f"modelled: {_passes(profile)}"
        self._of: dict[str, LatencyProfile] = {}
        self._watched: dict[tuple[str, int | str], float] = defaultdict(float)

    def begin(self, arms: "Mapping[str, Parts]") -> None:
        """Forget the seconds of the last run.

        Raises:
            ValueError: an arm drafts with a model and the profile states no milliseconds for one.
        """
        self._watched.clear()
        self._of = {arm: self.profile.of(parts.label) for arm, parts in arms.items()}
        if not self.profile.draft_ms:
            for arm, strategy in arms.items():
                if _runs_a_model(strategy.drafter):
                    raise ValueError(
                        f"ModelledLatency's profile {self.profile.name!r} states no draft_ms, but {arm!r} runs a "
                        "draft model"
                    )

    def observe(self, arm: str, outcome: "Outcome") -> None:
        """Add the step's seconds to its sequence's."""
        self._watched[arm, outcome.context.sequence] += self._of[arm].outcome_seconds(outcome)

    def report(self, records: "Sequence[PromptRecord]") -> Report:
        """A table, and a picture if anything was decoded."""
        from specexp.bench.statistics import arm_names, summarise
        from specexp.bench.table import Cell, Column, Table

        table = Table(
            f"Modelled latency: {self.profile.name} ({self.profile.source}), {_passes(self.profile)}",
            [
                Column("arm"),
                Column("tokens/step"),
                Column("draft passes/step", 1),
                Column("modelled s/token", 3),
                Column(f"modelled vs {PLAIN}", interval=True),
            ],
            notes=[
                "Modelled: the profile's milliseconds for the tokens of every pass, counted in this run with its own "
                f"models. {PLAIN.capitalize()} takes a target pass a token; geometric mean over prompts, 95 % "
                "bootstrap interval."
            ],
        )
        speedups = {name: self._speedup(records, name) for name in arm_names(records)}
        for name, speedup in speedups.items():
            summary = summarise(records, name)
            row: list[Cell] = [name, None, None, None, speedup]
            if summary.tokens_per_step:
                row[1:4] = [
                    summary.tokens_per_step,
                    summary.draft_passes_per_step,
                    self._seconds_per_token(records, name),
                ]
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

    def _seconds(self, record: "PromptRecord") -> float | None:
        """Of one prompt; None where its passes are not known."""
        from specexp.bench.arm import sequence_name

        watched = self._watched.get((record.arm, sequence_name(record, record.sample)))
        if watched is not None:
            return watched
        plain = not record.draft_passes and not record.drafted_nodes
        if plain:
            return self.profile.plain_seconds(record.prompt_tokens, round(record.steps))
        profile = self._of.get(record.arm, self.profile)
        constant = max(len(profile.target_ms), len(profile.draft_ms)) == 1
        if not constant or (record.draft_passes and not profile.draft_ms):
            return None
        prefix = record.prompt_tokens + record.new_tokens // 2
        drafting = record.draft_passes * profile.draft_seconds(1, prefix) if record.draft_passes else 0.0
        beside = profile.step_ms * record.steps + profile.node_ms * record.drafted_nodes
        beside += profile.token_ms * record.new_tokens
        return record.steps * profile.target_seconds(1, prefix) + drafting + beside / 1e3

    def _seconds_per_token(self, records: "Sequence[PromptRecord]", arm: str) -> float | None:
        own = [record for record in records if record.arm == arm and not record.error]
        seconds = [self._seconds(record) for record in own]
        tokens = sum(record.new_tokens for record in own)
        if not tokens or None in seconds:
            return None
        return sum(taken for taken in seconds if taken is not None) / tokens

    def _speedup(self, records: "Sequence[PromptRecord]", arm: str) -> "Speedup":
        """Over plain decoding, prompt by prompt."""
        import numpy as np

        from specexp.bench.statistics import Speedup, bootstrap_interval

        nan = float("nan")
        ratios: dict[str, list[float]] = defaultdict(list)
        for record in records:
            if record.arm == arm and not record.error and record.new_tokens:
                seconds = self._seconds(record)
                if seconds is None:
                    reason = f"nobody watched how many tokens {arm} fed in its passes"
                    return Speedup(arm, PLAIN, nan, nan, nan, nan, 0, reason)
                plain = self.profile.plain_seconds(record.prompt_tokens, record.new_tokens)
                ratios[record.prompt_id].append(float(np.log(plain / seconds)))
        if not ratios:
            return Speedup(arm, PLAIN, nan, nan, nan, nan, 0, f"no prompt was answered by {arm}")
        logs = np.array([np.mean(values) for values in ratios.values()])
        mean = float(logs.mean())
        ratio, low, high = (float(np.exp(value)) for value in (mean, *bootstrap_interval(logs)))
        return Speedup(arm, PLAIN, mean, ratio, low, high, logs.size, clock=self._label)

    def _draw(self, speedups: "Mapping[str, Speedup]") -> "Figure":
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        from specexp.bench.pictures import BLUE, GREY, INK

        published = {row.method: row.speedup for row in self.published if row.speedup is not None}
        figure = Figure(
            figsize=(7.5, 1.3 + 0.36 * (len(speedups) + len(published))), dpi=130, layout="constrained"
        )
        FigureCanvasAgg(figure)
        figure.suptitle(
            f"Modelled: {self.profile.name} ({self.profile.source}), {_passes(self.profile)}",
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


def _passes(profile: LatencyProfile) -> str:
    """The milliseconds in short, for a title."""
    draft = f", a draft pass of {_range(profile.draft_ms)}" if profile.draft_ms else ""
    return f"a target pass of {_range(profile.target_ms)}{draft}"


def _range(milliseconds: "Mapping[int, float]") -> str:
    first, last = milliseconds[1], max(milliseconds)
    seconds = [f"{ms / 1e3:g} s" if first >= 1e3 else f"{ms:g} ms" for ms in (first, milliseconds[last])]
    return seconds[0] if last == 1 else f"{seconds[0]} (1 token) to {seconds[1]} ({last} tokens)"


def _runs_a_model(drafter: "Drafter | None") -> bool:
    """What gives probabilities has them from a model, on its own or among several drafters."""
    inner: Sequence[Drafter] = getattr(drafter, "drafters", ())
    return drafter is not None and (drafter.gives_log_probs or any(map(_runs_a_model, inner)))
