"""``python -m specexp.why CONFIG.yaml [--key value]``: where speculation loses time here, and what would change it.

Writes ``<output>/<name>/why/{config.yaml,why.md,settings_all.csv,report.html}``; a second run of the same name replaces
them.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from specexp.config import Config, ConfigError, apply_overrides, is_replayed, save_resolved
from specexp.config.command import run_command
from specexp.config.here import check_here
from specexp.config.next_step import command_line, experiment_again, init_options
from specexp.config.told import told
from specexp.replay.why.answer import check_explained

if TYPE_CHECKING:
    from specexp.replay.why.answer import Explained

USAGE = """usage: python -m specexp.why CONFIG.yaml [--dry-run] [--key value ...]

Explains the time of one composition: acceptance by position, the cost of a pass by its width, the draft's share, what
is beside the passes and, where the profile has lanes, load; each with the setting that would change it, ranked by what
it would bring by replay on the same prompts. A file with backend: replay is explained from its recording and profile;
of another one python -m specexp.profile and python -m specexp.record are run first, into <output>/<name>/why.
--dry-run checks the file and says what it would be explained from; any other --dotted.key overrides the file,
e.g. --data.max_prompts 8 --builder.init_args.length 6 --tracking.mode disabled."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return run_command(USAGE, arguments, _act)


def _act(config: Config, dry_run: bool) -> int:
    check_explained(config)
    check_here(config)
    if dry_run:
        made = "a profile and a recording that are made first"
        if is_replayed(config):
            from specexp.replay.backend import open_replay

            open_replay(config)
            made = "its recording"
        print(f"{config.get('name')}, from {made}")
        return 0
    found = run(config)
    best = found.settings[0]
    if best.over_now.is_faster:
        changed = {**({"backend": "live"} if is_replayed(config) else {}), **best.overrides}
        told().next = command_line(
            "run", *experiment_again(config, changed), why="says what it is worth with models"
        )
    elif config.get("sweep") is not None:
        told().next = command_line("sweep", *experiment_again(config), why="searches further away")
    else:
        told().next = command_line("init", "my-study", *init_options(config), why="searches further away")
    return 0


def run(config: Config) -> Explained:
    """Explain, print the tables and write the folder.

    Args:
        config: The experiment file.

    Raises:
        ConfigError: The file cannot be used, the profile or the recording cannot be made, or the recording does not
            hold what it asks for.
        OSError: The folder cannot be written, because the disk is full.
    """
    from specexp.bench.publish import publish, terminal, tracker_of
    from specexp.replay.why.answer import explain
    from specexp.replay.why.report import report

    folder = Path(config.get("output")) / config.get("name") / "why"
    save_resolved(config, folder)
    if not is_replayed(config):
        config = _measured(config, folder)
    found = explain(config)
    shown = report(found, config.get("question") or f"Where does {config.get('name')} lose time?")
    publish(
        shown,
        folder,
        tracker_of(config, config.get("name"), folder),
        terminal(180),
        kind="why",
        config=config.to_dict(),
    )
    return found


def _measured(config: Config, folder: Path) -> Config:
    """The experiment with a profile of this device and a recording of these prompts, which two other commands make."""
    profile, recording = folder / "profile", folder / "recording"
    given = [str(folder / "config.yaml"), "--tracking.mode", "disabled", "--sweep", "null"]
    commands = (
        ["specexp.profile", *given, "--profile.to", str(profile), "--output", str(folder)],
        ["specexp.record", *given, "--record.to", str(recording), "--output", str(folder)],
    )
    for command in commands:
        done = subprocess.run([sys.executable, "-m", *command], check=False)
        if done.returncode:
            raise ConfigError(
                f"python -m {' '.join(command)} ended with {done.returncode}, so nothing can be explained"
            )
    overrides = {
        "backend": "replay",
        "recording": str(recording),
        "latency": {"artifact": str(profile / "best")},
        "sweep": None,
    }
    return apply_overrides(config, overrides, "why")
