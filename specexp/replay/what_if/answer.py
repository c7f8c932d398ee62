"""Which tree is best on which device: what an experiment file asks, replayed on its recording."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from specexp.config import Config, ConfigError
from specexp.config.check import Checker
from specexp.config.files import read_layers
from specexp.config.schema import WhatIf
from specexp.core.latency import LatencyProfile
from specexp.core.messages import first_line

if TYPE_CHECKING:
    from specexp.bench.statistics import Speedup
    from specexp.core.parts import Parts
    from specexp.core.tree import TreeShape
    from specexp.replay.format.recording import Recording
    from specexp.replay.play.ranks import RankTable
    from specexp.replay.what_if.devices import Comparison, Device


@dataclass(frozen=True)
class Answer:
    """What was found.

    Attributes:
        comparison: What each tree is worth on each device.
        speedups: Speedups of the best trees over plain decoding, device by device.
        recording: What was replayed.
    """

    comparison: Comparison
    speedups: tuple[Speedup, ...]
    recording: Recording


def profiles_of(config: Config) -> list[LatencyProfile]:
    """The devices, in the order of ``profiles``, then ``files``.

    Raises:
        ConfigError: There is no ``what_if:`` section or no device in it; a profile cannot be made, states no
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
        ConfigError: The file cannot be used, or the recording does not hold what it asks for.
    """
    from specexp.config import build_generation
    from specexp.replay.configured import open_recording
    from specexp.replay.play.ranks import RankTable
    from specexp.replay.what_if.devices import compare

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
            composition=parts.label,
            max_nodes=section["max_nodes"],
            max_depth=section["max_depth"],
            others=_own_tree(parts),
        )
    except ValueError as error:
        raise ConfigError(f"{config.file}: what_if: {first_line(error)}") from error
    return Answer(comparison, tuple(_speedup(table, device) for device in comparison.devices), recording)


def _check_artifacts(config: Config) -> None:
    """Say how a missing profile is measured."""
    from specexp.artifacts import ArtifactError, value_of

    for number, given in enumerate(config.get("what_if")["profiles"]):
        try:
            if given.get("artifact"):
                value_of("latency-profile", given["artifact"])
        except ArtifactError as error:
            raise config.checker.error(
                ("what_if", "profiles", str(number), "artifact"),
                f": {first_line(error)}; python -m specexp.profile measures this device, with "
                "experiments/engine/profile.yaml into artifacts/profile",
            ) from error


def _profile_in(config: Config, path: str, number: int) -> LatencyProfile:
    try:
        layers = read_layers(path)
    except ConfigError as error:
        raise config.checker.error(("what_if", "files", str(number)), f": {error}") from error
    if not isinstance(layers.values.get("latency"), dict):
        raise config.checker.error(
            ("what_if", "files", str(number)),
            f" is {path!r}, which has no latency: section; name one such as experiments/replay/devices/a100_7b.yaml",
        )
    checker = Checker(lambda key: layers.source_of(key, path))
    values = checker.arguments(LatencyProfile, layers.values["latency"], ("latency",))
    profile: LatencyProfile = checker.call(LatencyProfile, values, ("latency",))
    return profile


def _parts(config: Config, recording: Recording) -> Parts:
    """The file's parts, whose drafter must be the recorded draft model."""
    from specexp.config import build_parts
    from specexp.replay.play.fidelity import is_model_alone
    from specexp.replay.play.replay_arm import source_for, source_in

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
    if not is_model_alone(parts.drafter):
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
    from specexp.replay.play.fidelity import fixed_shape_of, is_plain_static

    shape = fixed_shape_of(parts.builder)
    return (
        {}
        if shape is None or not is_plain_static(parts)
        else {f"configured, {type(parts.builder).__name__}": shape}
    )


def _speedup(table: RankTable, device: Device) -> Speedup:
    """Over plain decoding, prompt by prompt, as of any two arms."""
    from specexp.bench.statistics import Speedup, mean_by_prompt

    assert device.counts.seconds is not None
    logs = np.log(device.plain_seconds / device.counts.seconds).tolist()
    by_prompt = mean_by_prompt((turn.prompt_id, log) for turn, log in zip(table.turns, logs, strict=True))
    return Speedup.of(device.best.name, "plain decoding", by_prompt, device.profile.label)
