"""Best trees of several devices as tables, pictures and files."""

from __future__ import annotations

import json
from itertools import count, islice
from string import ascii_uppercase
from typing import TYPE_CHECKING

from specexp.bench.publish import Report
from specexp.bench.table import Column, Table
from specexp.core.messages import counted
from specexp.replay.what_if.devices_picture import Panel, draw_budgets, draw_trees

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from specexp.replay.what_if.answer import Answer
    from specexp.replay.what_if.devices import Comparison


def report(found: Answer, title: str) -> Report:
    """All that is printed, written and tracked.

    Args:
        found: What was compared.
        title: Heading of the page.
    """
    devices = found.comparison.devices
    tables = {"what_if": best_table(found), "cross": cross_table(found)}
    trees = {
        device.profile.name: [list(path) for path in device.best.shape.rank_paths[1:]] for device in devices
    }
    summary = {
        f"{device.profile.name}/{what}": value
        for device, speedup in zip(devices, found.speedups, strict=True)
        for what, value in (
            ("nodes", device.best.shape.num_nodes),
            ("tokens_per_second", device.counts.tokens_per_second),
            ("speedup", speedup.ratio),
        )
    }
    return Report(
        tables,
        figures=_pictures(found),
        files={"trees.json": json.dumps(trees, indent=1) + "\n"},
        data=tables,
        summary=summary,
        title=title,
        answer="; ".join(
            f"{device.profile.name}: {counted(device.best.shape.num_nodes, 'node')} give {speedup} of plain decoding"
            for device, speedup in zip(devices, found.speedups, strict=True)
        ),
        page="what_if",
    )


def _pictures(found: Answer) -> dict[str, Figure]:
    """The trees, and the curves of all budgets."""
    comparison = found.comparison
    panels = [
        Panel(
            device.best.shape,
            f"{letter}: {device.profile.name}",
            f"{counted(device.best.shape.num_nodes, 'node')}, depth {device.best.shape.max_depth}\n"
            f"{device.counts.tokens_per_step:.2f} tokens/step, {speedup.ratio:.2f}x plain decoding",
        )
        for letter, device, speedup in zip(
            letters(len(comparison.devices)), comparison.devices, found.speedups, strict=True
        )
    ]
    return {
        "trees": draw_trees(panels, comparison.hit_rates, "The best tree for each device"),
        "budgets": draw_budgets(comparison),
    }


def letters(many: int) -> list[str]:
    """Short names of devices: A, B, ... Z, A1, B1, ..."""
    endless = (letter + (str(turn) if turn else "") for turn in count() for letter in ascii_uppercase)
    return list(islice(endless, many))


def best_table(found: Answer) -> Table:
    """Every device's best tree."""
    columns = [
        Column("device"),
        Column("target pass of 1 token", 2, " ms"),
        Column("of root and tree", 2, " ms"),
        Column("draft pass", 2, " ms"),
        Column("best tree"),
        Column("nodes"),
        Column("depth"),
        Column("tokens/step"),
        Column("tokens/s", 1),
        Column("plain tokens/s", 1),
        Column("speedup (modelled)", interval=True),
    ]
    table = Table("The best tree for each device", columns)
    devices = found.comparison.devices
    for letter, device, speedup in zip(letters(len(devices)), devices, found.speedups, strict=True):
        profile, shape = device.profile, device.best.shape
        table.rows.append(
            [
                f"{letter}: {profile.name} ({profile.source})",
                1e3 * profile.target_seconds(1),
                1e3 * profile.target_seconds(shape.num_nodes + 1),
                1e3 * profile.draft_seconds(1),
                device.best.name,
                shape.num_nodes,
                shape.max_depth,
                device.counts.tokens_per_step,
                device.counts.tokens_per_second,
                device.plain_goodput,
                speedup,
            ]
        )
    table.notes += _notes(found)
    return table


def cross_table(found: Answer) -> Table:
    """What every device's best tree is worth on all of them."""
    devices = found.comparison.devices
    names = letters(len(devices))
    table = Table(
        "Each best tree on every device: share of the goodput of that device's best",
        [Column("tree"), Column("nodes"), *(Column(f"on {letter}", 1, "%") for letter in names)],
    )
    for letter, device in zip(names, devices, strict=True):
        shares = found.comparison.shares(device.best)
        table.rows.append([f"best for {letter} ({device.best.name})", device.best.shape.num_nodes, *shares])
    for tree in found.comparison.trees:
        if tree.name.startswith("configured") and all(tree is not device.best for device in devices):
            table.rows.append([tree.name, tree.shape.num_nodes, *found.comparison.shares(tree)])
    table.rows.append(["plain decoding", 0, *found.comparison.plain_shares()])
    worst = _worst(found.comparison)
    if worst is not None:
        share, of, place = worst
        table.notes.append(
            f"One tree does not fit all: the best for {names[of]} keeps {100 * share:.1f} % of what {names[place]} "
            "can have."
            if share < 0.995
            else "One tree fits all of these devices: each best one keeps more than 99.5 % everywhere."
        )
    return table


def _worst(comparison: Comparison) -> tuple[float, int, int] | None:
    """The lowest share that a device's best tree has on another, with both."""
    shares = [comparison.shares(device.best) for device in comparison.devices]
    found = [
        (share, tree, place)
        for tree, row in enumerate(shares)
        for place, share in enumerate(row)
        if place != tree
    ]
    return min(found, default=None)


def _notes(found: Answer) -> list[str]:
    made_of = found.recording.manifest.made_of["pair"]
    comparison = found.comparison
    prompts = found.speedups[0].n
    notes = [
        f"Which candidate is right comes from one recording ({found.recording.folder}: target {made_of['target']}, "
        f"{counted(prompts, 'prompt')}); only the costs are the device's. What another pair of models would accept is "
        "not known.",
        f"Best of {counted(len(comparison.trees), 'candidate')} (chains, most-hit trees of every size and depth), "
        "chosen and replayed on the same prompts; intervals are over prompts.",
    ]
    assumed = [device.profile.name for device in comparison.devices if device.profile.source != "measured"]
    if assumed:
        notes.append(f"Costs that were not measured: {'; '.join(assumed)}.")
    for device in comparison.devices:
        rows = device.best.shape.num_nodes + 1
        if device.profile.exceeded_by(rows):
            notes.append(
                f"{device.profile.name} states milliseconds of up to "
                f"{counted(device.profile.max_target_tokens, 'token')} and the tree feeds {rows}: its last slope goes "
                "on."
            )
        if device.counts.tokens_per_second < device.plain_goodput:
            notes.append(f"No tree pays on {device.profile.name}: plain decoding is faster.")
    return notes
