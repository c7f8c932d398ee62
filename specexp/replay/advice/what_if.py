"""``python -m specexp.what_if CONFIG.yaml [--key value]``: find the best tree for each of several devices.

Writes tables, trees and pictures into ``<output>/<name>``; a second run with the same name replaces them. No model is
loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specexp.base.messages import first_line, restated
from specexp.config import Config, ConfigError, build_parts
from specexp.config.check import Checker
from specexp.config.command import check_here, current_result, run_command
from specexp.config.layers import read_layers
from specexp.config.schema import WhatIf
from specexp.core.latency import LatencyProfile

if TYPE_CHECKING:
    from specexp.core.parts import Parts
    from specexp.replay.advice.what_if_report import Comparison
    from specexp.replay.format.recording import Recording

USAGE = """usage: python -m specexp.what_if CONFIG.yaml [--dry-run] [--key value ...]

Finds the best fixed draft tree for each of several devices: replays one recording (made by python -m specexp.record)
with each device's latency profile, and prints the best trees and their goodput on every device. All prompts of the
recording are used; data: is ignored. No model is loaded.
--dry-run checks the file and lists the devices; any other --dotted.key overrides the file,
e.g. --what_if.max_nodes 128 --recording recordings/mine --tracking.mode disabled."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    return run_command(USAGE, arguments, _act)


def _act(config: Config, dry_run: bool) -> int:
    check_here(config)
    if dry_run:
        from specexp.replay.backend import open_recording

        open_recording(config)
        print(*(f"{profile.name} ({profile.source})" for profile in profiles_of(config)), sep="\n")
    else:
        run(config)
    return 0


def run(config: Config) -> Comparison:
    """Compare the devices, print the tables, write the output folder and track the run.

    Raises ConfigError, before writing any file, if the config is unusable or the recording lacks a prediction.
    """
    from specexp.replay.advice.what_if_report import report
    from specexp.report.publish import publish, terminal, tracked_config, tracker_of

    found, recording = compare_devices(config)
    folder = config.output / config.name
    config.save(folder)
    tracker = tracker_of(config.tracking, config.pair, config.name, folder)
    made = report(found, recording, config.question or "What if")
    # the tables have many columns
    publish(made, folder, tracker, terminal(180), kind="what_if", config=tracked_config(config.to_dict()))
    current_result().next = (
        f"to confirm a device's tree ({folder / 'trees.json'}), run it with the models on that device"
    )
    return found


def profiles_of(config: Config) -> list[LatencyProfile]:
    """Return the latency profiles in ``what_if.profiles``, followed by those in ``what_if.files``.

    Raises ConfigError if there are none, if one cannot be read or lacks ``draft_ms``, or if two have the same name.
    """
    if config.get("what_if") is None:
        command = "specexp.sweep" if config.sweep is not None else "specexp.run"
        raise ConfigError(
            f"{config.file} has no what_if: section, so there are no devices to compare; run it with "
            f"python -m {command} {config.file}"
        )
    section: WhatIf = config.section("what_if")
    found = {("profiles", str(number)): profile for number, profile in enumerate(section.profiles)}
    found |= {("files", str(number)): _profile_in(config, path, number) for number, path in enumerate(section.files)}
    if not found:
        raise config.checker.error(
            ("what_if",), " must have a device, got none: set what_if.profiles, what_if.files, or both"
        )
    names: set[str] = set()
    for key, profile in found.items():
        if not profile.draft_ms:
            raise config.checker.error(
                ("what_if", *key),
                f": latency profile {profile.name!r} must have draft_ms, since trees of a draft model are compared: "
                "set it, or remove the profile",
            )
        if profile.name in names:
            raise config.checker.error(("what_if", *key), f" is a second profile named {profile.name!r}: rename it")
        names.add(profile.name)
    return list(found.values())


def _profile_in(config: Config, path: str, number: int) -> LatencyProfile:
    key = ("what_if", "files", str(number))
    with restated(ConfigError, lambda error: config.checker.error(key, f": {error}")):
        layers = read_layers(path)
    if not isinstance(layers.values.get("latency"), dict):
        raise config.checker.error(
            key,
            f" must be a file with a latency: section such as experiments/replay/devices/a100_7b.yaml, got {path!r}",
        )
    checker = Checker(lambda key: layers.source_of(key, path))
    values = checker.arguments(LatencyProfile, layers.values["latency"], ("latency",))
    profile: LatencyProfile = checker.call(LatencyProfile, values, ("latency",))
    return profile


def compare_devices(config: Config) -> tuple[Comparison, Recording]:
    """Replay all candidate trees with the latency profile of every device. Raises ConfigError like :func:`run`."""
    from specexp.replay.advice.what_if_report import compare
    from specexp.replay.backend import open_recording
    from specexp.replay.play.fidelity import static_shape
    from specexp.replay.play.ranks import RankTable

    profiles = profiles_of(config)
    recording = open_recording(config)
    parts = _parts(config, recording)
    section = config.get("what_if")
    turns = [turn for conversation in recording.turns.values() for turn in conversation]
    limit = recording.manifest.context_limits["target"]
    own = static_shape(parts)
    with restated(ValueError, lambda error: ConfigError(f"{config.file}: what_if: {first_line(error)}")):
        found = compare(
            RankTable(turns, config.generation.max_new_tokens, limit),
            profiles,
            composition=parts.label,
            max_nodes=section["max_nodes"],
            max_depth=section["max_depth"],
            others={} if own is None else {f"configured, {type(parts.builder).__name__}": own},
        )
    return found, recording


def _parts(config: Config, recording: Recording) -> Parts:
    """Return the experiment's parts. Raises ConfigError unless the drafter is the recorded draft model."""
    from specexp.replay.backend import source_for, source_in
    from specexp.replay.play.fidelity import is_model_alone

    where = f"{config.source_of(('drafter',))}: drafter"
    trees = "what_if compares trees of a draft model's candidates"
    source = source_for(recording)
    if config.get("drafter") is not None and source is None:
        raise ConfigError(
            f"{where}: {recording.folder} was recorded without a draft model, and {trees}: record with drafter "
            "DraftModel"
        )
    parts = build_parts(config, source)
    if parts.builder is None or not is_model_alone(parts.drafter):
        found = "null" if parts.drafter is None else type(parts.drafter).__name__
        raise ConfigError(f"{where} must be DraftModel with a builder such as Chain, got {found}: {trees}")
    with restated(ValueError, lambda error: ConfigError(f"{where}: {first_line(error)}")):
        source_in(parts)
    return parts
