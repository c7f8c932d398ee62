"""The report of ``specexp.why``: tables, a chart and a summary of where speculation loses time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specexp.base.messages import counted
from specexp.bench.metrics import metric_named
from specexp.bench.record import PromptRecord
from specexp.bench.statistics import Speedup, breakdown
from specexp.core.latency import LatencyProfile
from specexp.report.comparison import acceptance_table
from specexp.report.publish import Report
from specexp.report.sections import ratios_chart
from specexp.report.table import Table, columns

NOW, PLAIN = "now", "plain"
_ROWS = "rows beyond the first"
_CHANGED_BY = {
    "draft passes": "a shorter draft, an earlier end (controller), a smaller draft model, or a drafter without one",
    _ROWS: "fewer nodes (builder), or a device with more parallel compute",
    "outside the passes": "pair.mode: compiled, a builder of a fixed shape, a controller that decides less often",
}
"""For each cost of a step, the changes that can lower it."""


@dataclass(frozen=True)
class Effect:
    """A change's records on all prompts, and its speedups over the unchanged composition and over plain decoding."""

    name: str
    overrides: Mapping[str, Any]  # changed keys of the experiment; empty if the change is to the costs
    records: Sequence[PromptRecord]
    over_now: Speedup
    over_plain: Speedup


@dataclass(frozen=True)
class Explained:
    """The explanation of a composition's speed: its costs, and similar settings in descending order of speedup."""

    now: Effect  # the composition as it is
    costs: Sequence[Effect]
    settings: Sequence[Effect]
    refused: dict[str, str]  # settings that the recording cannot replay, with the reasons
    latency: LatencyProfile
    note: str = ""  # fidelity of the replayed figures; empty if unknown


def report(found: Explained, title: str) -> Report:
    """Return the report to print and write."""
    good = [one for one in found.now.records if not one.error]
    tables = {"costs": _costs(found), "settings": _settings(found)}
    found_tables = {"positions": acceptance_table(good), "load": _loads(found)}
    tables |= {name: table for name, table in found_tables.items() if table is not None}
    records = [one for effect in (found.now, *found.settings) for one in effect.records]
    chart = ratios_chart(records, PLAIN)
    notes = [f"Replayed counts are {found.note}."] if found.note else []
    reasons = dict.fromkeys(found.refused.values())
    names = {why: ", ".join(name for name, reason in found.refused.items() if reason == why) for why in reasons}
    notes += [f"Not replayed: {refused} ({why})." for why, refused in names.items()]
    return Report(
        tables,
        sentences=notes,
        data={"settings_all": tables["settings"]},
        summary={"speedup": found.now.over_plain.ratio}
        | {f"cost/{effect.name}": effect.over_now.ratio for effect in found.costs},
        title=title,
        answer=answer_of(found),
        charts={} if chart is None else {"prompts": chart},
        page="why",
    )


def answer_of(found: Explained) -> str:
    """Return a short summary of the speedup, the largest cost and the best setting."""
    costly, best, latency = found.costs[0], found.settings[0], found.latency
    now = (
        f"It decodes {found.now.over_plain.unlabeled} as fast as plain decoding. If its largest cost ({costly.name}) "
        f"were zero, it would be at most {costly.over_now.ratio:.2f}x as fast as now."
    )
    if costly.name == _ROWS:
        rows = _mean_rows(found.now.records)
        cost = latency.target_seconds(rows) / latency.target_seconds(1)
        now += (
            f" {counted(rows, 'row')} cost {cost:.1f} passes here; drafting is nearly free up to "
            f"{counted(latency.free_nodes, 'node')}."
        )
    if best.over_now.is_faster:
        return f"{now} The best neighboring setting is {best.name}: {best.over_now.unlabeled} as fast."
    return f"{now} No neighboring setting is significantly faster."


def _costs(found: Explained) -> Table:
    split = breakdown(found.now.records, NOW)
    table = Table(
        "Where a step's time goes, and the largest speedup if one share took no time",
        columns("what | ms a step:.2 | share:.1% | at most, over now:interval | changed by"),
    )
    step = rest = 0.0 if split is None else split.step_seconds
    for effect in found.costs:
        without = breakdown(effect.records, effect.name)
        gone = 0.0 if without is None else step - without.step_seconds
        rest -= gone
        share = gone / step if step else None
        table.rows.append([effect.name, 1e3 * gone, share, effect.over_now, _CHANGED_BY[effect.name]])
    share = rest / step if step else None
    nothing = "cannot be lowered: plain decoding needs it too"
    table.rows.append(["the first row of the target", 1e3 * rest, share, None, nothing])
    return table


def _settings(found: Explained) -> Table:
    table = Table(
        "Neighboring settings by replay",
        columns("setting | nodes/step:.1 | tokens/step | over now:interval | over plain:interval"),
        notes=[
            f"Replayed on the {counted(len(found.now.records), 'prompt')} of the recording; intervals are over "
            "prompts. The best setting was chosen on these, so confirm it on others, as python -m specexp.sweep does.",
        ],
    )
    for effect in (found.now, *found.settings):
        steps = sum(one.steps for one in effect.records)
        is_now = effect is found.now
        table.rows.append(
            [
                "as it is" if is_now else effect.name,
                sum(one.drafted_nodes for one in effect.records) / steps,
                metric_named("tokens_per_step").over(effect.records),
                None if is_now else effect.over_now,
                effect.over_plain,
            ]
        )
    return table


def _mean_rows(records: Sequence[PromptRecord]) -> int:
    return round(sum(one.drafted_nodes for one in records) / sum(one.steps for one in records)) + 1


def _loads(found: Explained) -> Table | None:
    """Return a table of speedups when lanes share target passes, or None if the profile has no times for lanes."""
    latency = found.latency
    if not latency.lanes_ms:
        return None
    records = found.now.records
    tokens = metric_named("tokens_per_step").over(records) or 0.0
    rows = _mean_rows(records)
    split = breakdown(records, NOW)
    beside = 0.0 if split is None else split.step_seconds * (1.0 - split.shares.get("target", 0.0))
    table = Table(
        "Under load: several lanes share one target pass",
        columns(f"lanes | ms of {rows} rows each:.2 | ms of 1 row each:.2 | over plain:.2x"),
        notes=[
            "Every lane drafts by itself, as now. If speculation does not pay at a load, use controller: NodeBudget, a "
            "schedule by load, or fewer nodes."
        ],
    )
    for lanes in (1, *sorted(latency.lanes_ms)):
        wide = latency.lanes_seconds(rows, lanes)
        narrow = latency.lanes_seconds(1, lanes)
        table.rows.append([lanes, 1e3 * wide, 1e3 * narrow, tokens * narrow / (wide + lanes * beside)])
    return table
