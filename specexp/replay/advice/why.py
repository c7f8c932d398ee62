"""``python -m specexp.why CONFIG.yaml [--key value]``: show where speculation loses time, and which setting helps.

Writes tables and a report into ``<output>/<name>/why``; a second run with the same name replaces them.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specexp.base.messages import first_line
from specexp.config import (
    Config,
    ConfigError,
    build_parts,
)
from specexp.config.command import check_here, current_result, run_command
from specexp.config.next_step import command_line, experiment_again, init_options
from specexp.controllers import ConfidenceThreshold, Fixed
from specexp.core.latency import LatencyProfile
from specexp.core.parts import Parts
from specexp.drafters import PromptLookup
from specexp.replay.record.plan import plan_recording

if TYPE_CHECKING:
    from specexp.bench.record import PromptRecord
    from specexp.replay.advice.why_report import Effect, Explained

USAGE = """usage: python -m specexp.why CONFIG.yaml [--dry-run] [--key value ...]
       python -m specexp.why --endpoint URL [--plain URL] [--prompts FILE] [--help]

Shows where one composition spends its time: acceptance by position, the cost of a target pass by its width, the draft's
share, the time outside the passes and, if the profile has lanes, the cost under load. Ranks neighboring settings by
their speed in a replay of the same prompts. With backend: replay, the file's recording and profile are used. Otherwise
python -m specexp.profile and python -m specexp.record run first, into <output>/<name>/why.
With --endpoint, requests to a server show what its drafts cost and gain.
--dry-run checks the file and prints what is used; any other --dotted.key overrides the file,
e.g. --data.max_prompts 8 --builder.init_args.length 6 --tracking.mode disabled."""
THRESHOLDS = (0.2, 0.4, 0.6, 0.8)
"""Thresholds to try with ConfidenceThreshold, which stops drafting below this draft probability."""


@dataclass(frozen=True)
class Change:
    """A change to try: either ``overrides`` to the composition or a ``latency`` profile with different costs."""

    name: str
    overrides: Mapping[str, Any]
    latency: LatencyProfile


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    return run_command(USAGE, arguments, _act)


def _act(config: Config, dry_run: bool) -> int:
    check_explained(config)
    check_here(config)
    if not config.is_replayed:
        plan_recording(config)  # raises its errors before the profile is measured
    if dry_run:
        made = "a profile and a recording, which are made first"
        if config.is_replayed:
            from specexp.replay.backend import open_replay

            open_replay(config)
            made = "its recording"
        print(f"{config.name}, from {made}")
        return 0
    found = run(config)
    again = config.invocation
    result = current_result()
    best = found.settings[0]
    if best.over_now.is_faster:
        changed = {**({"backend": "live"} if config.is_replayed else {}), **best.overrides}
        result.next = command_line("run", *experiment_again(again, changed), why="measures its speedup with models")
    elif config.sweep is not None:
        result.next = command_line("sweep", *experiment_again(again), why="searches more settings")
    else:
        result.next = command_line("init", "my-study", *init_options(again.pair), why="searches more settings")
    return 0


def check_explained(config: Config) -> None:
    """Raise ConfigError unless the file has exactly one composition, and that composition drafts."""
    wrong = {
        "arms": config.get("arms")
        and "must be left out, since why explains one composition: set drafter, builder and controller",
        "engine": (engine := config.get("engine"))
        and f"the steps of {engine['class_path']} cannot be replayed: sweep its settings instead",
        "drafter": config.get("drafter") is None
        and "must be set, since plain decoding does not speculate: set drafter and builder",
    }
    for key, sentence in wrong.items():
        if sentence:
            raise config.checker.error((key,), f": {sentence}")


def run(config: Config) -> Explained:
    """Explain the composition, print the tables and write the output folder.

    Raises ConfigError if the file cannot be used, the profile or the recording cannot be made, or the recording lacks
    a prediction.
    """
    from specexp.replay.advice.why_report import report
    from specexp.report.publish import publish, terminal, tracked_config, tracker_of

    name = config.name
    folder = config.output / name / "why"
    config.save(folder)
    if not config.is_replayed:
        config = _measured(config, folder)
    found = explain(config)
    shown = report(found, config.question or f"Where does {name} lose time?")
    tracker = tracker_of(config.tracking, config.pair, name, folder)
    publish(shown, folder, tracker, terminal(180), kind="why", config=tracked_config(config.to_dict()))
    return found


def _measured(config: Config, folder: Path) -> Config:
    """Run ``specexp.profile`` and ``specexp.record``, and return the experiment set to replay their results."""
    profile, recording = folder / "profile", folder / "recording"
    given = [str(folder / "config.yaml"), "--tracking.mode", "disabled", "--sweep", "null"]
    for command, key, to in (("profile", "profile.to", profile), ("record", "record.to", recording)):
        words = ["-m", f"specexp.{command}", *given, f"--{key}", str(to), "--output", str(folder)]
        done = subprocess.run([sys.executable, *words], check=False)
        if done.returncode:
            raise ConfigError(f"python {' '.join(words)} failed with exit code {done.returncode}")
    latency = {"artifact": str(profile / "best")}
    overrides = {"backend": "replay", "recording": str(recording), "latency": latency, "sweep": None}
    return config.with_overrides(overrides, "why")


def explain(config: Config) -> Explained:
    """Replay an experiment's composition, unchanged and with each change, using its recording and latency profile.

    Raises ConfigError if the recording is missing or cannot replay the composition.
    """
    from specexp.bench.arm_spec import ArmSpec, make_arm
    from specexp.bench.statistics import paired_speedup
    from specexp.replay.advice.why_report import NOW, PLAIN, Effect, Explained
    from specexp.replay.backend import open_replay

    latency = config.latency
    assert latency is not None, "the config check requires latency for a replay"
    backend, data = open_replay(config)
    parts = build_parts(config, backend.draft)
    label = parts.label

    def decoded(name: str, change: Change) -> tuple[str | None, list[PromptRecord]]:
        changed = config.with_overrides(dict(change.overrides), "why")
        spec = ArmSpec(name, config.generation, build_parts(changed, backend.draft), latency=change.latency)
        arm = make_arm(spec, backend)
        arm.reset()
        return arm.fidelity_note, [arm.decode(prompt) for prompt in data.prompts]

    def effect(change: Change, records: Sequence[PromptRecord]) -> Effect:
        name = change.name
        both = [*now, *plain, *(records if name != NOW else ())]
        over_now, over_plain = (paired_speedup(both, name, other) for other in (NOW, PLAIN))
        return Effect(name, change.overrides, records, over_now, over_plain)

    changes = list(settings_to_try(config, parts, latency))
    _, plain = decoded(PLAIN, changes[0])
    unchanged = Change(NOW, {}, latency)
    note, now = decoded(NOW, unchanged)
    settings, refused = [], {}
    for change in changes:
        try:
            settings.append(effect(change, decoded(change.name, change)[1]))
        except ValueError as error:
            refused[change.name] = first_line(error)
    costs = [effect(change, decoded(change.name, change)[1]) for change in costs_that_could_go(latency, label)]
    for effects in (costs, settings):
        effects.sort(key=lambda one: one.over_now.ratio, reverse=True)
    return Explained(effect(unchanged, now), costs, settings, refused, latency.of(label), note or "")


def settings_to_try(config: Config, parts: Parts, latency: LatencyProfile) -> Iterator[Change]:
    """Yield settings to try: no speculation, smaller and larger trees, confidence thresholds and prompt lookup."""
    plain = {"drafter": None, "builder": None, "controller": {"class_path": "Fixed"}}
    yield Change("drafter: null (no speculation)", plain, latency)
    arguments = (config.get("builder") or {}).get("init_args") or {}
    for name in type(parts.builder).size_arguments if parts.builder is not None else ():
        value = arguments.get(name)
        if not isinstance(value, int) or isinstance(value, bool):
            continue
        others = {1, value // 2, value - 1, value + 1, value * 2}
        if latency.buckets:  # trees that fill a bucket together with the root; smaller ones cost the same
            others |= {rows - 1 for rows in latency.target_ms if value // 2 < rows <= 2 * value + 1}
        for other in sorted(others - {0, value}):
            key = f"builder.init_args.{name}"
            yield Change(f"{key}: {other}", {key: other}, latency)
    if isinstance(parts.controller, Fixed | ConfidenceThreshold):
        for threshold in THRESHOLDS:
            if getattr(parts.controller, "threshold", None) != threshold:
                part = {"class_path": "ConfidenceThreshold", "init_args": {"threshold": threshold}}
                name = f"controller: ConfidenceThreshold, threshold {threshold:g}"
                yield Change(name, {"controller": part}, latency)
    if not isinstance(parts.drafter, PromptLookup):
        yield Change("drafter: PromptLookup", {"drafter": {"class_path": "PromptLookup"}}, latency)


def costs_that_could_go(latency: LatencyProfile, composition: str) -> Iterator[Change]:
    """Yield changes to the latency profile, each of which removes one cost of a step.

    The speedup with such a profile is an upper bound on the gain from lowering that cost.
    """
    known = latency.of(composition)
    if known.draft_ms:
        free = dict.fromkeys(known.draft_ms, 0.0)
        without = replace(known, draft_ms=free, draft_prefix_ms=0.0, draft_prefix_token_ms=0.0)
        yield Change("draft passes", {}, without)
    one = known.target_ms[1]
    flat = {rows: min(one, ms) for rows, ms in known.target_ms.items()}
    yield Change("rows beyond the first", {}, replace(known, target_ms=flat, target_prefix_token_ms=0.0))
    yield Change("outside the passes", {}, replace(known, step_ms=0.0, node_ms=0.0, token_ms=0.0))
