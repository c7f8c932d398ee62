"""The tables of a run, made from its records alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from specexp.bench import clock, metrics
from specexp.bench.busy_machine import busy_machine_of
from specexp.bench.equality import near_tie_sentence, token_equality
from specexp.bench.failures import failed_answers
from specexp.bench.phases import breakdown
from specexp.bench.record import MEASURED, PromptRecord
from specexp.bench.short_answers import short_answers
from specexp.bench.statistics import (
    Summary,
    arm_names,
    categories,
    paired_speedup,
    summarise,
)
from specexp.bench.table import Cell, Column, Table

if TYPE_CHECKING:
    from specexp.bench.arm import Arm
    from specexp.bench.float32 import InFloat32

MOST_CATEGORIES, PROMPTS_PER_CATEGORY = 8, 3  # more, or of fewer prompts, say nothing on a page; CSV has all
OTHERS = "others"


def results_table(
    records: Iterable[PromptRecord],
    title: str = "Results",
    *,
    baselines: Sequence[str] = ("engine", "hf-eager"),
    published: Sequence[Mapping[str, Any]] = (),
    float32: InFloat32 | None = None,
) -> Table:
    """One row an arm: tokens per step, speed, speedup over each baseline, equality of the output.

    Args:
        records: Records of a run.
        title: Line above the table.
        baselines: Arms that speedups are over, as far as they were run; outputs are compared with the first.
        published: Rows of a paper's table that were not run: ``method``, ``tokens_per_step``,
            ``tokens_per_second``, ``speedup``, ``source``.
        float32: The same outputs in float32; None where they were not compared once more.
    """
    records = list(records)
    names = arm_names(records)
    baselines = [name for name in baselines if name in names]
    clocks = {name: summarise(records, name).clock for name in names}
    shared = _shared(clocks.values())
    shown = [metric for metric in metrics.METRICS if metric.heading is not None]
    speedups = [Column(f"{clock.adjective(clocks[name])}vs {name}", interval=True) for name in baselines]
    columns = [Column("arm"), *(_column(metric, shared) for metric in shown), *speedups]
    exact = [] if float32 is None or float32.left_out else [Column("equal in float32")]
    table = Table(clock.titled(title, shared), [*columns, *exact, Column("equal outputs"), Column("state")])
    for name in names:
        summary = summarise(records, name)
        row: list[Cell] = [_label(summary, shared)]
        row += [summary.figures[metric.name] if summary.prompts else None for metric in shown]
        row += [
            None if name == baseline else paired_speedup(records, name, baseline) for baseline in baselines
        ]
        if exact and float32 is not None:
            row.append("reference" if name == baselines[0] else str(float32.equality(name, baselines[0])))
        if not baselines:
            row.append("not compared")
        elif name == baselines[0]:
            row.append("reference")
        else:
            row.append(str(token_equality(records, name, baselines[0])))
        table.rows.append([*row, summary.state])
    for item in published:
        if "category" not in item:
            table.rows.append(_published_row(item, shown, len(baselines), shared, len(exact)))
    table.notes = _notes(records, names, baselines)
    if float32 is not None:
        table.notes.append(float32.sentence([name for name in names if name != baselines[0]], baselines[0]))
    table.notes += _sources([item for item in published if "category" not in item])
    return table


def _shared(clocks: Iterable[str]) -> str:
    """The clock that headings tell; where arms have several, each arm's name tells its own."""
    found = set(clocks)
    return found.pop() if len(found) == 1 else MEASURED


def _label(summary: Summary, shared: str) -> str:
    modelled = "" if summary.clock == shared else f" ({clock.adjective(summary.clock).strip() or MEASURED})"
    return summary.arm + (" (LOSSY)" if "LOSSY" in summary.verifier else "") + modelled


def _column(metric: metrics.Metric, shared: str) -> Column:
    """A metric's column; modelled figures are small, and shown to two digits."""
    if not metric.clocked or shared == MEASURED:
        return Column(str(metric.heading), metric.digits)
    return Column(f"{clock.adjective(shared)}{metric.heading}", max(metric.digits, 2))


def _published_row(
    item: Mapping[str, Any], shown: Sequence[metrics.Metric], baselines: int, shared: str, exact: int = 0
) -> list[Cell]:
    figures: list[Cell] = []
    for metric in shown:
        figure = item.get(metric.name)
        if figure is not None and metric.clocked and shared != MEASURED:
            figure = f"{figure:.2f} published"  # measured by the paper, under a heading that says modelled
        figures.append(figure)
    speedups: list[Cell] = [None] * baselines
    if baselines and item.get("speedup") is not None:
        # papers compare with Hugging Face's generate: the last baseline
        speedups[-1] = f"{item['speedup']:.2f}x published"
    return [f"{item['method']} (not run here)", *figures, *speedups, *[None] * exact, None, None]


def _sources(published: Sequence[Mapping[str, Any]]) -> list[str]:
    sources = dict.fromkeys(str(item.get("source") or "the paper") for item in published)
    return [
        f"Not run here: figures as published by {source}, on its models and device." for source in sources
    ]


def _notes(records: Sequence[PromptRecord], names: Sequence[str], baselines: Sequence[str]) -> list[str]:
    """What a reader must know beside the numbers."""
    good = [record for record in records if not record.error]
    if not good:
        return [f"Every prompt failed; the first said: {records[0].error}."] if records else []
    notes = []
    setting = sorted({(record.dtype, record.device, record.verifier) for record in good})
    for dtype, device, verifier in setting:
        notes.append(f"Target in {dtype} on {device}, verifier {verifier}.")
    notes += clock_notes(good)
    reference = summarise(good, baselines[0] if baselines else names[0])
    notes.append(
        f"{len({record.prompt_id for record in good})} prompts; of the answers of {reference.arm} "
        f"{100 * reference.eos_share:.0f} % end by EOS, {100 * reference.loop_share:.0f} % in a loop "
        "(which flatters every method)."
    )
    notes.append(
        "Speedups: seconds per decoded token (prefill apart), paired prompt by prompt, geometric mean, 95 % "
        "bootstrap interval. tokens/step: all tokens / all target passes; macro: mean of the prompts' own."
    )
    near = sum(record.difference is not None and record.difference.near_tie for record in good)
    if near:
        notes.append(near_tie_sentence(good[0].dtype))
    if baselines and (busy := busy_machine_of(good, baselines[0])):
        notes.append(busy)
    short = short_answers(good, reference.arm)
    if short is not None:
        notes.append(short)
    failed = failed_answers(records)
    if failed is not None:
        notes.append(f"{failed}. The figures are of the others.")
    for name in names:
        for baseline in baselines:
            left_out = (
                paired_speedup(records, name, baseline, interval=False).left_out if name != baseline else 0
            )
            if left_out:
                notes.append(
                    f"{name} vs {baseline}: {left_out} prompts without a time per token in both left out."
                )
    return notes


def clock_notes(good: Sequence[PromptRecord]) -> list[str]:
    """What modelled seconds are, and how far they go beyond what the profile states."""
    notes = []
    for one in sorted({record.clock for record in good} - {MEASURED}):
        own = [record for record in good if record.clock == one]
        notes.append(
            f"Seconds are {one}: the milliseconds it states for the tokens fed in every target and draft pass. The "
            "passes are those of this run's own pair."
        )
        beyond = sum(record.beyond_profile for record in own)
        if beyond:
            notes.append(
                f"{beyond} of {sum(record.steps for record in own):.0f} target passes fed more tokens than the profile "
                "states milliseconds for: its last slope goes on beyond them."
            )
    return notes


def fidelity_sentences(arms: Iterable[Arm]) -> list[str]:
    """What the counts of arms are worth that run no models."""
    found: dict[str, list[str]] = {}
    for arm in arms:
        if arm.fidelity_note is not None:
            found.setdefault(arm.fidelity_note, []).append(arm.name)
    return [f"Replayed counts of {', '.join(names)} are {clause}." for clause, names in found.items()]


def category_table(
    records: Iterable[PromptRecord],
    *,
    baseline: str = "engine",
    published: Sequence[Mapping[str, Any]] = (),
) -> Table | None:
    """Speedup and tokens per step by category, those of few prompts together; None where nothing is told apart.

    Args:
        records: Records of a run.
        baseline: What speedups are over.
        published: Rows of a paper's table; of those with a ``category`` each method has a row, or a note where the
            run has none of these categories.
    """
    records = list(records)
    groups = grouped(records)
    theirs: dict[str, dict[str, float]] = {}
    for item in published:
        if "category" in item:
            theirs.setdefault(item["method"], {})[item["category"]] = item["speedup"]
    rows = {method: row for method, row in theirs.items() if row.keys() & groups.keys()}
    if len(groups) < 2 and not rows:
        return None
    used = summarise(records, baseline).clock
    columns = list(dict.fromkeys([*groups, *(name for row in rows.values() for name in row)]))
    table = Table(
        clock.titled("By category", used), [Column("arm"), *(Column(name) for name in columns), Column("all")]
    )
    for name in arm_names(records):
        row: list[Cell] = [name]
        for chosen in [*(groups.get(column, []) for column in columns), records]:
            summary = summarise(chosen, name)
            speedup = paired_speedup(chosen, name, baseline, interval=False)
            ratio = "refused" if speedup.refused else f"{speedup.ratio:.2f}x"
            row.append(f"{ratio} ({summary.tokens_per_step:.2f})" if summary.prompts else None)
        table.rows.append(row)
    for method, speedups in rows.items():
        shown = (f"{speedups[name]:.2f}x" if name in speedups else None for name in columns)
        table.rows.append([f"{method} (not run here)", *shown, None])
    speedup_word = "Speedup" if used == MEASURED else "Modelled speedup"
    table.notes.append(f"{speedup_word} over {baseline} (tokens per step).")
    if OTHERS in groups:
        together = ", ".join(sorted({record.category for record in groups[OTHERS]}))
        table.notes.append(
            f"{OTHERS.capitalize()}, of fewer than {PROMPTS_PER_CATEGORY} prompts each: {together}."
        )
    for method, speedups in theirs.items():
        if method not in rows:
            told = ", ".join(f"{category} {ratio:.2f}x" for category, ratio in speedups.items())
            table.notes.append(f"{method} (not run here): {told}.")
    table.notes += _sources([item for item in published if "category" in item])
    return table


def grouped(records: Sequence[PromptRecord]) -> dict[str, list[PromptRecord]]:
    """Records by category, the largest categories first where there are too many; the rest are one group."""
    prompts = {name: set[str]() for name in categories(records)}
    for record in records:
        prompts[record.category].add(record.prompt_id)
    named = sorted(
        (name for name, found in prompts.items() if len(found) >= PROMPTS_PER_CATEGORY),
        key=lambda name: -len(prompts[name]),
    )[:MOST_CATEGORIES]
    groups: dict[str, list[PromptRecord]] = {name: [] for name in prompts if name in named}
    for record in records if groups else ():
        groups.setdefault(record.category if record.category in named else OTHERS, []).append(record)
    return groups


def phase_table(records: Iterable[PromptRecord]) -> Table | None:
    """Share of each phase of a step, for the arms whose time is split; None without one."""
    records = list(records)
    found = [part for name in arm_names(records) if (part := breakdown(records, name)) is not None]
    if not found:
        return None
    phases = list(dict.fromkeys(phase for part in found for phase in part.shares))
    shared = _shared(part.clock for part in found)
    if shared != MEASURED:  # a profile tells passes, and one figure for the rest
        phases = [phase for phase in phases if any(part.shares.get(phase) for part in found)]
    columns = [
        Column("arm"),
        Column(f"{clock.adjective(shared)}ms/step"),
        *(Column(phase, 1, "%") for phase in phases),
    ]
    title = clock.titled("Where a step's time goes", shared)
    table = Table(title, [*columns, Column("outside forward passes", 1, "%")])
    for part in found:
        shares = [part.shares.get(phase, 0.0) for phase in phases]
        label = _label(summarise(records, part.arm), shared)
        table.rows.append([label, 1000 * part.step_seconds, *shares, part.outside_forward])
    return table


def long_table(
    records: Iterable[PromptRecord], *, baselines: Sequence[str] = ("engine", "hf-eager")
) -> Table:
    """Every arm in every category and in all: what CSV holds."""
    records = list(records)
    baselines = [name for name in baselines if name in arm_names(records)]
    names = arm_names(records)
    clocks = {name: summarise(records, name).clock for name in names}
    shared = _shared(clocks.values())
    facts = ("prompts", "failed", "state", "dtype", "verifier", "clock")
    heads = ["arm", "category", *facts, *(metric.key(shared) for metric in metrics.METRICS)]
    heads += ["equal", "near_ties", "wrong"]
    speedups = [
        Column(f"{clock.adjective(clocks[name])}speedup vs {name}", interval=True) for name in baselines
    ]
    table = Table("All figures", [*map(Column, heads), *speedups])
    for category in [None, *categories(records)]:
        chosen = [record for record in records if category in (None, record.category)]
        for name in names:
            one = summarise(chosen, name)
            equality = token_equality(chosen, name, baselines[0]) if baselines else None
            row: list[Cell] = [name, category or "all", *(getattr(one, fact) for fact in facts)]
            row += one.figures.values()
            row += [equality.equal, equality.near_ties, equality.wrong] if equality else [None] * 3
            row += [None if name == other else paired_speedup(chosen, name, other) for other in baselines]
            table.rows.append(row)
    return table
