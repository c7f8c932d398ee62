"""Speedups of trees of thought: by task, by component, and over the sequences at a time (SEED, Tables 1 to 3)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle
from typing import Any, ClassVar

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from typing_extensions import override

from experiments.papers.shared import Row, add_rows, check_rows, label, label_of, report_of, table_of
from specexp.bench.analysis import MultiSequenceAnalysis, over
from specexp.bench.equality import token_equality
from specexp.bench.figures import draw_speedups
from specexp.bench.metrics import metric_named
from specexp.bench.pictures import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    VIOLET,
    legend_below,
    name_rows,
    new_figure,
    rule,
)
from specexp.bench.publish import Report
from specexp.bench.record import PromptRecord
from specexp.bench.statistics import Speedup, arm_names, categories, paired_speedup, summarise
from specexp.bench.table import Cell, Table
from specexp.core.parts import Parts
from specexp.data.tasks import Task

BY_TASK = {"task": "task", "depth": "tree depth", "speedup": "end to end"}
BY_ROLE = {"role": "component", "acceptance": "alpha", "speedup": "with prefills"}
DIM = "#71808d"
COLOURS = (BLUE, ORANGE, GREEN, VIOLET, "#b5404a", "#4f5d75")
DASHES = ((5, 2), (2, 2), (6, 2, 1, 2), (1, 2))
_SETTING = re.compile(r"[,\s]*\b(n|verify_batch)=(\d+)\b")
Tasks = Mapping[str, Sequence[PromptRecord]]


def answered(records: Sequence[PromptRecord], arm: str) -> list[PromptRecord]:
    """The arm's records that did not fail."""
    return [record for record in records if record.arm == arm and not record.error]


def answers(tasks: Tasks, arms: Sequence[str]) -> Iterator[tuple[str, str, list[PromptRecord]]]:
    """Task, arm and its answered records, where there are any."""
    for task, records in tasks.items():
        for arm in arms:
            if good := answered(records, arm):
                yield task, arm, good


def whole_seconds(record: PromptRecord) -> float:
    """Seconds of a prompt end to end."""
    if record.group is not None:
        return record.group.wall_seconds
    return record.prefill_seconds + record.decode_seconds


def end_to_end(records: Sequence[PromptRecord], arm: str, baseline: str) -> Speedup:
    """The paired speedup in end-to-end seconds per token."""
    return paired_speedup(
        records, arm, baseline, cost=lambda record: over(whole_seconds(record), record.new_tokens)
    )


def both_speedups(records: Sequence[PromptRecord], arm: str, baseline: str) -> list[Speedup]:
    """End to end, and of decoding alone."""
    return [end_to_end(records, arm, baseline), paired_speedup(records, arm, baseline)]


def paces(records: Sequence[PromptRecord], arm: str) -> list[Cell]:
    """Tokens per second end to end, tokens per step, and the share of the time in which the target is busy."""
    good = answered(records, arm)
    pace = over(sum(record.new_tokens for record in good), sum(map(whole_seconds, good)))
    return [pace, summarise(good, arm).tokens_per_step, busy_share(good)]


def busy_share(records: Sequence[PromptRecord]) -> float | None:
    """Share of the time in which the target runs a pass or a prefill; None without groups."""
    return metric_named("target_utilisation").over(records)


class ReasoningTable(MultiSequenceAnalysis):
    """Speedup of each arm on each task, end to end and of decoding alone, and whether the outputs are equal.

    End to end is the whole search for an answer: prefills, decoding, evaluations. Decoding leaves the prefills and the
    search out. Both are seconds per token, paired item by item, with a 95 % bootstrap interval.

    Args:
        published: Rows of a paper's table: ``task`` (e.g. ``GSM8K``), ``method`` (e.g. ``SEED, (2,2,1)``), and any of
            ``speedup`` over plain decoding and ``depth`` of the tree of thoughts (the task's own if left out).
    """

    name: ClassVar[str] = "reasoning_table"

    def __init__(self, published: list[Row] | None = None) -> None:
        super().__init__()
        self.published = check_rows(published, ["speedup", "depth"], ["task", "method"])

    @override
    def report(self, records: Sequence[PromptRecord]) -> Report:
        tasks: dict[str, Sequence[PromptRecord]] = {**by_task(records)}
        for row in self.published:
            tasks.setdefault(row["task"], [])
        arms = arm_names(records)
        tables = {
            self.name: self._speed(tasks, arms),
            f"{self.name}_drafts": _drafts(tasks, arms),
            f"{self.name}_answers": _answers(tasks, arms),
        }
        drawn = any(arm != self.baseline for arm in arms)
        return Report(tables, {self.name: self._draw(tasks, arms)} if drawn else {})

    def _speed(self, tasks: Tasks, arms: Sequence[str]) -> Table:
        table = table_of(
            f"Speedup over {self.baseline} by task",
            "task | tree depth | arm | end to end:interval | decoding:interval | tokens/s:.0 | tokens/step"
            " | target busy:.1% | equal outputs",
            "Seconds per token, paired item by item, geometric mean, 95 % bootstrap interval. End to end: the "
            "whole search, prefills included; decoding: without prefills and search. Tokens/s are end to end.",
            "Target busy: share of the whole time in which the target runs a pass or a prefill.",
        )
        for task, records in tasks.items():
            for _, arm, _ in answers({task: records}, arms):
                reference = arm == self.baseline
                equal = "reference" if reference else str(token_equality(records, arm, self.baseline))
                speedups = [None, None] if reference else both_speedups(records, arm, self.baseline)
                table.rows.append([task, depth_of(task), arm, *speedups, *paces(records, arm), equal])
            theirs = [{"depth": depth_of(task), **row} for row in self.published if row["task"] == task]
            add_rows(table, theirs, BY_TASK)
        return table

    def _draw(self, tasks: Tasks, arms: Sequence[str]) -> Figure:
        """One panel a task; arms and published methods are rows of all panels."""
        own = [arm for arm in arms if arm != self.baseline]
        labels = [*own, *dict.fromkeys(map(label_of, self.published))]
        title = "Trees of thought: speedup over plain decoding"
        width, height = 2.8 + 3.1 * len(tasks), 1.5 + 0.29 * len(labels)
        figure, [panels] = new_figure(width, height, title, 1, len(tasks), sharex=True, sharey=True)
        for axes, (task, records) in zip(panels, tasks.items(), strict=True):
            for place, arm in enumerate(own):
                if answered(records, arm):
                    _draw_arm(axes, place, both_speedups(records, arm, self.baseline))
            for row in self.published:
                if row["task"] == task and "speedup" in row:
                    place, ratio = labels.index(label_of(row)), row["speedup"]
                    axes.plot(ratio, place, "o", mfc="none", color=DIM, ms=5, label="published")
                    axes.text(ratio, place, f"  {ratio:.2f}x", va="center", fontsize=8, color=DIM)
            axes.axvline(1, color=INK, lw=0.8, ls=":")
            axes.margins(x=0.2)
            label(axes, title=task, grid="x")
        name_rows(panels[0], labels)
        axis = "times as fast as plain decoding, per token, with 95 % intervals"
        label(panels[len(panels) // 2], axis)
        found = (zip(*axes.get_legend_handles_labels(), strict=True) for axes in panels)
        known = {name: handle for panel in found for handle, name in panel}
        shown = sorted(known)  # decoding, end to end, published
        legend_below(figure, 3, [known[name] for name in shown], shown)
        return figure


def _draw_arm(axes: Axes, place: int, speedups: Sequence[Speedup]) -> None:
    text: dict[str, Any] = {"va": "center", "fontsize": 8}
    if any(speedup.refused for speedup in speedups):
        axes.text(1.0, place, " refused", color=ORANGE, **text)
        return
    looks = ((-0.15, BLUE, "end to end"), (0.15, ORANGE, "decoding, prefills apart"))
    style: dict[str, Any] = {"marker": "o", "ms": 4, "capsize": 2, "lw": 1.2, "ls": "none"}
    for speedup, (aside, colour, name) in zip(speedups, looks, strict=True):
        draw_speedups(axes, [place + aside], [speedup], upright=False, color=colour, label=name, **style)
    end = max(speedup.high for speedup in speedups)
    axes.text(end, place, f"  {speedups[0].ratio:.2f}x", color=INK, **text)


def _drafts(tasks: Tasks, arms: Sequence[str]) -> Table:
    table = table_of(
        "What is drafted for trees of thought",
        "task | arm | nodes/step:.1 | accepted/step | accepted / drafted:.1% | draft passes/step | overlapped:.1%",
        "Accepted / drafted: of all nodes fed to the target. In a chain that is the paper's alpha up to drafts "
        "behind a rejected one; of a tree, siblings of the accepted node count as rejected.",
        "Overlapped: share of the target's busy time in which a drafter worked too.",
    )
    for task, arm, good in answers(tasks, arms):
        summary = summarise(good, arm)
        accepted = over(sum(record.accepted_drafts for record in good), sum(record.steps for record in good))
        groups = [record.group for record in good if record.group is not None]
        overlapped = sum(group.overlap_seconds for group in groups)
        hidden = over(overlapped, sum(group.busy_seconds for group in groups))
        shares = [accepted, summary.utilisation, summary.draft_passes_per_step, hidden]
        table.rows.append([task, arm, summary.nodes_per_step, *shares])
    return table


def _answers(tasks: Tasks, arms: Sequence[str]) -> Table:
    table = table_of(
        "Answers by task",
        "task | arm | items | failed | correct | accuracy:.1% | sequences/item:.1 | evaluations unparsable",
        "An evaluation that cannot be read is counted, and gives its state the lowest value.",
    )
    for task, records in tasks.items():
        for arm in arms:
            own = [record for record in records if record.arm == arm]
            if not own:
                continue
            groups = [record.group for record in own if record.group is not None]
            judged = [group.correct for group in groups if group.correct is not None]
            correct = [sum(judged), over(sum(judged), len(judged))] if judged else [None, None]
            sequences = over(sum(group.sequences for group in groups), len(groups))
            failed = sum(record.error is not None for record in own)
            unparsable = sum(group.unparsable for group in groups)
            table.rows.append([task, arm, len(own), failed, *correct, sequences, unparsable])
    return table


def depth_of(task: str) -> int | None:
    """Depth of a task's tree of thoughts by the task's name; None for other data."""
    found = list(Task.__subclasses__())
    for known in found:
        found += known.__subclasses__()
        if getattr(known, "name", None) == task:
            return known.depth
    return None


def by_task(records: Sequence[PromptRecord]) -> dict[str, list[PromptRecord]]:
    """Records by task, in the order in which tasks appear."""
    return {task: [record for record in records if record.category == task] for task in categories(records)}


class Roles(MultiSequenceAnalysis):
    """Each component of a search: its sequences, acceptance and speedup over plain decoding, in its own decode seconds
    per token and with its prefills, paired item by item.

    Alpha is the share of drafted *positions* that are accepted: a tree of depth three drafts three, whatever its width.

    Args:
        published: Rows of a paper's table: ``role`` (``generator`` or ``evaluator``), ``method``, and any of
            ``acceptance`` (alpha) and ``speedup`` over plain decoding.
    """

    name: ClassVar[str] = "roles"

    def __init__(self, published: list[Row] | None = None) -> None:
        super().__init__()
        self.published = check_rows(published, ["speedup", "acceptance"], ["role", "method"])

    @override
    def report(self, records: Sequence[PromptRecord]) -> Report:
        arms, tasks = arm_names(records), by_task(records)
        whole = self._table("The components of a search", {"": records}, arms)
        add_rows(whole, [row for row in self.published if row["role"] not in _roles(records)], BY_ROLE)
        tables = {self.name: whole}
        if len(tasks) > 1:
            title = "The components of a search by task"
            tables[f"{self.name}_by_task"] = self._table(title, tasks, arms)
        return Report(tables)

    def _table(self, title: str, tasks: Tasks, arms: Sequence[str]) -> Table:
        named = "" not in tasks
        table = table_of(
            title,
            f"{'task | ' if named else ''}component | arm | sequences | tokens | tokens/step | accepted/step"
            f" | alpha:.1% | decoding vs {self.baseline}:interval | with prefills:interval",
            "Seconds per token of the component's own runs, paired item by item, geometric mean, 95 % bootstrap "
            "interval; alpha: accepted tokens of the drafted positions, whatever a tree's width.",
        )
        for task, records in tasks.items():
            for role in _roles(records):
                for arm in arms:
                    if counts := _counts(records, arm, role):
                        cells: list[Cell] = [role, arm, *counts, None, None]
                        if arm != self.baseline:
                            costs = (_cost(role, prefills) for prefills in (False, True))
                            cells[-2:] = [
                                paired_speedup(records, arm, self.baseline, cost=cost) for cost in costs
                            ]
                        table.rows.append([task, *cells] if named else cells)
                if not named:
                    add_rows(table, [row for row in self.published if row["role"] == role], BY_ROLE)
        return table


def _roles(records: Sequence[PromptRecord]) -> list[str]:
    """Components in the order in which they appear."""
    return list(dict.fromkeys(role for record in records if record.group for role in record.group.roles))


def _counts(records: Sequence[PromptRecord], arm: str, role: str) -> list[Cell]:
    """Sequences, tokens, tokens and accepted drafts per step, and acceptance; empty without a sequence."""
    groups = [record.group for record in answered(records, arm) if record.group is not None]
    found = [group.roles[role] for group in groups if role in group.roles]
    names = ("sequences", "tokens", "steps", "accepted_drafts", "drafted_positions")
    sequences, tokens, steps, accepted, drafted = (sum(getattr(one, name) for one in found) for name in names)
    if not sequences:
        return []
    a_step = over(accepted, steps) if drafted else None
    return [sequences, tokens, over(tokens, steps), a_step, over(accepted, drafted)]


def _cost(role: str, prefills: bool) -> Callable[[PromptRecord], float | None]:
    """Seconds per token of a component."""

    def cost(record: PromptRecord) -> float | None:
        own = record.group.roles.get(role) if record.group else None
        if own is None:
            return None
        return over(own.decode_seconds + (own.prefill_seconds if prefills else 0.0), own.tokens)

    return cost


def setting_of(title: str) -> tuple[str, int | None, int | None]:
    """The title of an arm of a grid without ``n`` and ``verify_batch``, and these two; None where the title has none.

    Example:
        >>> setting_of("SEED, n=4, verify_batch=2")
        ('SEED', 4, 2)
    """
    found = {name: int(value) for name, value in _SETTING.findall(title)}
    return _SETTING.sub("", title).strip(" ,"), found.get("n"), found.get("verify_batch")


class Scaling(MultiSequenceAnalysis):
    """Curves over ``n``, one for each ``verify_batch``, of arms whose titles have ``n=3``, as those of a grid over
    ``execution.init_args.n``; other arms are horizontal lines.
    """

    name: ClassVar[str] = "scaling"
    _arms: Sequence[str]

    @override
    def begin(self, arms: Mapping[str, Parts]) -> None:
        super().begin(arms)
        self._arms = list(arms)

    @override
    def report(self, records: Sequence[PromptRecord]) -> Report:
        table = table_of(
            "Sequences at a time",
            f"arm | n | verify_batch | end to end vs {self.baseline}:interval | decoding:interval | tokens/s:.0"
            " | tokens/step | target busy:.1% | draft weights:.1 MB | draft caches:.1 MB",
            "Seconds per token, paired prompt by prompt, geometric mean, 95 % bootstrap interval. Decoding: "
            "without prefills and search; tokens/s are end to end.",
            "MB (10^6 bytes) that the draft models' weights and KV caches take, at most.",
        )
        curves: dict[str, list[tuple[int, str]]] = {}
        across = []
        for arm in self._arms:
            cells: list[Cell] = [None] * 7
            group, n, batch = setting_of(arm)
            if answered(records, arm):
                cells = (
                    [None, None] if arm == self.baseline else [*both_speedups(records, arm, self.baseline)]
                )
                cells += [*paces(records, arm), *_megabytes(records, arm)]
                if n is not None:
                    batched = "" if batch is None else f"verify_batch={batch}"
                    curve = ", ".join(filter(None, (group, batched))) or "all arms with n"
                    curves.setdefault(curve, []).append((n, arm))
                elif arm != self.baseline:
                    across.append(arm)
            table.rows.append([group, n, batch, *cells])
        return report_of(self, table, self._draw(records, curves, across) if curves else None)

    def _draw(
        self,
        records: Sequence[PromptRecord],
        curves: Mapping[str, list[tuple[int, str]]],
        across: Sequence[str],
    ) -> Figure:
        title = "Sequences at a time: speedup over plain decoding"
        figure, grid = new_figure(8.5, 8.0, title, 3, 1, sharex=True, height_ratios=[3, 2, 1.4])
        top, middle, bottom = (row[0] for row in grid)
        looks = zip(cycle(COLOURS), cycle("os^Dvp"), strict=False)
        for number, (name, (colour, marker)) in enumerate(zip(curves, looks, strict=False)):
            aside = 0.05 * (number - (len(curves) - 1) / 2)  # intervals at the same n would hide each other
            style: dict[str, Any] = {"color": colour, "marker": marker, "ms": 5, "lw": 1.4}
            ordered = [(n + aside, arm) for n, arm in sorted(curves[name])]
            speedups = [(place, end_to_end(records, arm, self.baseline)) for place, arm in ordered]
            if given := [(place, speedup) for place, speedup in speedups if not speedup.refused]:
                draw_speedups(top, *map(list, zip(*given, strict=True)), capsize=2, label=name, **style)
            shares = [(place, busy_share(answered(records, arm))) for place, arm in ordered]
            if busy := [(place, 100 * share) for place, share in shares if share is not None]:
                middle.plot(*zip(*busy, strict=True), **style)
        for arm, dashes in zip(across, cycle(DASHES), strict=False):
            speedup, share = end_to_end(records, arm, self.baseline), busy_share(answered(records, arm))
            line: dict[str, Any] = {"color": INK, "lw": 1.1, "ls": (0, dashes)}
            if not speedup.refused:
                top.axhline(speedup.ratio, label=arm, **line)
                if share is not None:
                    middle.axhline(100 * share, **line)
        points = [point for own in curves.values() for point in own]
        top.axhline(1, color=INK, lw=0.8, ls=":")
        _draw_memory(bottom, records, points)
        label(top, y="speedup, end to end", grid="y")
        label(middle, y="target busy (%)", low=0, high=103, grid="y")
        ticks = sorted({n for n, _ in points})
        bottom.set_xticks(ticks, [str(n) for n in ticks])
        rule(bottom)
        legend_below(figure, 3)
        return figure


def _draw_memory(axes: Axes, records: Sequence[PromptRecord], points: Sequence[tuple[int, str]]) -> None:
    """The most memory that drafting takes at each n."""
    known: dict[int, tuple[float, float]] = {}
    for n, arm in points:
        weights, caches = _megabytes(records, arm)
        if weights is not None and caches is not None:
            known[n] = max(known.get(n, (0.0, 0.0)), (weights, caches), key=sum)
    of_weights, of_caches = ([one[place] for one in known.values()] for place in range(2))
    axes.bar(list(known), of_weights, 0.3, color=GREY, label="draft weights" if known else None)
    axes.bar(list(known), of_caches, 0.3, of_weights, color=DIM, label="draft caches" if known else None)
    label(axes, "n: sequences that draft at a time", "draft MB")


def _megabytes(records: Sequence[PromptRecord], arm: str) -> list[float | None]:
    """The most that weights and caches of the draft models took; None if unknown."""
    groups = [record.group.draft_bytes for record in answered(records, arm) if record.group is not None]
    kinds = ("weights", "caches")
    return [max((one[kind] / 1e6 for one in groups if one.get(kind)), default=None) for kind in kinds]
