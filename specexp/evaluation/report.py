"""The tables of a run, made from its records alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from specexp.evaluation.equality import token_equality
from specexp.evaluation.phases import breakdown
from specexp.evaluation.record import PromptRecord
from specexp.evaluation.statistics import (
    ArmSummary,
    arm_names,
    categories,
    paired_speedup,
    summarise,
)
from specexp.evaluation.table import Cell, Column, Table

MOST_CATEGORIES, PROMPTS_PER_CATEGORY = 16, 3  # more, or of fewer prompts, say nothing on a page; CSV has all
_RESULT_COLUMNS = (
    Column("arm"),
    Column("nodes/step", 1),
    Column("tokens/step"),
    Column("macro"),
    Column("tokens/s", 0),
)


def results_table(
    records: Iterable[PromptRecord],
    title: str = "Results",
    *,
    baselines: Sequence[str] = ("engine", "hf-eager"),
    published: Sequence[Mapping[str, Any]] = (),
) -> Table:
    """One row an arm: tokens per step, speed, speedup over each baseline, equality of the output.

    Args:
        records: of a run.
        title: above the table.
        baselines: arms that speedups are over, as far as they were run; outputs are compared with the first.
        published: rows of a paper's table that were not run: ``method``, ``tokens_per_step``,
            ``tokens_per_second``, ``speedup``, ``source``.
    """
    records = list(records)
    names = arm_names(records)
    baselines = [name for name in baselines if name in names]
    speedups = [Column(f"vs {name}", interval=True) for name in baselines]
    table = Table(title, [*_RESULT_COLUMNS, *speedups, Column("equal outputs"), Column("state")])
    for name in names:
        summary = summarise(records, name)
        row: list[Cell] = [_label(summary), *_speed_cells(summary)]
        row += [
            None if name == baseline else paired_speedup(records, name, baseline) for baseline in baselines
        ]
        row += (
            ["reference" if name == baselines[0] else str(token_equality(records, name, baselines[0]))]
            if (baselines)
            else ["not compared"]
        )
        table.rows.append([*row, summary.state])
    for item in published:
        table.rows.append(_published_row(item, len(baselines)))
    table.notes = _notes(records, names, baselines) + _sources(published)
    return table


def _label(summary: ArmSummary) -> str:
    return summary.arm + (" (LOSSY)" if "LOSSY" in summary.verifier else "")


def _speed_cells(summary: ArmSummary) -> list[Cell]:
    if not summary.prompts:
        return [None, None, None, None]
    return [
        summary.nodes_per_step,
        summary.tokens_per_step,
        summary.tokens_per_step_macro,
        summary.tokens_per_second,
    ]


def _published_row(item: Mapping[str, Any], baselines: int) -> list[Cell]:
    speedup = item.get("speedup")
    figures: list[Cell] = [None] * baselines
    if baselines and speedup is not None:
        figures[-1] = (
            f"{speedup:.2f}x published"  # papers compare with Hugging Face's generate: the last baseline
        )
    return [
        f"{item['method']} (not run here)",
        None,
        item.get("tokens_per_step"),
        None,
        item.get("tokens_per_second"),
        *figures,
        None,
        None,
    ]


def _sources(published: Sequence[Mapping[str, Any]]) -> list[str]:
    sources = dict.fromkeys(str(item.get("source") or "the paper") for item in published)
    return [
        f"Not run here: figures as published by {source}, on its models and device." for source in sources
    ]


def _notes(records: Sequence[PromptRecord], names: Sequence[str], baselines: Sequence[str]) -> list[str]:
    """What a reader must know beside the numbers."""
    good = [record for record in records if not record.error]
    if not good:
        return ["Every prompt failed."]
    notes = []
    setting = sorted({(record.dtype, record.device, record.verifier) for record in good})
    for dtype, device, verifier in setting:
        notes.append(f"Target in {dtype} on {device}, verifier {verifier}.")
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
        notes.append(f"{near} outputs part from plain decoding at a near tie of the {good[0].dtype} logits.")
    failed = [record for record in records if record.error]
    if failed:
        first = failed[0]
        notes.append(f"{len(failed)} failed, e.g. {first.arm} on {first.prompt_id}: {first.error}")
    for name in names:
        for baseline in baselines:
            left_out = (
                paired_speedup(records, name, baseline, resamples=1).left_out if name != baseline else 0
            )
            if left_out:
                notes.append(
                    f"{name} vs {baseline}: {left_out} prompts without a time per token in both left out."
                )
    return notes


def category_table(
    records: Iterable[PromptRecord], *, baseline: str = "engine", title: str = "By category"
) -> Table | None:
    """Speedup and tokens per step by category; None for one category, or too many to show."""
    records = list(records)
    found = categories(records)
    prompts = {record.prompt_id for record in records}
    if not 2 <= len(found) <= MOST_CATEGORIES or len(prompts) < PROMPTS_PER_CATEGORY * len(found):
        return None
    table = Table(title, [Column("arm"), *(Column(name) for name in found), Column("all")])
    for name in arm_names(records):
        row: list[Cell] = [name]
        for category in [*found, None]:
            chosen = [record for record in records if category in (None, record.category)]
            summary = summarise(chosen, name)
            speedup = paired_speedup(chosen, name, baseline)
            ratio = "refused" if speedup.refused else f"{speedup.ratio:.2f}x"
            row.append(f"{ratio} ({summary.tokens_per_step:.2f})" if summary.prompts else None)
        table.rows.append(row)
    table.notes.append(f"Speedup over {baseline} (tokens per step).")
    return table


def phase_table(records: Iterable[PromptRecord], title: str = "Where a step's time goes") -> Table | None:
    """Share of each phase of a step, for the arms whose time is split; None without one."""
    records = list(records)
    found = [part for name in arm_names(records) if (part := breakdown(records, name)) is not None]
    if not found:
        return None
    phases = list(dict.fromkeys(phase for part in found for phase in part.shares))
    columns = [Column("arm"), Column("ms/step"), *(Column(phase, 1, "%") for phase in phases)]
    table = Table(title, [*columns, Column("outside forward passes", 1, "%")])
    for part in found:
        shares = [part.shares.get(phase, 0.0) for phase in phases]
        table.rows.append([part.arm, 1000 * part.step_seconds, *shares, part.outside_forward])
    return table


def long_table(
    records: Iterable[PromptRecord], *, baselines: Sequence[str] = ("engine", "hf-eager")
) -> Table:
    """Every arm in every category and in all: what CSV holds."""
    records = list(records)
    baselines = [name for name in baselines if name in arm_names(records)]
    titles: tuple[str, ...] = (
        "arm",
        "category",
        "prompts",
        "failed",
        "state",
        "dtype",
        "verifier",
        "nodes_per_step",
    )
    titles += ("tokens_per_step", "tokens_per_step_macro", "tokens_per_second", "prefill_seconds")
    titles += (
        "draft_passes_per_step",
        "utilisation",
        "eos_share",
        "loop_share",
        "equal",
        "near_ties",
        "wrong",
    )
    speedups = [Column(f"speedup vs {name}", interval=True) for name in baselines]
    table = Table("All figures", [*(Column(title) for title in titles), *speedups])
    for category in [None, *categories(records)]:
        chosen = [record for record in records if category in (None, record.category)]
        for name in arm_names(records):
            one = summarise(chosen, name)
            equality = token_equality(chosen, name, baselines[0]) if baselines else None
            row: list[Cell] = [name, category or "all"]
            row += [getattr(one, title) for title in titles[2:16]]
            row += [equality.equal, equality.near_ties, equality.wrong] if equality else [None] * 3
            row += [None if name == other else paired_speedup(chosen, name, other) for other in baselines]
            table.rows.append(row)
    return table
