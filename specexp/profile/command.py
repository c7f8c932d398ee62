"""``python -m specexp.profile CONFIG.yaml [--key value]``: measure a ``latency-profile`` on this device.

Writes the artifact and ``<output>/<name>/{config.yaml,environment.json,profile.md,profile.csv,profile.png}``. A second
run with the same name replaces that folder's files and adds a new version of the artifact.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from specexp.bench.experiment import check_experiment
from specexp.config import Config, arms_of, check_rows
from specexp.config.command import check_here, current_result, fail, run_command
from specexp.config.next_step import command_line, experiment_again

if TYPE_CHECKING:
    from specexp.artifacts.kinds.latency_profile import Measured
    from specexp.config import ComposedArm
    from specexp.config.artifacts import LoadedArtifact
    from specexp.core.latency import LatencyProfile
    from specexp.data import Prompt
    from specexp.profile.check import LiveCheck
    from specexp.profile.measure import TimedBackend

USAGE = """usage: python -m specexp.profile CONFIG.yaml [--dry-run] [--key value ...]

Measures the model passes of an experiment on this device for several numbers of new tokens and prefix lengths.
Decodes a few prompts with each composition to find the cost of a step outside the passes. Fits a profile, compares it
with live decoding, and writes it as a latency-profile artifact to profile.to.
--dry-run checks the file and lists the measurements without making them. Any other --dotted.key overrides the file,
e.g. --profile.max_tokens 64 --profile.repeats 10 --pair.device cuda --tracking.mode disabled."""


class Profiled(NamedTuple):
    """A fitted profile, the measurements behind it, its comparison with live decoding, and its artifact."""

    profile: LatencyProfile
    measured: Measured
    checks: list[LiveCheck]
    artifact: LoadedArtifact


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    return run_command(USAGE, arguments, _act)


def _act(config: Config, dry_run: bool) -> int:
    from specexp.artifacts import ArtifactError

    arms = check_profiling(config)
    if dry_run:
        list_measurements(config, arms)
        return 0
    try:
        run(config)
    except ArtifactError as error:
        return fail(error, 1)
    return 0


def check_profiling(config: Config) -> list[ComposedArm]:
    """Check the configuration and return its compositions, without loading models or data.

    Raises ConfigError if the file cannot be profiled or the artifact's folder is unusable.
    """
    if engine := config.get("engine"):
        why = f": the passes of {engine['class_path']} cannot be measured: leave it out, or sweep its settings"
        raise config.checker.error(("engine",), why)
    if config.is_multi_sequence:
        why = " decodes several sequences per prompt, but a latency profile measures a single one: leave it out"
        raise config.checker.error(("execution",), why)
    if not config.profile.prefixes:
        raise config.checker.error(("profile", "prefixes"), " must have at least one prefix length, got none")
    check_here(config, "profile.to")
    for remark in check_rows(config, "profile.prompts"):
        print(remark)
    if not config.get("arms") and config.get("drafter") is None:
        return []
    check_experiment(config)
    return [arm for arm in arms_of(config) if arm.reference is None and arm.config.get("drafter") is not None]


def list_measurements(config: Config, arms: Sequence[ComposedArm]) -> None:
    """Print the passes and arms that will be measured. Raises ConfigError if the dry run fails."""
    from specexp.bench.experiment import rehearse
    from specexp.bench.live import LiveBackend
    from specexp.profile.measure import check_prefixes
    from specexp.profile.passes import sizes_up_to

    section = config.profile
    check_prefixes(section, LiveBackend(rehearse(config).pair), config.checker)
    print(f"new tokens: {', '.join(map(str, sizes_up_to(section.max_tokens)))}")
    print(f"prefixes: {', '.join(map(str, section.prefixes))}")
    print("plain decoding", *(arm.title for arm in arms), sep="\n")


def run(config: Config) -> Profiled:
    """Measure, print the tables, and write the artifact and the output folder.

    Raises ConfigError before any measurement if the file, its models, data or output folder is unusable. Raises
    ArtifactError if the artifact cannot be written.
    """
    from specexp.bench.experiment import arm_specs, load_prompts, use_threads, warn_of_load
    from specexp.bench.live import LiveBackend
    from specexp.bench.trainer import quiet_libraries
    from specexp.config import build_pair
    from specexp.profile.measure import check_prefixes, measure, text_of, time_backend
    from specexp.profile.report import report
    from specexp.report.publish import publish, terminal, tracked_config, tracker_of

    quiet_libraries()
    warn_of_load(config.get("latency"))
    use_threads(config.generation.threads)
    pair = build_pair(config)
    section = config.profile
    name = config.name
    seed = config.generation.seed
    prompts = load_prompts(config, pair).prompts[: section.prompts]
    folder, console = config.output / name, terminal()
    backend = LiveBackend(pair)
    check_prefixes(section, backend, config.checker)
    text = text_of(prompts, max(section.prefixes))
    timed = time_backend(section, seed, [*arm_specs(config, backend)], backend, text)
    config.save(folder)
    samples = [*timed.passes.values()]
    measure(section, seed, samples, timed.arms, prompts, lambda line: console.print(line, style="dim"))
    profiled = save_profile(config, timed, prompts)
    tracker = tracker_of(config.tracking, config.pair, name, folder)
    publish(report(*profiled), folder, tracker, console, kind="profile", config=tracked_config(config.to_dict()))
    current_result().artifact = str(profiled.artifact.folder)
    current_result().next = next_step(config, profiled.artifact.folder)
    return profiled


def save_profile(config: Config, timed: TimedBackend, prompts: Sequence[Prompt]) -> Profiled:
    """Fit a profile to the measurements of a backend, compare it with live decoding, and write the artifact."""
    from specexp.config.artifacts import save_artifact
    from specexp.profile.check import check_live
    from specexp.profile.fit import profile_of

    section, study = config.profile, config.name
    profile, measured = profile_of(timed)
    checks = check_live(timed, profile, prompts, section.max_new_tokens)
    artifact = save_artifact(
        Path(section.to) / timed.name,
        "latency-profile",
        {"profile.json": {**profile.to_dict(), "measured": asdict(measured)}},
        provenance={
            "study": study,
            "command": shlex.join(sys.orig_argv),
            "device": measured.device,
            "config": config.to_dict(),
            "metrics": metrics_of(measured, checks),
        },
        fingerprint=timed.backend.fingerprint(),
        name="_".join(filter(None, [study, timed.name])),
    )
    return Profiled(profile, measured, checks, artifact)


def next_step(config: Config, profile: Path) -> str:
    """Return the command that runs the experiment with this profile, as a replay if a recording exists."""
    recording = config.recording_folder
    changed: dict[str, Any] = {"latency": {"artifact": str(profile)}}
    replayed = recording.is_dir()
    if replayed:
        changed |= {"backend": "replay", "recording": str(recording)}
    why = "replays the recording without the models" if replayed else "uses the measured times of this device"
    again = config.invocation
    return command_line(again.measured_by, *experiment_again(again, changed), why=why)


def metrics_of(measured: Measured, checks: Sequence[LiveCheck]) -> dict[str, Any]:
    """Return each model's time for a one-token pass after the shortest prefix, and the largest error."""
    found: dict[str, Any] = {}
    for model, points in (("target", measured.target), ("draft", measured.draft)):
        if points:
            found[f"{model}_pass_ms"] = {"value": points[0].ms, "low": points[0].low, "high": points[0].high}
    found["largest_error_live"] = max(check.error for check in checks)
    return found
