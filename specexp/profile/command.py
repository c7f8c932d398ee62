"""``python -m specexp.profile CONFIG.yaml [--key value]``: what steps cost on this device, as a ``latency-profile``.

Writes the artifact and ``<output>/<name>/{config.yaml,environment.json,profile.md,profile.csv,profile.png}``; a second
run of the same name replaces the latter and adds a version of the artifact. Several backends have an artifact each, and
the folder has ``{check,steps,ratios,passes}.{md,csv}``, ``points.csv`` and ``contest.png``.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from specexp.config import Config, save_resolved
from specexp.config.command import fail, run_command
from specexp.config.config import recording_folder
from specexp.config.here import check_here
from specexp.config.next_step import command_line, experiment_again, measured_by
from specexp.config.told import told
from specexp.profile.run import check_profiling

if TYPE_CHECKING:
    from specexp.artifacts.kinds.latency_profile import Measured
    from specexp.config.artifacts import LoadedArtifact
    from specexp.models.pair import ModelPair
    from specexp.profile.check import LiveCheck

USAGE = """usage: python -m specexp.profile CONFIG.yaml [--dry-run] [--key value ...]

Measures on this device the passes of an experiment's models by new tokens and by prefix, decodes a few prompts with
each of its compositions to find what steps cost beside the passes, and writes a latency-profile artifact to profile.to
after a check against live decoding, plain and with two trees;
of profile.backends, measured in turns, one of each in profile.to/BACKEND, and tables of them beside one another.
--dry-run checks the file and lists what would be measured; any other --dotted.key overrides the file,
e.g. --profile.max_tokens 64 --profile.repeats 10 --pair.device cuda --tracking.mode disabled."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return run_command(USAGE, arguments, _act)


def _act(config: Config, dry_run: bool) -> int:
    from specexp.artifacts import ArtifactError

    arms = check_profiling(config)
    check_here(config, "profile.to")
    if dry_run:
        from specexp.bench.live import LiveBackend
        from specexp.bench.rehearsal import rehearse
        from specexp.profile.backends import check_prefixes, pair_of
        from specexp.profile.passes import sizes_up_to

        check_prefixes(config, LiveBackend(pair_of(config, rehearse(config).pair)))

        section = config.get("profile")
        print(f"new tokens: {', '.join(map(str, sizes_up_to(section['max_tokens'])))}")
        print(f"prefixes: {', '.join(map(str, section['prefixes']))}")
        if section["backends"]:
            print(f"backends in turns: {', '.join(section['backends'])}")
        print("plain decoding", *(arm.title for arm in arms), sep="\n")
        return 0
    try:
        run(config)
    except ArtifactError as error:
        return fail(error, 1)
    return 0


def run(config: Config, pair: ModelPair | None = None) -> list[LoadedArtifact]:
    """Measure, print the tables, and write an artifact a backend and the folder.

    Args:
        config: Configuration of the experiment.
        pair: Models loaded already; the file's own if None.

    Raises:
        ConfigError: the file, its models, data or output folder cannot be used; nothing was measured then.
        ArtifactError: the artifact cannot be written.
        OSError: the folder cannot be written, because the disk is full.
    """
    from specexp.bench.experiment import load_prompts, use_threads
    from specexp.bench.publish import publish, terminal, tracker_of
    from specexp.bench.trainer import quiet_libraries
    from specexp.config.artifacts import save_artifact
    from specexp.profile.backends import contest, pair_of
    from specexp.profile.check import check_live
    from specexp.profile.report import report
    from specexp.profile.run import measure, profile_of
    from specexp.profile.standing import standing

    quiet_libraries()
    check_profiling(config)
    use_threads(config)
    pair = pair or pair_of(config)
    section, name = config.get("profile"), config.get("name")
    prompts = load_prompts(config, pair).prompts[: section["prompts"]]
    folder, console = Path(config.get("output")) / name, terminal()

    def tell(line: str) -> None:
        console.print(line, style="dim")

    with TemporaryDirectory(prefix="specexp-") as made:
        met = contest(config, pair, prompts, Path(made), tell)
        save_resolved(config, folder)
        measure(config, met, prompts, tell)
    artifacts, checks = [], []
    for timed in met.backends:
        profile, measured = profile_of(timed)
        own = check_live(timed, profile, prompts, section["max_new_tokens"])
        checks += own
        artifact = save_artifact(
            Path(section["to"]) / timed.name,
            "latency-profile",
            {"profile.json": {**profile.to_dict(), "measured": asdict(measured)}},
            provenance={
                "study": name,
                "command": shlex.join(sys.orig_argv),
                "device": measured.device,
                "config": config.to_dict(),
                "metrics": metrics_of(measured, own),
            },
            fingerprint=timed.backend.fingerprint(),
            name=f"{name}_{timed.name}" if timed.name else name,
        )
        artifacts.append(artifact)
    several = bool(section["backends"])
    found = standing(met, checks, artifacts) if several else report(profile, measured, checks, artifacts[0])
    publish(found, folder, tracker_of(config, name, folder), console, kind="profile", config=config.to_dict())
    told().artifact = str(artifacts[0].folder)
    told().next = next_step(config, artifacts[0].folder)
    return artifacts


def next_step(config: Config, profile: Path) -> str:
    """The experiment by these seconds: replayed where its answers are recorded, otherwise with the models."""
    recording = recording_folder(config)
    changed: dict[str, Any] = {"latency": {"artifact": str(profile)}}
    replayed = recording.is_dir()
    if replayed:
        changed |= {"backend": "replay", "recording": str(recording)}
    why = "decodes without the models" if replayed else "in the seconds of this device"
    return command_line(measured_by(config), *experiment_again(config, changed), why=why)


def metrics_of(measured: Measured, checks: Sequence[LiveCheck]) -> dict[str, Any]:
    """A pass of each model over one token behind the shortest prefix, and the largest errors of predictions."""
    found: dict[str, Any] = {}
    for model, points in (("target", measured.target), ("draft", measured.draft)):
        if points:
            found[f"{model}_pass_ms"] = {
                "value": points[0].ms,
                "low": points[0].low,
                "high": points[0].high,
            }
    errors = [abs(arm.predicted_ms / arm.measured_ms - 1) for arm in measured.arms]
    found["largest_error_live"] = max(check.error for check in checks)
    return found | ({"largest_error_in_sample": max(errors)} if errors else {})
