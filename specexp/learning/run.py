"""Learning a controller as an experiment file describes it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specexp.config import Config, ConfigError

if TYPE_CHECKING:
    from specexp.learning.module import ControllerLearning
    from specexp.models.pair import ModelPair

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
        pair: its models; loaded if None.

    Returns:
        The module after the run.

    Raises:
        ConfigError: the models or prompts cannot be loaded, or the parts do not go together.
    """
    os.environ.setdefault("WANDB_MODE", "offline")
    import torch
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.loggers import WandbLogger

    from specexp.config import build_data, build_generation, build_latency, build_pair, build_parts
    from specexp.data import PromptSetError
    from specexp.decoder import Decoder
    from specexp.evaluation.decoder_arm import DecoderArm
    from specexp.evaluation.trainer import build_trainer
    from specexp.learning.module import ControllerLearning
    from specexp.models.language_model import LanguageModel

    section = config.get("fit")
    generation = build_generation(config)
    if generation.threads is not None:
        torch.set_num_threads(generation.threads)
    pair = pair or build_pair(config)
    data = build_data(config, pair.tokenizer)
    try:
        data.setup("fit")
    except PromptSetError as error:
        raise ConfigError(f"{config.source_of(('data',))}: data: {error}") from error
    decoder = Decoder(LanguageModel(pair.target), *build_parts(config, pair.draft))
    name = config.get("name")
    arm = DecoderArm(name, decoder, pair.tokenizer, generation, latency=build_latency(config))
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
        arguments["logger"] = WandbLogger(
            name=name, project=config.get("tracking.project"), save_dir=str(folder)
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


def report(config: Config, module: ControllerLearning) -> list[str]:
    """Draw the table, export the artifact, and say what was learned.

    Returns:
        Sentences to print.

    Raises:
        ArtifactError: the artifact cannot be written.
    """
    from specexp.artifacts import fingerprint, save_artifact
    from specexp.artifacts.kinds.q_table import payloads_of_state
    from specexp.composition import Parts
    from specexp.controllers import QLearning
    from specexp.learning.picture import draw_table

    controller = module.arm.decoder.strategy.controller
    assert isinstance(controller, QLearning)
    name = config.get("name")
    picture = Path(config.get("output")) / name / "q_table.png"
    draw_table(controller.table, f"{name}: {controller.steps} steps of {module.done} prompts").savefig(
        picture, dpi=120
    )
    seen = sum(any(visits) for visits in controller.table.visits)
    begins = controller.table.values[0]
    said = [
        f"Learned {controller.steps} steps on {module.done} prompts; {seen} of {controller.table.rows} states "
        f"were seen, epsilon is {controller.exploring:.3g}, drafting is worth {begins[0]:+.3f} over plain decoding.",
        f"The table is drawn in {picture}.",
    ]
    export = config.get("fit")["export"]
    if export is not None:
        artifact = save_artifact(
            Path(export["to"]),
            export["kind"],
            {
                **payloads_of_state(controller.state_dict()),
                "parts.json": {family: config.get(family) for family in Parts._fields},
            },
            {"study": name, "config": config.to_dict(), "metrics": {"steps": controller.steps}},
            fingerprint(module.arm.decoder.model.model, module.arm.tokenizer),
            name=name,
        )
        said.append(f"The Q-table is in {artifact.folder}.")
    return said
