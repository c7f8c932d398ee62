"""Learning a controller as an experiment file describes it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specexp.config import Config, ConfigError
from specexp.core.messages import first_line

if TYPE_CHECKING:
    from specexp.artifacts.fingerprint import Fingerprint
    from specexp.bench.arm import EngineArm
    from specexp.data.prompts import PromptDataModule
    from specexp.fit.learning_module import ControllerLearning
    from specexp.pairs.pair import ModelPair

CHECKPOINT = "last.ckpt"


def check_learning(config: Config) -> None:
    """Refuse an experiment whose controller cannot learn.

    Raises:
        ConfigError: it is no QLearning, or a frozen one.
    """
    given = config.get("controller")
    if str(given["class_path"]).rpartition(".")[2] != "QLearning":
        raise ConfigError(
            f"{config.source_of(('controller',))}: controller is {given['class_path']}, which has no table to fit; "
            "name QLearning"
        )
    if not given["init_args"]["learn"]:
        raise ConfigError(
            f"{config.source_of(('controller', 'init_args', 'learn'))}: controller.init_args.learn is false, so "
            "nothing would be learned; set it to true"
        )


def learn(config: Config, pair: ModelPair | None = None) -> ControllerLearning:
    """Learn on the prompts of ``data``, continuing from ``<output>/<name>/checkpoints/last.ckpt`` where it exists.

    Args:
        config: an experiment with a ``fit:`` section.
        pair: its models; loaded if None, and not needed to learn on a recording.

    Returns:
        The module after the run.

    Raises:
        ConfigError: the models, the recording or the prompts cannot be loaded, or the parts do not go together.
    """
    os.environ.setdefault("WANDB_MODE", "offline")
    import torch
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.loggers import WandbLogger

    from specexp.bench.trainer import build_trainer
    from specexp.config import build_generation, is_replayed
    from specexp.fit.learning_module import ControllerLearning

    section = config.get("fit")
    generation = build_generation(config)
    if generation.threads is not None:
        torch.set_num_threads(generation.threads)
    name = config.get("name")
    arm, data = _replayed(config) if is_replayed(config) else _live(config, pair)
    module = ControllerLearning(arm, data.prompts)
    folder = Path(config.get("output")) / name
    folder.mkdir(parents=True, exist_ok=True)
    checkpoints = ModelCheckpoint(
        dirpath=folder / "checkpoints",
        filename=Path(CHECKPOINT).stem,
        every_n_train_steps=section["checkpoint_every"],
        enable_version_counter=False,
    )
    arguments: dict[str, Any] = {
        "max_steps": section["epochs"] * len(module.prompts),
        "max_epochs": -1,
        "log_every_n_steps": 1,
        "enable_progress_bar": False,
        "enable_checkpointing": True,
        "callbacks": [checkpoints],
        "default_root_dir": folder,
    }
    if "logger" not in config.get("trainer"):
        tracked = config.get("tracking.mode") != "disabled"
        project = config.get("tracking.project")
        arguments["logger"] = (
            WandbLogger(name=name, project=project, save_dir=str(folder)) if tracked else False
        )
    trainer = build_trainer(config, **arguments)
    last = folder / "checkpoints" / CHECKPOINT
    trainer.fit(
        module,
        train_dataloaders=data.train_dataloader(),
        ckpt_path=str(last) if last.exists() else None,
        weights_only=True,
    )
    trainer.save_checkpoint(last)
    return module


def _live(config: Config, pair: ModelPair | None) -> tuple[EngineArm, PromptDataModule]:
    """What learns by decoding, and the prompts."""
    from specexp.bench.decoder_arm import DecoderArm
    from specexp.config import build_data, build_generation, build_latency, build_pair, build_parts
    from specexp.core.decode import Decoder
    from specexp.core.language_model import LanguageModel
    from specexp.data import PromptSetError

    pair = pair or build_pair(config)
    data = build_data(config, pair.tokenizer)
    try:
        data.setup("fit")
    except PromptSetError as error:
        raise ConfigError(f"{config.source_of(('data',))}: data: {error}") from error
    decoder = Decoder(LanguageModel(pair.target), *build_parts(config, pair.draft))
    generation, latency = build_generation(config), build_latency(config)
    return DecoderArm(config.get("name"), decoder, pair.tokenizer, generation, latency=latency), data


def _replayed(config: Config) -> tuple[EngineArm, PromptDataModule]:
    """What learns from a recording, and the prompts."""
    from specexp.config import build_generation, build_latency, build_parts
    from specexp.replay.configured import open_recording, recorded_data, tokenizer_of
    from specexp.replay.play.replay_arm import ReplayArm, source_for

    recording = open_recording(config)
    data = recorded_data(config, recording, tokenizer_of(config))
    parts = build_parts(config, source_for(recording))
    try:
        arm = ReplayArm(config.get("name"), recording, parts, build_generation(config), build_latency(config))
    except ValueError as error:
        raise ConfigError(f"{config.source_of(('backend',))}: backend: {first_line(error)}") from error
    return arm, data


def _origin(arm: EngineArm) -> dict[str, Any]:
    """Provenance of what was learned without models."""
    from specexp.replay.play.replay_arm import ReplayArm

    if not isinstance(arm, ReplayArm):
        return {}
    profile = None if arm.latency is None else arm.latency.label
    return {
        "recording": {"folder": str(arm.recording.folder), "profile": profile, "fidelity": str(arm.fidelity)}
    }


def _fingerprint(arm: EngineArm) -> Fingerprint:
    """Of the target and its tokenizer."""
    from specexp.artifacts.fingerprint import fingerprint, target_fingerprint
    from specexp.bench.decoder_arm import DecoderArm
    from specexp.replay.play.replay_arm import ReplayArm

    if isinstance(arm, ReplayArm):
        return target_fingerprint(arm.recording.manifest.fingerprint)
    assert isinstance(arm, DecoderArm)
    return fingerprint(arm.decoder.model.model, arm.tokenizer)


def report(config: Config, module: ControllerLearning) -> list[str]:
    """Draw the table, export the artifact, and say what was learned.

    Returns:
        Sentences to print.

    Raises:
        ArtifactError: the artifact cannot be written.
    """
    from specexp.artifacts import kind_named
    from specexp.config.artifacts import save_artifact
    from specexp.controllers import QLearning
    from specexp.core.parts import Parts
    from specexp.fit.q_table_picture import draw_table

    controller = module.arm.parts.controller
    assert isinstance(controller, QLearning)
    name = config.get("name")
    picture = Path(config.get("output")) / name / "q_table.png"
    answers = f"{module.done} answers to {min(module.done, len(module.prompts))} prompts"
    draw_table(controller.table, f"{name}: {controller.steps} steps of {answers}").savefig(picture, dpi=120)
    seen = sum(any(visits) for visits in controller.table.visits)
    begins = controller.table.values[0]
    said = [
        f"Learned from {controller.steps} steps of {answers}; {seen} of {controller.table.rows} states "
        f"were seen, epsilon is {controller.exploring:.3g}, drafting is worth {begins[0]:+.3f} over plain decoding.",
        f"The table is drawn in {picture}.",
    ]
    if origin := _origin(module.arm):
        worth = origin["recording"]["fidelity"]
        said.append(f"It was learned on {origin['recording']['folder']}, a recording: {worth}.")
    export = config.get("fit")["export"]
    if export is not None:
        specs = {family: config.get(family) for family in Parts._fields}
        learned = {"learned": {"controller": controller.state_dict()}}
        payloads = kind_named(export["kind"]).payloads_of(specs, learned)
        assert payloads is not None, "only a controller that the kind keeps is fitted"
        artifact = save_artifact(
            Path(export["to"]),
            export["kind"],
            payloads,
            {
                "study": name,
                "config": config.to_dict(),
                "metrics": {"steps": controller.steps},
                **_origin(module.arm),
            },
            _fingerprint(module.arm),
            name=name,
        )
        said.append(f"The Q-table is in {artifact.folder}.")
    return said
