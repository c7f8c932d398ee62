"""``python -m specexp.what_if CONFIG.yaml [--key value]``: one recording, many devices, the best tree of each.

Writes ``<output>/<name>/{config.yaml,what_if.md,what_if.csv,cross.csv,trees.json,trees.png,budgets.png}``; a second run
of the same name replaces them. No model is loaded.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from specexp.artifacts.atomic_write import write_whole
from specexp.config import Config, save_resolved
from specexp.config.command import run_command
from specexp.core.messages import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from specexp.what_if.report import Answer

USAGE = """usage: python -m specexp.what_if CONFIG.yaml [--dry-run] [--key value ...]

Replays fixed trees of a draft model's candidates on one recording (python -m specexp.record makes it) with the costs of
several devices, and prints the best tree for each and what it is worth on the others. All prompts of the recording
count, whatever data: says. No model is loaded.
--dry-run checks the file and lists the devices; any other --dotted.key overrides the file,
e.g. --what_if.max_nodes 128 --recording recordings/mine --tracking.mode disabled."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return run_command(USAGE, arguments, _act)


def _act(config: Config, dry_run: bool) -> int:
    if dry_run:
        from specexp.what_if.report import profiles_of

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
    from specexp.what_if.report import answer

    found = answer(config)
    report(config, found)
    return found


def pictures(found: Answer) -> dict[str, Figure]:
    """The trees, and the curves of all budgets."""
    from specexp.what_if.devices_picture import Panel, draw_budgets, draw_trees
    from specexp.what_if.table import letters

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
    from specexp.what_if.table import best_table, cross_table

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
