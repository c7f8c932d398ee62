"""The tables of a run and the sentences below them, computed solely from the run's records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from statistics import median
from typing import Any

from specexp.base.messages import counted
from specexp.bench import clock, metrics
from specexp.bench.arm import Arm
from specexp.bench.equality import InFloat32, near_tie_sentence, token_equality
from specexp.bench.observers import steps_of
from specexp.bench.record import FEWEST_TOKENS, MEASURED, PromptRecord, by_position
from specexp.bench.signatures import likely_causes
from specexp.bench.statistics import WITHIN, Summary, arm_names, breakdown, categories, paired_speedup, summarize
from specexp.bench.verdict import SpeedVerdict, verdict_of
from specexp.report.table import Cell, Column, Table, columns
from specexp.tracking.names import EAGER, PLAIN

# maximum number of categories shown, and minimum number of prompts in each; CSV has all categories
MOST_CATEGORIES, PROMPTS_PER_CATEGORY = 8, 3
MOST_POSITIONS = 12
OTHERS = "others"
CONTEXTS, FEWEST_STEPS = (64, 256, 1024, 4096), 30
"""Upper bounds of the context-length columns, and the minimum number of steps for a column to be shown."""
BUSY_FOLD = 4.0
"""The machine counts as busy if plain decoding's time per token varies by at least this factor between prompts."""

LATE = 1.25
"""Smallest ratio of the times to the first token that is worth a sentence."""


def results_table(
    records: Iterable[PromptRecord],
    title: str = "Results",
    *,
    baselines: Sequence[str] = (PLAIN, EAGER),
    published: Sequence[Mapping[str, Any]] = (),
    float32: InFloat32 | None = None,
) -> Table:
    """Return a table with one row per arm: tokens per step, speed, speedup over each baseline, and output equality.

    Speedups are over the ``baselines`` that were run, and outputs are compared with those of the first. ``published``
    holds rows of a paper's table for methods not run here: ``method``, ``tokens_per_step``, ``tokens_per_second``,
    ``speedup``, ``source``. ``float32`` is the comparison of the same outputs in float32, if there was one.
    """
    records = list(records)
    names, baselines, over, shared = _frame(records, baselines, "vs")
    shown = {_column(metric, shared): metric for metric in metrics.METRICS if metric.heading is not None}
    again = None if float32 is None or float32.left_out else float32
    exact = [] if again is None else [Column("equal in float32")]
    heads = [Column("arm"), *shown, *over.values(), *exact, Column("equal outputs"), Column("state")]
    table = Table(clock.titled(title, shared), heads)
    for name in names:
        summary = summarize(records, name)
        cells: dict[str, Cell] = {"arm": _label(summary, shared), "state": summary.state}
        if summary.prompts:
            cells |= {column.title: summary.figures[metric.name] for column, metric in shown.items()}
        cells |= {
            over[other].title: paired_speedup(records, name, other, among=among(names, other))
            for other in over
            if other != name
        }
        if not baselines or name == baselines[0]:
            word = "reference" if baselines else "not compared"
            cells |= {column.title: word for column in (*exact, Column("equal outputs"))}
        else:
            cells["equal outputs"] = str(token_equality(records, name, baselines[0]))
            if again is not None:
                cells["equal in float32"] = str(token_equality(again.records, name, baselines[0]))
        table.add(cells)
    theirs = [item for item in published if "category" not in item]
    for item in theirs:
        cells = {"arm": f"{item['method']} (not run here)"}
        for column, metric in shown.items():
            figure = item.get(metric.name)
            # the paper measured this figure, but the column is for modelled seconds
            other_clock = figure is not None and metric.clocked and shared != MEASURED
            cells[column.title] = f"{figure:.2f} published" if other_clock else figure
        if baselines and item.get("speedup") is not None:
            # papers compare with Hugging Face's generate, the last baseline
            cells[over[baselines[-1]].title] = f"{item['speedup']:.2f}x published"
        table.add(cells)
    table.notes = _notes(records, names, baselines)
    if float32 is not None:
        table.notes.append(float32.sentence([name for name in names if name != baselines[0]], baselines[0]))
    table.notes += _sources(theirs)
    return table


def among(names: Sequence[str], baseline: str) -> int:
    """Return the number of arms of which the fastest is chosen; see :meth:`~specexp.bench.statistics.Speedup.of`."""
    return max(len({*names} - {baseline, EAGER}), 1)


def _frame(
    records: Sequence[PromptRecord], baselines: Sequence[str], word: str
) -> tuple[list[str], list[str], dict[str, Column], str]:
    """Return the arms, the baselines among them, one speedup column per baseline, and the arms' common clock."""
    names = arm_names(records)
    clocks = {name: summarize(records, name).clock for name in names}
    found = [name for name in baselines if name in names]
    over = {name: Column(f"{clock.adjective(clocks[name])}{word} {name}", interval=True) for name in found}
    return names, found, over, _shared(clocks.values())


def _shared(clocks: Iterable[str]) -> str:
    """Return the clock that all arms share, or ``measured`` if they differ; modelled arms are then marked as such."""
    found = set(clocks)
    return found.pop() if len(found) == 1 else MEASURED


def _label(summary: Summary, shared: str) -> str:
    modelled = "" if summary.clock == shared else f" ({clock.adjective(summary.clock).strip() or MEASURED})"
    return summary.arm + (" (LOSSY)" if "LOSSY" in summary.verifier else "") + modelled


def _column(metric: metrics.Metric, shared: str) -> Column:
    modelled = metric.clocked and shared != MEASURED
    heading = f"{clock.adjective(shared) if modelled else ''}{metric.heading}"
    return Column(heading, max(metric.digits, 2) if modelled else metric.digits)


def _sources(published: Sequence[Mapping[str, Any]]) -> list[str]:
    sources = dict.fromkeys(str(item.get("source") or "the paper") for item in published)
    return [f"Not run here: figures as published by {source}, on its models and device." for source in sources]


def _notes(records: Sequence[PromptRecord], names: Sequence[str], baselines: Sequence[str]) -> list[str]:
    good = [record for record in records if not record.error]
    if not good:
        return [f"Every prompt failed, the first with: {records[0].error}."] if records else []
    reference = summarize(good, baselines[0] if baselines else names[0])
    settings = sorted({(record.dtype, record.device, record.verifier) for record in good})
    arms = among(names, baselines[0]) if baselines else 1
    at_once = f" that holds for all {arms} arms at once" if arms > 1 else ""
    notes = [
        *(f"Target in {dtype} on {device}, verifier {verifier}." for dtype, device, verifier in settings),
        *clock_notes(good),
        f"{len({record.prompt_id for record in good})} prompts. Of the answers of {reference.arm}, "
        f"{endings(reference, good)}.",
        "Speedups: seconds per decoded token (without prefill), paired prompt by prompt, geometric mean, 95 % "
        f"interval ({WITHIN}){at_once}. tokens/step: all tokens / all target passes. macro: mean of the prompts' "
        "tokens/step.",
    ]
    busy = busy_machine_of(good, baselines[0]) if baselines else ""
    notes += filter(None, [near_tie_sentence(good), busy, short_answers(good, reference.arm)])
    notes += unread_evaluations(good)
    if failed := failed_answers(records):
        notes.append(f"{failed}. The figures cover the other answers.")
    # those over the first baseline limit the answer
    for name, baseline in product(names, baselines[1:]):
        prompts = paired_speedup(records, name, baseline).left_out
        if name != baseline and prompts:
            notes.append(f"{name} vs {baseline} leaves out {prompts} prompts without a time per token in both.")
    return notes


def unread_evaluations(good: Sequence[PromptRecord]) -> list[str]:
    """Return a sentence on the thought evaluations that could not be parsed; an empty list if there was no search."""
    counts: dict[str, list[int]] = {}
    for record in good:
        if record.group is not None and "evaluator" in record.group.roles:
            count = counts.setdefault(record.arm, [0, 0])
            count[0] += record.group.unparsable
            count[1] += record.group.roles["evaluator"].sequences
    shares = ", ".join(f"{unread} of {whole} in {arm}" for arm, (unread, whole) in counts.items())
    return [f"Evaluations of thoughts that could not be read: {shares}."] if counts else []


def clock_notes(good: Sequence[PromptRecord]) -> list[str]:
    """Return sentences that explain modelled seconds and count the passes that exceed the sizes in the profile."""
    notes = []
    for one in sorted({record.clock for record in good} - {MEASURED}):
        own = [record for record in good if record.clock == one]
        notes.append(
            f"Seconds are {one}: its milliseconds for the number of tokens fed in each target and draft pass. The "
            "passes themselves are those of this run's models."
        )
        beyond = sum(record.beyond_profile for record in own)
        if beyond:
            notes.append(
                f"{beyond} of {sum(record.steps for record in own):.0f} target passes fed more tokens than the profile "
                "covers: their milliseconds are extrapolated with its last slope."
            )
    return notes


def fidelity_sentences(arms: Iterable[Arm]) -> list[str]:
    """Return one sentence per grade of replay fidelity, with the arms to which it applies."""
    found: dict[str, list[str]] = {}
    for arm in arms:
        if arm.fidelity_note is not None:
            found.setdefault(arm.fidelity_note, []).append(arm.name)
    return [f"Replayed counts of {', '.join(names)} are {clause}." for clause, names in found.items()]


def failed_answers(records: Sequence[PromptRecord]) -> str | None:
    """Return a clause with the failed arms and the first error, or None if every prompt was answered."""
    failed = [record for record in records if record.error]
    if not failed:
        return None
    answers, lost = (Counter(record.arm for record in some) for some in (records, failed))
    arms = ", ".join(f"{arm}: {'all ' if count == answers[arm] else ''}{count}" for arm, count in lost.items())
    first = failed[0]
    return (
        f"{len(failed)} of {len(records)} answers failed ({arms}), e.g. {first.arm} on prompt "
        f"{first.prompt_id!r}: {first.error}"
    )


def endings(reference: Summary, records: Sequence[PromptRecord]) -> str:
    """Return a clause on the shares of an arm's answers that end with EOS or in a loop."""
    stops = any("repetition" in record.finish_reasons for record in records)
    loop = "where they begin to repeat" if stops else "in a loop (which flatters every method)"
    return f"{100 * reference.eos_share:.0f} % end with EOS and {100 * reference.loop_share:.0f} % {loop}"


def short_answers(records: Sequence[PromptRecord], arm: str) -> str | None:
    """Return a warning if an arm's median answer is short, unless most short answers reached the token limit."""
    answers = [
        answer
        for one in records
        if one.arm == arm and not one.error
        for answer in zip(one.turn_tokens, one.finish_reasons, strict=False)
    ]  # pairs of token count and finish reason
    short = [reason for tokens, reason in answers if tokens < FEWEST_TOKENS]
    middle = median(tokens for tokens, _ in answers) if answers else FEWEST_TOKENS
    if middle >= FEWEST_TOKENS or short.count("length") * 2 > len(short):  # as short as requested
        return None
    return (
        f"Warning: the median answer of {arm} has {counted(round(middle), 'token')}, too few to measure decoding. "
        "Check how the prompts end, and whether the target answers them."
    )


def busy_machine(seconds_per_token: Iterable[float]) -> str:
    """Return a warning if plain decoding's time per token varied widely between prompts, otherwise an empty string."""
    seconds = [one for one in seconds_per_token if one > 0]
    fold = max(seconds) / min(seconds) if seconds else 1.0
    if fold < BUSY_FOLD:
        return ""
    return (
        f"Plain decoding's time per token varied {fold:.0f}-fold between prompts: the machine was busy, so read the "
        "intervals, not the ratios."
    )


def busy_machine_of(records: Iterable[PromptRecord], arm: str) -> str:
    """Apply :func:`busy_machine` to the measured records of ``arm``, which decodes without drafts."""
    own = [record for record in records if record.arm == arm and record.clock == MEASURED]
    return busy_machine(record.seconds_per_token or 0.0 for record in own)


def category_table(
    records: Iterable[PromptRecord], *, baseline: str = PLAIN, published: Sequence[Mapping[str, Any]] = ()
) -> Table | None:
    """Return a table of speedup, its interval and tokens per step by category, or None if there is only one.

    Small categories are merged. ``published`` rows with a ``category`` become one row per method, or a note if the run
    has none of the method's categories.
    """
    records = list(records)
    groups = grouped(records)
    theirs: dict[str, dict[str, Cell]] = {}
    for item in published:
        if "category" in item:
            theirs.setdefault(item["method"], {})[item["category"]] = f"{item['speedup']:.2f}x"
    rows = {method: row for method, row in theirs.items() if row.keys() & groups.keys()}
    if len(groups) < 2 and not rows:
        return None
    used = summarize(records, baseline).clock
    names = dict.fromkeys([*groups, *(name for row in rows.values() for name in row)])
    table = Table(clock.titled("By category", used), [*map(Column, ["arm", *names, "all"])])
    for arm in arm_names(records):
        cells: dict[str, Cell] = {"arm": arm}
        for name, chosen in {**groups, "all": records}.items():
            summary = summarize(chosen, arm)
            speedup = paired_speedup(chosen, arm, baseline)
            ratio = "refused" if speedup.refused else speedup.unlabeled
            cells[name] = f"{ratio} ({summary.tokens_per_step:.2f})" if summary.prompts else None
        table.add(cells)
    word = "Speedup" if used == MEASURED else "Modelled speedup"
    table.notes = [f"{word} over {baseline} (tokens per step). Each 95 % interval holds by itself."]
    if OTHERS in groups:
        together = ", ".join(sorted({record.category for record in groups[OTHERS]}))
        few = f"of fewer than {PROMPTS_PER_CATEGORY} prompts each"
        table.notes.append(f"{OTHERS.capitalize()}, {few}: {together}.")
    for method, row in theirs.items():
        if method in rows:
            table.add({"arm": f"{method} (not run here)", **row})
        else:
            text = ", ".join(f"{category} {ratio}" for category, ratio in row.items())
            table.notes.append(f"{method} (not run here): {text}.")
    table.notes += _sources([item for item in published if "category" in item])
    return table


def kinds_sentence(
    records: Sequence[PromptRecord], arm: str, label: str, baseline: str, least_gain: float, among: int
) -> str:
    """Name the categories for which an arm that is faster on all prompts does not pay; empty if it does for each.

    ``among`` is as in :meth:`~specexp.bench.statistics.Speedup.of`. The intervals of all categories hold at once too.
    """
    groups = grouped(records)
    if len(groups) < 2 or not paired_speedup(records, arm, baseline, among=among).is_faster:
        return ""
    share = among * len(groups)
    found = {name: paired_speedup(own, arm, baseline, among=share) for name, own in groups.items()}
    of = {name: verdict_of(one, least_gain) for name, one in found.items()}
    slow = [f"{name} ({found[name].unlabeled})" for name, one in of.items() if one is SpeedVerdict.NOT_FASTER]
    unknown = [name for name, one in of.items() if one is SpeedVerdict.CANNOT_TELL]
    parts = [f"does not pay for {', '.join(slow)}"] if slow else []
    parts += [f"is not yet shown to pay for {', '.join(unknown)}"] if unknown else []
    return f"By kind of prompt, {label} {' and '.join(parts)}." if parts else ""


def first_token_sentence(records: Sequence[PromptRecord], arm: str, label: str, baseline: str = PLAIN) -> str:
    """State how much longer an arm takes to its first token; empty if that is below :data:`LATE` or within noise."""
    speedup = paired_speedup(records, arm, baseline, cost=lambda record: record.prefill_seconds)
    if not speedup.is_slower or speedup.ratio > 1 / LATE:
        return ""
    times = f"{1 / speedup.ratio:.2f}x [{1 / speedup.high:.2f}, {1 / speedup.low:.2f}]"
    over = "plain decoding" if baseline == PLAIN else baseline
    return f"{label} takes {times} as long as {over} to its first token, which the speedups leave out."


def grouped(records: Sequence[PromptRecord]) -> dict[str, list[PromptRecord]]:
    """Group the records by category: each of the largest categories separately, and the rest together."""
    prompts = {name: set[str]() for name in categories(records)}
    for record in records:
        prompts[record.category].add(record.prompt_id)
    large = [name for name, found in prompts.items() if len(found) >= PROMPTS_PER_CATEGORY]
    named = sorted(large, key=lambda name: -len(prompts[name]))[:MOST_CATEGORIES]
    groups: dict[str, list[PromptRecord]] = {name: [] for name in prompts if name in named}
    for record in records if groups else ():
        groups.setdefault(record.category if record.category in named else OTHERS, []).append(record)
    return groups


def phase_table(records: Iterable[PromptRecord]) -> Table | None:
    """Return a table of each phase's share of a step for the arms with seconds per phase, or None if no arm has any."""
    records = list(records)
    found = [part for name in arm_names(records) if (part := breakdown(records, name)) is not None]
    if not found:
        return None
    shared = _shared(part.clock for part in found)
    # a profile models the passes and a single cost for the rest, so the other phases are empty
    phases = [
        phase
        for phase in dict.fromkeys(phase for part in found for phase in part.shares)
        if shared == MEASURED or any(part.shares.get(phase) for part in found)
    ]
    shares = [Column(name, 1, "%") for name in (*phases, "outside forward passes")]
    heads = [Column("arm"), Column(f"{clock.adjective(shared)}ms/step"), *shares]
    table = Table(clock.titled("Where a step's time goes", shared), heads)
    for part in found:
        own = [*(part.shares.get(phase, 0.0) for phase in phases), part.outside_forward]
        label = _label(summarize(records, part.arm), shared)
        table.rows.append([label, 1000 * part.step_seconds, *own])
    return table


def long_table(records: Iterable[PromptRecord], *, baselines: Sequence[str] = (PLAIN, EAGER)) -> Table:
    """Return the full table for CSV: all figures of each arm, both by category and over all prompts."""
    records = list(records)
    names, baselines, over, shared = _frame(records, baselines, "speedup vs")
    facts = ("prompts", "failed", "state", "dtype", "verifier", "clock")
    keys = [metric.key(shared) for metric in metrics.METRICS]
    heads = map(Column, ["arm", "category", *facts, *keys, "equal", "near_ties", "wrong"])
    table = Table("All figures", [*heads, *over.values()])
    for category, name in product([None, *categories(records)], names):
        chosen = [record for record in records if category in (None, record.category)]
        one = summarize(chosen, name)
        equality = token_equality(chosen, name, baselines[0]) if baselines else None
        cells: dict[str, Cell] = {"arm": name, "category": category or "all"}
        cells |= {fact: getattr(one, fact) for fact in facts}
        cells |= dict(zip(keys, one.figures.values(), strict=True))
        cells |= {word: getattr(equality, word, None) for word in ("equal", "near_ties", "wrong")}
        cells |= {over[other].title: paired_speedup(chosen, name, other) for other in over if other != name}
        table.add(cells)
    return table


def acceptance_table(records: Iterable[PromptRecord]) -> Table | None:
    """Return a table of acceptance rates by arm and drafted position, or None if nothing was drafted."""
    records = [record for record in records if not record.error and any(record.drafted_at)]
    if not records:
        return None
    most = min(MOST_POSITIONS, max(len(record.drafted_at) for record in records))
    shares = [Column(str(position), 1, "%") for position in range(1, most + 1)]
    note = (
        "A position's share: of the steps that drafted the position, those that accepted it. alpha: the same share "
        "over all positions together. The width of a tree does not count."
    )
    heads = [Column("arm"), Column("alpha", 1, "%"), *shares]
    table = Table("Acceptance by position", heads, notes=[note])
    for arm in arm_names(records):
        own = [record for record in records if record.arm == arm]
        drafted = by_position(record.drafted_at for record in own)[:most]
        accepted = by_position([*(record.accepted_at for record in own), (0,) * len(drafted)])
        cells = {str(at): accepted[at - 1] / steps for at, steps in enumerate(drafted, start=1)}
        table.add({"arm": arm, "alpha": metrics.metric_named("alpha").over(own), **cells})
    table.notes += (f"{arm}: {cause}." for arm, cause in likely_causes(records).items())
    return table


def source_table(records: Iterable[PromptRecord]) -> Table | None:
    """Return a table of nodes by arm and proposing drafter, or None if no arm has nodes from at least two drafters."""
    heads = columns("arm | proposed by | nodes/step | accepted nodes:.0% | accepted/step")
    note = "A node that several drafters proposed counts for the first of them."
    table = Table("Acceptance by source", heads, notes=[note])
    good = [record for record in records if not record.error]
    for arm in arm_names(good):
        own = [record for record in good if record.arm == arm]
        names = {name for one in own for name in one.nodes_by_source}
        steps = sum(one.steps for one in own)
        for name in sorted(names) if len(names) > 1 else ():
            fed, accepted = by_position(one.nodes_by_source.get(name, ()) for one in own)
            table.rows.append([arm, name, fed / steps, accepted / fed, accepted / steps])
    return table if table.rows else None


def context_table(records: Iterable[PromptRecord]) -> Table | None:
    """Return a table of tokens per step by arm and context length, or None if all contexts have similar sizes.

    Only single-turn records count. The context is the prompt and the answer before the step.
    """
    steps: dict[str, Counter[int]] = {}
    tokens: dict[str, Counter[int]] = {}
    for record in records:
        if record.turns != 1 or not any(record.drafted_at):
            continue
        counts = steps.setdefault(record.arm, Counter())
        sums = tokens.setdefault(record.arm, Counter())
        for step in steps_of(record.sources, record.turn_tokens):
            size = next((one for one in CONTEXTS if record.prompt_tokens + step.start <= one), 0)
            counts[size] += 1
            sums[size] += len(step)
    total = sum(steps.values(), Counter[int]())
    shown = [size for size in (*CONTEXTS, 0) if total[size] >= FEWEST_STEPS]
    if len(shown) < 2:
        return None
    heads = [Column(f"up to {size:,}" if size else f"above {CONTEXTS[-1]:,}") for size in shown]
    note = f"Tokens in the context before the step. Sizes with fewer than {FEWEST_STEPS} steps are left out."
    table = Table("Tokens per step by context length", [Column("arm"), *heads], notes=[note])
    for arm, counts in steps.items():
        table.rows.append([arm, *(tokens[arm][size] / counts[size] if counts[size] else None for size in shown)])
    return table


def metric_table() -> Table:
    """Return a table of all metrics with their units, meanings and directions."""
    rows: list[list[Cell]] = [
        [one.name, one.unit, one.description, one.better, one.aggregate] for one in metrics.METRICS
    ]
    return Table("Metrics", columns("metric | unit | what it is | better | over prompts"), rows)


if __name__ == "__main__":
    print(metric_table().to_markdown(), end="")
