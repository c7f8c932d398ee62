"""The cost of a step: DySpec's cost models, and passes at other models' latencies (Xiong et al. 2024, section 4.3,
figure 4 and table 3).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from typing_extensions import override

from experiments.papers.shared import DraftingAnalysis, Row, add_rows, check_rows, label, report_of, table_of
from specexp.bench import clock
from specexp.bench.analysis import Analysis
from specexp.bench.arm import sequence_name
from specexp.bench.figures import bars_of
from specexp.bench.phases import Breakdown, breakdown
from specexp.bench.pictures import INK, PHASE_COLOURS, legend_below, new_figure
from specexp.bench.publish import Report
from specexp.bench.record import MEASURED, PromptRecord
from specexp.bench.statistics import Speedup, arm_names, mean_by_prompt, summarise
from specexp.bench.table import Cell
from specexp.core.drafter import Drafter
from specexp.core.latency import LatencyProfile
from specexp.core.outcome import Outcome
from specexp.core.parts import Parts

PLAIN = "plain decoding"
SPEEDUP = f"modelled vs {PLAIN}"
PUBLISHED = {"tokens_per_step": "tokens/step", "seconds_per_token": "modelled s/token", "speedup": SPEEDUP}


class StepCost(NamedTuple):
    """A step of an arm: its breakdown, mean tokens, nodes N and depth D, and seconds T_d of a draft pass (None without
    draft passes) and T_t of a target pass.
    """

    measured: Breakdown
    tokens: float
    nodes: float
    depth: float
    draft: float | None
    target: float

    def predicted(self, passes: float) -> float | None:
        """Seconds of a step with this many draft passes."""
        return None if self.draft is None else passes * self.draft + self.target

    def stacks(self) -> list[tuple[str, dict[str, float]]]:
        """Seconds by phase, as clocked and as predicted, each with its name."""
        clocked = {phase: share * self.measured.step_seconds for phase, share in self.measured.shares.items()}
        found = [(MEASURED if self.measured.clock == MEASURED else "modelled", clocked)]
        if self.draft is not None:
            for name, passes in (("D T_d + T_t", self.depth), ("N T_d + T_t", self.nodes)):
                found.append((name, {"draft": passes * self.draft, "target": self.target}))
        return found


class CostModel(DraftingAnalysis[list[int]]):
    """Measured steps next to ``N * T_d + T_t`` (a draft pass for every node) and ``D * T_d + T_t`` (one for every
    layer), with the run's own means of a draft pass and a target pass.
    """

    name: ClassVar[str] = "cost_model"

    def __init__(self) -> None:
        super().__init__(lambda parts: [])

    @override
    def watch(self, arm: str, state: list[int], outcome: Outcome) -> None:
        state.append(outcome.tree.shape.max_depth)

    @override
    def report(self, records: Sequence[PromptRecord]) -> Report:
        costs = [cost for arm in self.states if (cost := self._cost(records, arm)) is not None]
        clocks = dict.fromkeys(cost.measured.clock for cost in costs) or [MEASURED]
        table = table_of(
            f"A step as {' or '.join(clocks)}, and as the cost models have it",
            "arm | tokens/step | nodes N:.1 | depth D:.1 | passes:.1 | T_d:.2 ms | T_t:.2 ms | step:.2 ms"
            " | N*T_d+T_t:.2 ms | D*T_d+T_t:.2 ms | per token:.2 ms | by N:.2 ms | by D:.2 ms",
            "T_d: draft time over draft passes, candidates included; T_t: a target pass. Both of this run.",
            "N*T_d+T_t: a draft pass for every node; D*T_d+T_t: one for every layer; by N, by D: over tokens a step.",
        )
        for cost in costs:
            steps = (cost.measured.step_seconds, cost.predicted(cost.nodes), cost.predicted(cost.depth))
            milliseconds = [None if one is None else 1000 * one for one in (cost.draft, cost.target, *steps)]
            milliseconds += [None if step is None else 1000 * step / cost.tokens for step in steps]
            facts = [cost.tokens, cost.nodes, cost.depth, cost.measured.draft_passes]
            table.rows.append([cost.measured.arm, *facts, *milliseconds])
        return report_of(self, table, _draw_costs(costs, table.title) if costs else None)

    def _cost(self, records: Sequence[PromptRecord], arm: str) -> StepCost | None:
        measured, depths = breakdown(records, arm), self.states[arm]
        if measured is None or not depths:
            return None
        own = [record for record in records if record.arm == arm and not record.error and record.seconds]
        draft = measured.shares.get("draft", 0.0) * measured.step_seconds
        return StepCost(
            measured,
            sum(len(record.token_ids) for record in own) / measured.steps,
            sum(record.drafted_nodes for record in own) / measured.steps,
            sum(depths) / len(depths),
            draft / measured.draft_passes if measured.draft_passes else None,
            measured.shares.get("target", 0.0) * measured.step_seconds,
        )


def _draw_costs(costs: Sequence[StepCost], title: str) -> Figure:
    figure, [[axes]] = new_figure(8.5, 1.6 + 0.95 * len(costs), title)
    longest = max(cost.measured.step_seconds for cost in costs)
    limit = 1.45e3 * max([longest, *(cost.predicted(cost.depth) or 0.0 for cost in costs)])
    named: set[str] = set()
    ticks: dict[int, str] = {}
    for number, cost in enumerate(costs):
        for place, (name, seconds) in enumerate(cost.stacks()):
            y, start = 4 * number + place, 0.0
            ticks[y] = name if place else f"{cost.measured.arm}: {name}"
            for phase in (phase for phase in PHASE_COLOURS if phase in seconds):
                new = None if phase in named else phase
                width, pale = 1000 * seconds[phase], 0.5 if place else 1.0
                axes.barh(y, width, 0.8, start, color=PHASE_COLOURS[phase], alpha=pale, label=new)
                named.add(phase)
                start += width
            text, beyond = f"{start:.2f} ms, {start / cost.tokens:.2f} a token", start > limit
            text, side = (f"{text}, beyond the axis", "right") if beyond else (f" {text}", "left")
            axes.text(min(start, limit), y, text, fontsize=7, color=INK, va="center", ha=side)
    axes.set_yticks(list(ticks), list(ticks.values()), fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, limit)
    solid = clock.adjective(costs[0].measured.clock).strip() or MEASURED
    label(axes, f"ms a step (solid: {solid}; pale: predicted from this run's draft pass and target pass)")
    legend_below(figure, len(named))
    return figure


class ModelledLatency(Analysis):
    """Seconds per token with the milliseconds of a latency profile for the tokens fed in every pass of the run.

    The passes are counted in this run with its own models, so all results are called modelled. Hugging Face's own loops
    cannot be watched: their passes are known where they draft nothing, or the profile has one figure for any number of
    tokens.

    Args:
        profile: Milliseconds of the passes.
        published: Rows of a paper's table: ``method``, and any of ``tokens_per_step``, ``seconds_per_token`` and
            ``speedup`` (over plain decoding).
    """

    name: ClassVar[str] = "modelled_latency"

    def __init__(self, profile: LatencyProfile, published: list[Row] | None = None) -> None:
        self.profile = profile
        self.published = check_rows(published, PUBLISHED)
        self._of: dict[str, LatencyProfile] = {}
        self._watched: dict[tuple[str, int | str], float] = defaultdict(float)

    @override
    def begin(self, arms: Mapping[str, Parts]) -> None:
        self._watched.clear()
        self._of = {arm: self.profile.of(parts.label) for arm, parts in arms.items()}
        for arm, parts in arms.items():
            if not self.profile.draft_ms and _runs_a_model(parts.drafter):
                named = f"ModelledLatency's profile {self.profile.name!r}"
                raise ValueError(f"{named} states no draft_ms, but {arm!r} runs a draft model")

    @override
    def observe(self, arm: str, outcome: Outcome) -> None:
        self._watched[arm, outcome.context.sequence] += self._of[arm].outcome_seconds(outcome)

    @override
    def report(self, records: Sequence[PromptRecord]) -> Report:
        title = f"{self.profile.name} ({self.profile.source}), {_passes(self.profile)}"
        table = table_of(
            f"Modelled latency: {title}",
            f"arm | tokens/step | draft passes/step:.1 | modelled s/token:.3 | {SPEEDUP}:interval",
            "Modelled: the profile's milliseconds for the tokens of every pass, counted in this run with its own "
            f"models. {PLAIN.capitalize()} takes a target pass a token; geometric mean over prompts, 95 % "
            "bootstrap interval.",
        )
        speedups = {arm: self._speedup(records, arm) for arm in arm_names(records)}
        for arm, speedup in speedups.items():
            summary = summarise(records, arm)
            cells: list[Cell] = [None, None, None]
            if summary.tokens_per_step:
                pace = self._seconds_per_token(records, arm)
                cells = [summary.tokens_per_step, summary.draft_passes_per_step, pace]
            table.rows.append([arm, *cells, speedup])
        add_rows(table, self.published, PUBLISHED)
        shown = [speedup for speedup in speedups.values() if speedup.refused is None]
        if not shown:
            return report_of(self, table)
        theirs = {row["method"]: row["speedup"] for row in self.published if "speedup" in row}
        axis = f"modelled speedup over {PLAIN} (95 % interval)"
        bars = bars_of(shown, [" modelled"] * len(shown), f"Modelled: {title}", axis, theirs)
        return report_of(self, table, bars)

    def _seconds(self, record: PromptRecord) -> float | None:
        """Seconds of a prompt; None where its passes are not known."""
        watched = self._watched.get((record.arm, sequence_name(record, record.sample)))
        if watched is not None:
            return watched
        if not record.draft_passes and not record.drafted_nodes:
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

    def _seconds_per_token(self, records: Sequence[PromptRecord], arm: str) -> float | None:
        own = [record for record in records if record.arm == arm and not record.error]
        seconds = [taken for record in own if (taken := self._seconds(record)) is not None]
        tokens = sum(record.new_tokens for record in own)
        return sum(seconds) / tokens if tokens and len(seconds) == len(own) else None

    def _speedup(self, records: Sequence[PromptRecord], arm: str) -> Speedup:
        """Over plain decoding, prompt by prompt."""
        ratios: list[tuple[str, float]] = []
        for record in records:
            if record.arm == arm and not record.error and record.new_tokens:
                seconds = self._seconds(record)
                if seconds is None:
                    reason = f"nobody watched how many tokens {arm} fed in its passes"
                    return Speedup.refuse(arm, PLAIN, reason)
                plain = self.profile.plain_seconds(record.prompt_tokens, record.new_tokens)
                ratios.append((record.prompt_id, float(np.log(plain / seconds))))
        if not ratios:
            return Speedup.refuse(arm, PLAIN, f"no prompt was answered by {arm}")
        return Speedup.of(arm, PLAIN, mean_by_prompt(ratios), f"modelled: {_passes(self.profile)}")


def _passes(profile: LatencyProfile) -> str:
    """The milliseconds in short, for a title."""
    draft = f", a draft pass of {_range(profile.draft_ms)}" if profile.draft_ms else ""
    return f"a target pass of {_range(profile.target_ms)}{draft}"


def _range(milliseconds: Mapping[int, float]) -> str:
    first, last = milliseconds[1], max(milliseconds)
    seconds = [f"{ms / 1e3:g} s" if first >= 1e3 else f"{ms:g} ms" for ms in (first, milliseconds[last])]
    return seconds[0] if last == 1 else f"{seconds[0]} (1 token) to {seconds[1]} ({last} tokens)"


def _runs_a_model(drafter: Drafter | None) -> bool:
    return drafter is not None and (drafter.runs_model or any(map(_runs_a_model, drafter.inner)))
