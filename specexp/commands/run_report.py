"""Builds the report of a run from its records."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from math import prod
from typing import Any

from matplotlib.figure import Figure
from transformers import PreTrainedTokenizerBase

from specexp.bench import clock
from specexp.bench.equality import InFloat32, proof_of
from specexp.bench.experiment import ExperimentArms
from specexp.bench.metrics import figures_of
from specexp.bench.record import PromptRecord
from specexp.bench.statistics import Speedup, arm_names, paired_speedup
from specexp.bench.verdict import SpeedVerdict, left_out_sentence, prompts_needed, verdict_of, verdict_sentence
from specexp.config import Config, arms_of
from specexp.config.layers import PARTS
from specexp.config.next_step import artifact_again, command_line, experiment_again, init_options, more_prompts
from specexp.data import LoadedPrompts
from specexp.engines.settings import engines_note
from specexp.report.analysis import Analysis
from specexp.report.comparison import (
    acceptance_table,
    among,
    busy_machine_of,
    category_table,
    context_table,
    fidelity_sentences,
    first_token_sentence,
    kinds_sentence,
    long_table,
    phase_table,
    results_table,
    source_table,
)
from specexp.report.pictures import Curve, parameter_curves, phase_bars, speedup_bars
from specexp.report.publish import Report
from specexp.report.sections import prompts_shown, ratios_chart, texts_of
from specexp.tracking.names import PLAIN, SPEEDUP

_AXES = {"budget": "nodes", "max_nodes": "nodes", "widths": "nodes"}
"""Axis labels, keyed by argument, because builders have different names for the number of nodes."""


def report(
    config: Config,
    experiment: ExperimentArms,
    records: Sequence[PromptRecord],
    data: LoadedPrompts,
    tokenizer: PreTrainedTokenizerBase | None,
    float32: InFloat32 | None = None,
) -> Report:
    """Return the report: tables, a figure, the outputs for each prompt, and the results of the analyses.

    Args:
        tokenizer: The target's tokenizer; None for a replay.
        float32: Outputs that were compared again in float32; None if there are none.
    """
    preparation = data.workload.preparation
    texts = texts_of(data.prompts)
    title = _title(config, f" ({config.get('paper')})" if config.get("paper") else "")
    baselines, published = experiment.baselines, config.published
    results = results_table(records, title, baselines=baselines, published=published, float32=float32)
    answered = {record.arm for record in records if not record.error}
    results.notes += fidelity_sentences(arm for arm in experiment.arms if arm.name in answered)
    ours = {
        one.title: {family: one.config.get(family) for family in (*PARTS, "execution")}
        for one in arms_of(config)
        if one.reference is None and one.config.get("drafter") is not None
    }
    results.notes += [engines_note(ours)] * bool(ours)
    results.notes += preparation.notes()
    tables = {
        "arms": results,
        "categories": category_table(records, baseline=baselines[0], published=published),
        "phases": phase_table(records),
        "positions": acceptance_table(records),
        "sources": source_table(records),
        "contexts": context_table(records),
    }
    chart = ratios_chart(records, baselines[0], texts=texts)
    ranked = _ranked(records, baselines[0])
    least = config.least_gain
    names = [name for name, speedup in ranked if speedup.refused is None]
    titles = {name: name for name in (*names, baselines[0])}
    again = config.invocation
    artifact = artifact_again(again.artifact, again.packages) if again.artifact else None
    steps = {
        "prove that the output is unchanged": command_line("verify", *experiment_again(again, artifact)),
        "find the best setting": command_line("init", "my-study", *init_options(config.pair)),
    }
    if ranked and verdict_of(ranked[0][1], least) is SpeedVerdict.CANNOT_TELL:
        needed = prompts_needed(ranked[0][1], least)
        needed = needed and max(needed, data.workload.max_prompts or 0)  # some of the file's prompts may have failed
        exhausted = data.workload.exhausted
        steps = more_prompts(again, "run", "data.max_prompts", needed, exhausted=exhausted) | steps
    of_kinds = (
        kinds_sentence(records, name, name, baselines[0], least, among(arm_names(records), baselines[0]))
        for name in names[:1]
    )
    late = [*filter(None, (first_token_sentence(records, name, name, baselines[0]) for name in names))]
    parts = [
        prompts_shown(texts, records, titles, tokenizer),
        *(one.report(records) for one in experiment.analyses if isinstance(one, Analysis)),
    ]
    return Report(
        {name: table for name, table in tables.items() if table is not None},
        {"figure": draw(config, records, baselines[0])},
        preparation.files(),
        data={"table": long_table(records, baselines=baselines)},
        summary=summary_of(records, baselines[0]),
        answer=next((part.answer for part in parts if part.answer), answer_of(records, baselines[0], least)),
        limits=[sentence for one in ranked if (sentence := left_out_sentence(*one))] + [*filter(None, of_kinds)] + late,
        proof=proof_of(records, arm_names(records), baselines[0]),
        charts={} if chart is None else {"prompts": chart},
        next_steps=steps,
        page="table",
        parts=parts,
    )


def _title(config: Config, paper: str = "") -> str:
    question: str = config.question or config.name
    return question + paper + (", replayed" if config.is_replayed else "")


def answer_of(records: Sequence[PromptRecord], baseline: str, least_gain: float) -> str:
    """Return the verdict on the fastest arm, and whether the machine was busy; empty if there is only the baseline."""
    ranked = _ranked(records, baseline)
    if not ranked:
        return ""
    name, speedup = ranked[0]
    over = "plain decoding" if baseline == PLAIN else baseline
    found = verdict_sentence(name, speedup, over=over, least_gain=least_gain)
    return f"{found} {busy_machine_of(records, baseline)}".rstrip()


def _ranked(records: Sequence[PromptRecord], baseline: str) -> list[tuple[str, Speedup]]:
    """Return the arms with their speedups over the baseline, fastest first. Those that cannot be compared come last.

    The intervals of all arms hold at once.
    """
    names = arm_names(records)
    found = [
        (name, paired_speedup(records, name, baseline, among=among(names, baseline)))
        for name in names
        if name != baseline
    ]
    return sorted(found, key=lambda one: (one[1].refused is not None, -one[1].mean_log_ratio))


def summary_of(records: Sequence[PromptRecord], baseline: str) -> dict[str, float]:
    """Return metrics for comparing runs: each arm's metrics and speedup. The names of modelled ones have a prefix."""
    found: dict[str, float] = {}
    for name in arm_names(records):
        good = [record for record in records if record.arm == name and not record.error]
        found |= {f"{name}/{key}": value for key, value in figures_of(good).items()}
        speedup = paired_speedup(records, name, baseline)
        if name != baseline and speedup.refused is None:
            key = f"{name}/{clock.metric_prefix(speedup.clock)}{SPEEDUP}"
            found[key] = speedup.ratio
            if speedup.has_interval:
                found[f"{key}_low"], found[f"{key}_high"] = speedup.low, speedup.high
    return found


def draw(config: Config, records: Sequence[PromptRecord], baseline: str) -> Figure:
    """Draw the figure that the configuration selects: ``speedup``, ``curves`` (for arms with a grid) or ``phases``."""
    title = _title(config)
    curves = curves_of(config)
    kind = config.figure or ("curves" if curves else "speedup")
    if kind == "phases":
        return phase_bars(records, title=title)
    if kind == "curves" and curves:
        return parameter_curves(records, curves, baseline=baseline, title=title)
    published = {  # only figures for all prompts, not those of one category
        str(item["method"]): float(item["speedup"])
        for item in config.published
        if item.get("speedup") is not None and "category" not in item
    }
    return speedup_bars(records, baseline=baseline, title=title, published=published)


def curves_of(config: Config) -> list[Curve]:
    """Return one curve for each ``grid`` with a single key.

    The key's values are numbers or lists. A list defines a tree and is plotted at that tree's number of nodes.
    """
    composed = iter(arms_of(config))
    curves = []
    for name, arm in (config.get("arms") or {}).items():
        grid: dict[str, list[Any]] = arm.get("grid") or {}
        points = list(islice(composed, prod(len(values) for values in grid.values())))
        if len(grid) != 1 or len(points) < 2:
            continue
        ((key, values),) = grid.items()
        argument = key.rpartition(".")[2]
        if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
            axis = [float(value) for value in values]
        elif key.startswith("builder.init_args.") and all(isinstance(value, list) for value in values):
            axis = [float(point.config.builder.max_nodes) for point in points]
        else:
            continue
        titles = [(value, point.title) for value, point in zip(axis, points, strict=True)]
        curves.append(Curve(arm.get("title") or name, _AXES.get(argument, argument), titles))
    return curves
