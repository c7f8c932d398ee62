"""``python -m specexp.what_if CONFIG.yaml [--key value]``: one recording, many devices, the best tree of each.

Writes ``<output>/<name>/{config.yaml,what_if.md,what_if.csv,cross.csv,trees.json,trees.png,budgets.png}``; a second run
of the same name replaces them. No model is loaded.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import count, islice
from pathlib import Path
from string import ascii_uppercase
from typing import TYPE_CHECKING

import numpy as np

from specexp.command import run_command
from specexp.config import Config, ConfigError, save_resolved
from specexp.config.check import Checker
from specexp.config.files import read_layers
from specexp.config.schema import WhatIf
from specexp.latency import LatencyProfile
from specexp.whole_file import write_whole
from specexp.wording import counted, first_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from specexp.composition import Parts
    from specexp.evaluation.statistics import Speedup
    from specexp.evaluation.table import Table
    from specexp.replay.devices import Comparison, Device
    from specexp.replay.ranks import RankTable
    from specexp.replay.recording import Recording
    from specexp.tree import TreeShape

USAGE = """usage: python -m specexp.what_if CONFIG.yaml [--dry-run] [--key value ...]

Replays fixed trees of a draft model's candidates on one recording (python -m specexp.record makes it) with the costs of
several devices, and prints the best tree for each and what it is worth on the others. No model is loaded.
--dry-run checks the file and lists the devices; any other --dotted.key overrides the file,
e.g. --what_if.max_nodes 128 --recording recordings/mine --tracking.mode disabled."""


@dataclass(frozen=True)
class Answer:
    """What was found.

    Attributes:
        comparison: of the devices.
        speedups: over plain decoding, device by device.
        recording: that was replayed.
    """

    comparison: Comparison
    speedups: tuple[Speedup, ...]
    recording: Recording


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return run_command(USAGE, arguments, _act)


def _act(config: Config, dry_run: bool) -> int:
    if dry_run:
        print(*(f"{profile.name} ({profile.source})" for profile in profiles_of(config)), sep="\n")
        return 0
    run(config)
    return 0


def run(config: Config) -> Answer:
    """Compare, print the tables and write the folder.

    Args:
        config: of the file.

    Raises:
        ConfigError: the file cannot be used, or the recording does not hold what it asks for; nothing is written then.
        OSError: the folder cannot be written, because the disk is full.
    """
    found = answer(config)
    report(config, found)
    return found


def profiles_of(config: Config) -> list[LatencyProfile]:
    """The devices, in the order of ``profiles``, then ``files``.

    Raises:
        ConfigError: there is no ``what_if:`` section or no device in it; a profile cannot be made, states no
            ``draft_ms``, or has another one's name.
    """
    if config.get("what_if") is None:
        command = "specexp.sweep" if config.get("sweep") is not None else "specexp.run"
        raise ConfigError(
            f"{config.file} has no what_if: section, so there are no devices to compare; run it with "
            f"python -m {command} {config.file}"
        )
    _check_artifacts(config)
    section: WhatIf = config.checker.build(config.get("what_if"), WhatIf, ("what_if",))
    found = {("profiles", str(number)): profile for number, profile in enumerate(section.profiles)}
    found |= {
        ("files", str(number)): _profile_in(config, path, number) for number, path in enumerate(section.files)
    }
    if not found:
        raise config.checker.error(
            ("what_if",), " names no device; give what_if.profiles, what_if.files, or both"
        )
    names: set[str] = set()
    for key, profile in found.items():
        if not profile.draft_ms:
            raise config.checker.error(
                ("what_if", *key),
                f": latency profile {profile.name!r} states no draft_ms, and trees of a draft model are compared: "
                "state them, or leave the profile out",
            )
        if profile.name in names:
            raise config.checker.error(
                ("what_if", *key), f" is called {profile.name!r} as another one is; give it a name of its own"
            )
        names.add(profile.name)
    return list(found.values())


def answer(config: Config) -> Answer:
    """Replay the candidates with the costs of every device.

    Raises:
        ConfigError: the file cannot be used, or the recording does not hold what it asks for.
    """
    from specexp.config import build_generation, open_recording
    from specexp.latency import composition_label
    from specexp.replay.devices import compare
    from specexp.replay.ranks import RankTable

    profiles = profiles_of(config)
    recording = open_recording(config)
    parts = _parts(config, recording)
    section = config.get("what_if")
    turns = [turn for conversation in recording.turns.values() for turn in conversation]
    limit = recording.manifest.context_limits["target"]
    tokens = build_generation(config).max_new_tokens
    try:
        table = RankTable(turns, tokens, limit)
        comparison = compare(
            table,
            profiles,
            composition=composition_label(parts.drafter, parts.builder),
            max_nodes=section["max_nodes"],
            max_depth=section["max_depth"],
            max_new_tokens=tokens,
            context_limit=limit,
            others=_own_tree(parts),
        )
    except ValueError as error:
        raise ConfigError(f"{config.file}: what_if: {first_line(error)}") from error
    return Answer(comparison, tuple(_speedup(table, device) for device in comparison.devices), recording)


def _check_artifacts(config: Config) -> None:
    """Say how a missing profile is measured."""
    from specexp.artifacts import ArtifactError, load_latency_profile

    for number, given in enumerate(config.get("what_if")["profiles"]):
        try:
            if given.get("artifact"):
                load_latency_profile(given["artifact"])
        except ArtifactError as error:
            raise config.checker.error(
                ("what_if", "profiles", str(number), "artifact"),
                f": {first_line(error)}; python -m specexp.profile experiments/profile.yaml measures this device into "
                "artifacts/profile",
            ) from error


def _profile_in(config: Config, path: str, number: int) -> LatencyProfile:
    layers = read_layers(path)
    if not isinstance(layers.values.get("latency"), dict):
        raise config.checker.error(
            ("what_if", "files", str(number)),
            f" is {path!r}, which has no latency: section; name one such as configs/latency/a100_7b.yaml",
        )
    checker = Checker(lambda key: layers.source_of(key, path))
    values = checker.arguments(LatencyProfile, layers.values["latency"], ("latency",))
    profile: LatencyProfile = checker.call(LatencyProfile, values, ("latency",))
    return profile


def _parts(config: Config, recording: Recording) -> Parts:
    """The file's parts, whose drafter must be the recorded draft model."""
    from specexp.config import build_parts
    from specexp.drafters import DraftModel
    from specexp.evaluation.replay_arm import source_for, source_in

    where = f"{config.source_of(('drafter',))}: drafter"
    if config.get("drafter") is None or config.get("builder") is None:
        raise ConfigError(
            f"{where}: the file has no drafter and builder; what_if compares trees of a draft model's candidates: set "
            "them to DraftModel and, say, Chain"
        )
    source = source_for(recording)
    if source is None:
        raise ConfigError(
            f"{where}: {recording.folder} was recorded without a draft model, and what_if compares trees of its "
            "candidates: record with drafter DraftModel"
        )
    parts = build_parts(config, source)
    if type(parts.drafter) is not DraftModel:
        raise ConfigError(
            f"{where} is {type(parts.drafter).__name__}; what_if compares trees of a draft model's candidates: set it "
            "to DraftModel"
        )
    try:
        source_in(parts)
    except ValueError as error:
        raise ConfigError(f"{where}: {first_line(error)}") from error
    return parts


def _own_tree(parts: Parts) -> dict[str, TreeShape]:
    """The file's own tree, where it is a fixed one."""
    from specexp.builders import StaticTree
    from specexp.replay.fidelity import is_plain_static

    if not is_plain_static(parts):
        return {}
    assert isinstance(parts.builder, StaticTree)
    return {f"configured, {type(parts.builder).__name__}": parts.builder.shape}


def _speedup(table: RankTable, device: Device) -> Speedup:
    """Over plain decoding, prompt by prompt, as of any two arms."""
    from specexp.evaluation.statistics import Speedup, bootstrap_interval

    assert device.counts.seconds is not None
    ratios: dict[str, list[float]] = defaultdict(list)
    logs = np.log(device.plain_seconds / device.counts.seconds).tolist()
    for turn, ratio in zip(table.turns, logs, strict=True):
        ratios[turn.prompt_id].append(ratio)
    by_prompt = np.array([np.mean(values) for values in ratios.values()])
    low, high = np.exp(bootstrap_interval(by_prompt)).tolist()
    mean = float(by_prompt.mean())
    return Speedup(
        device.best.name,
        "plain decoding",
        mean,
        float(np.exp(mean)),
        low,
        high,
        by_prompt.size,
        clock=device.profile.label,
    )


def letters(many: int) -> list[str]:
    """Short names of devices: A, B, ... Z, A1, B1, ..."""
    endless = (letter + (str(turn) if turn else "") for turn in count() for letter in ascii_uppercase)
    return list(islice(endless, many))


def best_table(found: Answer) -> Table:
    """Every device's best tree."""
    from specexp.evaluation.table import Column, Table

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
    from specexp.evaluation.table import Column, Table

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
        f"Best of {counted(len(comparison.trees), 'candidate')} (chains, most-hit trees of every size, Sequoia's), "
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


def pictures(found: Answer) -> dict[str, Figure]:
    """The trees, and the curves of all budgets."""
    from specexp.figures.devices import Panel, draw_budgets, draw_trees

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


def report(config: Config, found: Answer) -> None:
    """Print the tables, write the folder and track the run."""
    from rich.console import Console

    from specexp.tracking import Tracker

    name = config.get("name")
    folder = Path(config.get("output")) / name
    tables = {"what_if": best_table(found), "cross": cross_table(found)}
    console = Console(width=None if sys.stdout.isatty() else 180)
    for table in tables.values():
        console.print(table.to_rich())
    save_resolved(config, folder)
    write_whole(
        folder / "what_if.md",
        f"# {config.get('question') or 'What if'}\n\n"
        + "\n".join(table.to_markdown() for table in tables.values()),
    )
    for stem, table in tables.items():
        write_whole(folder / f"{stem}.csv", table.to_csv())
    trees = {
        device.profile.name: [list(path) for path in device.best.shape.rank_paths[1:]]
        for device in found.comparison.devices
    }
    write_whole(folder / "trees.json", json.dumps(trees, indent=1) + "\n")
    drawn = pictures(found)
    for stem, picture in drawn.items():
        png = BytesIO()
        picture.savefig(png, format="png")
        write_whole(folder / f"{stem}.png", png.getvalue())
    tracker = Tracker(name, folder, **config.get("tracking"))
    with tracker.run(name, job_type="what_if", config=config.to_dict()) as tracked:
        for stem, table in tables.items():
            tracked.table(stem, table.records())
        for stem, picture in drawn.items():
            tracked.picture(stem, picture)
        tracked.summary(
            {
                f"{device.profile.name}/{what}": value
                for device, speedup in zip(found.comparison.devices, found.speedups, strict=True)
                for what, value in (
                    ("nodes", device.best.shape.num_nodes),
                    ("tokens_per_second", device.counts.tokens_per_second),
                    ("speedup", speedup.ratio),
                )
            }
        )
    console.print(f"Tables, trees and pictures are in {folder}", soft_wrap=True)
    if tracker.sync_hint():
        console.print(f"W&B: {tracker.sync_hint()}")


if __name__ == "__main__":
    sys.exit(main())
