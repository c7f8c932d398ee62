"""``python -m specexp.profile CONFIG.yaml [--key value]``: what steps cost on this device, as a ``latency-profile``.

Writes the artifact and ``<output>/<name>/{config.yaml,environment.json,profile.md,profile.csv,profile.png}``; a second
run of the same name replaces the latter and adds a version of the artifact.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specexp.artifacts.atomic_write import write_whole
from specexp.config import Config, save_resolved
from specexp.config.command import fail, run_command
from specexp.profile.run import check_profiling

if TYPE_CHECKING:
    from rich.console import Console

    from specexp.artifacts.kinds.latency_profile import Measured
    from specexp.config.artifacts import LoadedArtifact
    from specexp.core.latency import LatencyProfile
    from specexp.pairs.pair import ModelPair

USAGE = """usage: python -m specexp.profile CONFIG.yaml [--dry-run] [--key value ...]

Measures on this device the passes of an experiment's models by new tokens and by prefix, decodes a few prompts with
each of its compositions to find what steps cost beside the passes, and writes a latency-profile artifact to profile.to.
--dry-run checks the file and lists what would be measured; any other --dotted.key overrides the file,
e.g. --profile.max_tokens 64 --profile.repeats 10 --pair.device cuda --tracking.mode disabled."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return run_command(USAGE, arguments, _act)


def _act(config: Config, dry_run: bool) -> int:
    from specexp.artifacts import ArtifactError

    arms = check_profiling(config)
    if dry_run:
        from specexp.profile.passes import sizes_up_to

        section = config.get("profile")
        print(f"new tokens: {', '.join(map(str, sizes_up_to(section['max_tokens'])))}")
        print(f"prefixes: {', '.join(map(str, section['prefixes']))}")
        print("plain decoding", *(arm.title for arm in arms), sep="\n")
        return 0
    try:
        run(config)
    except ArtifactError as error:
        return fail(error, 1)
    return 0


def run(config: Config, pair: ModelPair | None = None) -> LoadedArtifact:
    """Measure, print the tables, and write the artifact and the folder.

    Args:
        config: of the file.
        pair: models loaded already; the file's own if None.

    Raises:
        ConfigError: the file, its models, data or output folder cannot be used; nothing was measured then.
        ArtifactError: the artifact cannot be written.
        OSError: the folder cannot be written, because the disk is full.
    """
    from rich.console import Console

    from specexp.artifacts import fingerprint
    from specexp.bench.experiment import load_prompts
    from specexp.bench.trainer import quiet_libraries
    from specexp.config import build_pair
    from specexp.config.artifacts import save_artifact
    from specexp.profile.run import measure

    quiet_libraries()
    check_profiling(config)
    pair = pair or build_pair(config)
    section, name = config.get("profile"), config.get("name")
    prompts = load_prompts(config, pair).prompts[: section["prompts"]]
    folder = Path(config.get("output")) / name
    save_resolved(config, folder)
    console = Console(width=None if sys.stdout.isatty() else 160)
    profile, measured = measure(config, pair, prompts, lambda line: console.print(line, style="dim"))
    artifact = save_artifact(
        section["to"],
        "latency-profile",
        {"profile.json": {**profile.to_dict(), "measured": asdict(measured)}},
        provenance={
            "study": name,
            "command": shlex.join(sys.orig_argv),
            "device": measured.device,
            "config": config.to_dict(),
            "metrics": metrics_of(measured),
        },
        fingerprint=fingerprint(pair.target, pair.tokenizer),
        name=name,
    )
    report(config, profile, measured, artifact, console)
    return artifact


def metrics_of(measured: Measured) -> dict[str, Any]:
    """A pass of each model over one token behind the shortest prefix, and how far predictions are off."""
    found: dict[str, Any] = {}
    for model, points in (("target", measured.target), ("draft", measured.draft)):
        if points:
            found[f"{model}_pass_ms"] = {
                "value": points[0].ms,
                "low": points[0].low,
                "high": points[0].high,
            }
    errors = [abs(arm.predicted_ms / arm.measured_ms - 1) for arm in measured.arms]
    return found | ({"largest_error_in_sample": max(errors)} if errors else {})


def report(
    config: Config, profile: LatencyProfile, measured: Measured, artifact: LoadedArtifact, console: Console
) -> None:
    """Print the tables, write them and the picture, and track the run.

    Args:
        config: of the file.
        profile: as fitted.
        measured: what it was fitted to.
        artifact: as written.
        console: to print to.
    """
    from specexp.profile.figures import draw
    from specexp.profile.report import points_table, tables
    from specexp.tracking import Tracker

    name = config.get("name")
    folder = Path(config.get("output")) / name
    shown = tables(profile, measured)
    for table in shown:
        console.print(table.to_rich())  # first: a full disk does not keep it from a person
    title = f"# Latency profile: {profile.name}\n\n"
    write_whole(folder / "profile.md", title + "\n".join(table.to_markdown() for table in shown))
    write_whole(folder / "profile.csv", points_table(measured).to_csv())
    picture, png = draw(profile, measured), BytesIO()
    picture.savefig(png, format="png")
    write_whole(folder / "profile.png", png.getvalue())
    tracker = Tracker(name, folder, **config.get("tracking"))
    with tracker.run(name, job_type="profile", config=config.to_dict()) as tracked:
        tracked.table("passes", points_table(measured).records())
        tracked.table("beside_the_passes", shown[1].records())
        tracked.table("predicted_and_measured", shown[2].records())
        tracked.picture("profile", picture)
        tracked.summary(
            {
                key: value["value"] if isinstance(value, dict) else value
                for key, value in artifact.metrics.items()
            }
        )
        tracked.artifact(artifact.folder, artifact.name, artifact.kind)
    console.print(f"The profile is in {artifact.folder}, tables and picture in {folder}", soft_wrap=True)
    if tracker.sync_hint():
        console.print(f"W&B: {tracker.sync_hint()}")


if __name__ == "__main__":
    sys.exit(main())
