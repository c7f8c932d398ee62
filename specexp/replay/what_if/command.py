"""``python -m specexp.what_if CONFIG.yaml [--key value]``: one recording, many devices, the best tree of each.

Writes ``<output>/<name>/{config.yaml,what_if.md,what_if.csv,cross.csv,trees.json,trees.png,budgets.png}``; a second run
of the same name replaces them. No model is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from specexp.config import Config, save_resolved
from specexp.config.command import run_command
from specexp.config.here import check_here
from specexp.config.told import told

if TYPE_CHECKING:
    from specexp.replay.what_if.answer import Answer

USAGE = """usage: python -m specexp.what_if CONFIG.yaml [--dry-run] [--key value ...]

Replays fixed trees of a draft model's candidates on one recording (python -m specexp.record makes it) with the costs of
several devices, and prints the best tree for each and what it is worth on the others. All prompts of the recording
count, whatever data: says. No model is loaded.
--dry-run checks the file and lists the devices; any other --dotted.key overrides the file,
e.g. --what_if.max_nodes 128 --recording recordings/mine --tracking.mode disabled."""

_WIDTH = 180
"""Characters of a line where the output is no terminal: the tables have many columns."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return run_command(USAGE, arguments, _act)


def _act(config: Config, dry_run: bool) -> int:
    check_here(config)
    if dry_run:
        from specexp.replay.configured import open_recording
        from specexp.replay.what_if.answer import profiles_of

        open_recording(config)

        print(*(f"{profile.name} ({profile.source})" for profile in profiles_of(config)), sep="\n")
    else:
        run(config)
    return 0


def run(config: Config) -> Answer:
    """Compare, print the tables, write the folder and track the run.

    Args:
        config: The experiment file.

    Raises:
        ConfigError: The file cannot be used, or the recording does not hold what it asks for; nothing is written then.
        OSError: The folder cannot be written, because the disk is full.
    """
    from specexp.bench.publish import publish, terminal, tracker_of
    from specexp.replay.what_if.answer import answer
    from specexp.replay.what_if.report import report

    found = answer(config)
    name = config.get("name")
    folder = Path(config.get("output")) / name
    save_resolved(config, folder)
    tracker = tracker_of(config, name, folder)
    title = config.get("question") or "What if"
    publish(report(found, title), folder, tracker, terminal(_WIDTH), kind="what_if", config=config.to_dict())
    told().next = (
        f"run the tree of a device ({folder / 'trees.json'}) with models on such a device, to confirm it"
    )
    return found
