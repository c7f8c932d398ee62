"""Where the time of an experiment's composition goes, and what every change would bring, by replay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specexp.config import apply_overrides, build_generation, build_latency, build_parts
from specexp.core.messages import first_line
from specexp.replay.why.changes import Change, costs_that_could_go, settings_to_try

if TYPE_CHECKING:
    from specexp.bench.record import PromptRecord
    from specexp.bench.statistics import Speedup
    from specexp.config import Config
    from specexp.core.latency import LatencyProfile
    from specexp.data import Prompt
    from specexp.replay.backend import ReplayBackend

NOW, PLAIN = "now", "plain"


@dataclass(frozen=True)
class Effect:
    """What a change would bring.

    Attributes:
        name: The change.
        overrides: Of the experiment; empty for a cost that goes.
        records: Every prompt, as it would be decoded.
        over_now: Speed over the composition as it is, prompt by prompt.
        over_plain: Speed over plain decoding.
    """

    name: str
    overrides: Mapping[str, Any]
    records: Sequence[PromptRecord]
    over_now: Speedup
    over_plain: Speedup


@dataclass(frozen=True)
class Explained:
    """What was found.

    Attributes:
        now: The composition as it is, and plain decoding beside it.
        costs: What it would bring if a share of the time went, the largest first.
        settings: What settings would bring, the best first.
        refused: Settings that the recording cannot answer, with the reason.
        latency: What steps cost here.
        note: What replayed figures are worth; empty where they are the models' own.
    """

    now: Effect
    costs: Sequence[Effect]
    settings: Sequence[Effect]
    refused: dict[str, str]
    latency: LatencyProfile
    note: str = ""

    @property
    def records(self) -> list[PromptRecord]:
        """Of the composition, of plain decoding, and of every setting."""
        return [one for effect in (self.now, *self.settings) for one in effect.records]


def check_explained(config: Config) -> None:
    """Refuse a file whose one composition does not draft.

    Raises:
        ConfigError: One sentence that says what to give.
    """
    if config.get("arms"):
        raise config.checker.error(
            ("arms",),
            ": why explains one composition, and there are several: set drafter, builder and controller, and --arms "
            "null",
        )
    if config.get("engine") is not None:
        raise config.checker.error(
            ("engine",),
            f": why looks into our own steps, and those of {config.get('engine.class_path')} cannot be watched: "
            "sweep its settings instead",
        )
    if config.get("drafter") is None:
        raise config.checker.error(
            ("drafter",),
            ": there is none, so nothing is lost to speculation: name the drafter and builder that are to be "
            "explained",
        )


def explain(config: Config) -> Explained:
    """Replay the composition, and every change to it.

    Args:
        config: The experiment with a recording, and a latency profile that models seconds.

    Raises:
        ConfigError: The recording is missing, or cannot say what the composition would do.
    """
    from specexp.replay.backend import open_replay

    latency = build_latency(config)
    assert latency is not None, "a replay without latency is refused with the file"
    backend, data = open_replay(config)
    prompts = data.prompts
    label = build_parts(config, backend.draft).label
    plain_change = next(settings_to_try(config, latency))
    plain = _decoded(PLAIN, plain_change, config, backend, prompts)
    unchanged = Change(NOW, {}, latency)
    arm_note, now = _decoded_with_note(NOW, unchanged, config, backend, prompts)
    settings, refused = [], {}
    for change in settings_to_try(config, latency):
        try:
            records = _decoded(change.name, change, config, backend, prompts)
            settings.append(_effect(change, records, now, plain))
        except ValueError as error:
            refused[change.name] = first_line(error)
    costs = [
        _effect(change, _decoded(change.name, change, config, backend, prompts), now, plain)
        for change in costs_that_could_go(latency, label)
    ]
    return Explained(
        _effect(unchanged, now, now, plain),
        _best_first(costs),
        _best_first(settings),
        refused,
        latency.of(label),
        arm_note,
    )


def _best_first(effects: Sequence[Effect]) -> list[Effect]:
    return sorted(effects, key=lambda effect: effect.over_now.ratio, reverse=True)


def _decoded(
    name: str, change: Change, config: Config, backend: ReplayBackend, prompts: Sequence[Prompt]
) -> list[PromptRecord]:
    return _decoded_with_note(name, change, config, backend, prompts)[1]


def _decoded_with_note(
    name: str, change: Change, config: Config, backend: ReplayBackend, prompts: Sequence[Prompt]
) -> tuple[str, list[PromptRecord]]:
    """By one arm made of the changed experiment; its note on what the figures are worth, and a record a prompt."""
    from specexp.bench.arm_spec import ArmSpec
    from specexp.bench.make_arm import make_arm

    changed = apply_overrides(config, dict(change.overrides), "why")
    spec = ArmSpec(name, build_generation(config), config=changed, latency=change.latency)
    arm = make_arm(spec, backend)
    arm.reset()
    return arm.fidelity_note or "", [arm.decode(prompt) for prompt in prompts]


def _effect(
    change: Change,
    records: Sequence[PromptRecord],
    now: Sequence[PromptRecord],
    plain: Sequence[PromptRecord],
) -> Effect:
    from specexp.bench.statistics import paired_speedup

    name = change.name
    both = [*now, *plain, *(records if name not in (NOW, PLAIN) else ())]
    return Effect(
        name, change.overrides, records, paired_speedup(both, name, NOW), paired_speedup(both, name, PLAIN)
    )
