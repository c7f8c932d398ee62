"""Seconds per token, modelled with the latencies of other models (Xiong et al. 2024, table 3)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from typing_extensions import override

from experiments.papers.shared import Row, add_rows, check_rows, report_of, table_of
from specexp.bench.analysis import Analysis
from specexp.bench.arm import sequence_name
from specexp.bench.pictures import bars_of
from specexp.bench.publish import Report
from specexp.bench.record import PromptRecord
from specexp.bench.statistics import Speedup, arm_names, mean_by_prompt, summarise
from specexp.bench.table import Cell
from specexp.core.contracts import Drafter
from specexp.core.latency import LatencyProfile
from specexp.core.outcome import Outcome
from specexp.core.parts import Parts

PLAIN = "plain decoding"
SPEEDUP = f"modelled vs {PLAIN}"
PUBLISHED = {"tokens_per_step": "tokens/step", "seconds_per_token": "modelled s/token", "speedup": SPEEDUP}


class ModelledLatency(Analysis):
    """Seconds per token, modelled by a latency profile from the number of tokens fed in each pass of the run.

    The passes are those of this run's own models, so all results are called modelled. The passes of Hugging Face's own
    loops cannot be observed, so they are known only for loops without drafts.

    Args:
        profile: The milliseconds of each kind of pass.
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
                raise ValueError(f"{named} must have draft_ms, because arm {arm!r} runs a draft model")

    @override
    def observe(self, arm: str, outcome: Outcome) -> None:
        self._watched[arm, outcome.context.sequence] += sum(self._of[arm].outcome_parts(outcome))

    @override
    def report(self, records: Sequence[PromptRecord]) -> Report:
        title = f"{self.profile.name} ({self.profile.source})"
        table = table_of(
            f"Modelled latency: {title}",
            f"arm | tokens/step | draft passes/step:.1 | modelled s/token:.3 | {SPEEDUP}:interval",
            "Modelled: the profile's milliseconds for the number of tokens in each pass of this run's own models. "
            f"{PLAIN.capitalize()} takes one target pass per token. Geometric mean over prompts, 95 % bootstrap "
            "interval.",
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
        """Return the modelled seconds of a prompt; None if its passes are unknown."""
        watched = self._watched.get((record.arm, sequence_name(record, record.sample)))
        if watched is not None:
            return watched
        if not record.draft_passes and not record.drafted_nodes:
            return self.profile.plain_seconds(record.prompt_tokens, round(record.steps))
        return None

    def _seconds_per_token(self, records: Sequence[PromptRecord], arm: str) -> float | None:
        own = [record for record in records if record.arm == arm and not record.error]
        seconds = [taken for record in own if (taken := self._seconds(record)) is not None]
        tokens = sum(record.new_tokens for record in own)
        return sum(seconds) / tokens if tokens and len(seconds) == len(own) else None

    def _speedup(self, records: Sequence[PromptRecord], arm: str) -> Speedup:
        """Return the speedup over plain decoding, paired by prompt."""
        ratios: list[tuple[str, float]] = []
        for record in records:
            if record.arm == arm and not record.error and record.new_tokens:
                seconds = self._seconds(record)
                if seconds is None:
                    reason = f"the number of tokens in each pass of {arm} is unknown"
                    return Speedup.refuse(arm, PLAIN, reason)
                plain = self.profile.plain_seconds(record.prompt_tokens, record.new_tokens)
                # the mean of logarithms is the log of the geometric mean
                ratios.append((record.prompt_id, float(np.log(plain / seconds))))
        if not ratios:
            return Speedup.refuse(arm, PLAIN, f"no prompt was answered by {arm}")
        return Speedup.of(
            arm, PLAIN, mean_by_prompt(ratios), f"modelled: {self.profile.name} ({self.profile.source})"
        )


def _runs_a_model(drafter: Drafter | None) -> bool:
    return drafter is not None and (drafter.runs_model or any(map(_runs_a_model, drafter.inner)))
