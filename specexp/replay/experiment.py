"""An experiment file as arms on a recording."""

from __future__ import annotations

from specexp.bench.arm import Arm, EngineArm
from specexp.bench.experiment import ENGINE, Experiment, check_experiment, is_plain
from specexp.config import (
    Config,
    ConfigError,
    build_analyses,
    build_generation,
    build_latency,
    build_parts,
    build_verifier,
)
from specexp.core.messages import first_line
from specexp.core.parts import Parts
from specexp.replay.format.recording import Recording
from specexp.replay.play.replay_arm import ReplayArm, source_for


def build_replayed(config: Config, recording: Recording) -> tuple[Experiment, list[str]]:
    """The arms of the engine on a recording, and the names of those it cannot answer for.

    Raises:
        ConfigError: as :func:`~specexp.bench.experiment.check_experiment`; or an arm asks what was not recorded, learns
            from other prompts before; or an analysis reads logits or times the models.
    """
    composed = check_experiment(config)
    analyses = build_analyses(config)
    for number, analysis in enumerate(analyses):
        if analysis.needs_models:
            where = f"{config.source_of(('analyses', str(number)))}: analyses.{number}"
            raise ConfigError(
                f"{where}: {type(analysis).__name__} reads the target's logits or times the models, which no recording "
                "holds: leave it out, or set backend to live"
            )
    left_out = [name for name in config.get("baselines") if name != ENGINE]
    arms: list[Arm] = [_replay_arm(ENGINE, config, recording, Parts(None, None, build_verifier(config)))]
    seeds: dict[str, int | None] = {}
    for arm in composed if not is_plain(config) else ():
        where = f"{config.source_of(('arms', arm.name))}: arms.{arm.name}"
        if arm.reference is not None:
            left_out.append(arm.title)
            continue
        if arm.preload is not None:
            raise ConfigError(
                f"{where}.preload decodes other prompts with the models: leave it out to replay, or set backend to live"
            )
        arms.append(_replay_arm(arm.title, arm.config, recording, None))
        if arm.config.get("data.shuffle_seed") != config.get("data.shuffle_seed"):
            seeds[arm.title] = arm.config.get("data.shuffle_seed")
    for analysis in analyses:
        analysis.begin({arm.name: arm.parts for arm in arms if isinstance(arm, EngineArm)})
    return Experiment(arms, [ENGINE], seeds, analyses), left_out


def _replay_arm(name: str, config: Config, recording: Recording, parts: Parts | None) -> Arm:
    parts = parts or build_parts(config, source_for(recording))
    try:
        return ReplayArm(name, recording, parts, build_generation(config), build_latency(config))
    except ValueError as error:
        where = config.source_of(("arms", name)) if config.get("arms") else config.source_of(("backend",))
        raise ConfigError(f"{where}: arm {name!r}: {first_line(error)}") from error
