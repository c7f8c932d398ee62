"""Lets an experiment's controller learn as configured in the ``fit:`` section, and draws its Q-table."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from specexp.artifacts import kind_for
from specexp.config import Config, ConfigError
from specexp.controllers import QLearning
from specexp.controllers.q_table import CONTINUE, STOP, QTable
from specexp.core.parts import Parts
from specexp.tracking.mode import project_of, take_over, wanted_mode

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from specexp.fit.resumable import ControllerLearning
    from specexp.report.publish import Report

_MOST_BLOCKS = 4  # maximum number of blocks drawn for a table with extra signals


def check_learning(config: Config) -> None:
    """Raise ConfigError if nothing would be learned, the state cannot be exported, or a reserved trainer key is set."""
    controller, given = config.controller, config.get("controller")
    if given["init_args"].get("learn") is False:
        raise config.checker.error(
            ("controller", "init_args", "learn"), " is false, so nothing would be learned; set it to true"
        )
    for name in set(config.get("trainer")) & {"max_epochs", "max_steps", "callbacks"}:
        raise config.checker.error(
            ("trainer", name),
            " must be left out, because a controller learns for fit.epochs with fixed callbacks",
        )
    where = f"{config.source_of(('controller',))}: controller is {given['class_path']}"
    if controller is None or not controller.learns:
        raise ConfigError(f"{where}, which does not learn; name one that does, such as QLearning")
    assert config.fit is not None  # only an experiment with this section gets here
    if config.fit.export is not None and kind_for("controller", composition_of(config)) is None:
        raise ConfigError(f"{where}, and no artifact kind holds its state: leave fit.export out")


def composition_of(config: Config) -> dict[str, Any]:
    """Return the class path and arguments of each of the four parts."""
    return {family: config.get(family) for family in Parts._fields}


def learn(config: Config) -> ControllerLearning:
    """Learn from the prompts of ``data``, resuming from ``<output>/<name>/checkpoints/last.ckpt`` if it exists.

    Raises:
        ConfigError: if the models, the recording or the prompts cannot be loaded, or the parts are incompatible.
    """
    os.environ.setdefault("WANDB_MODE", "offline")
    from lightning.pytorch.loggers import WandbLogger

    from specexp.bench.arm import LearningArm
    from specexp.bench.arm_spec import ArmSpec, Backend, errors_at, make_arm
    from specexp.bench.experiment import solver_of, use_threads
    from specexp.bench.trainer import build_trainer
    from specexp.config import build_data, build_pair, build_parts, prompt_errors
    from specexp.fit.resumable import ControllerLearning, checkpoints_in, run

    section, name = config.fit, config.name
    assert section is not None
    use_threads(config.generation.threads)
    backend: Backend
    if config.is_replayed:
        from specexp.replay.backend import open_replay

        backend, data = open_replay(config)
    else:
        from specexp.bench.live import LiveBackend

        pair = build_pair(config)
        backend = LiveBackend(pair, solver_of(config, pair))
        data = build_data(config, backend.tokenizer)
    with prompt_errors(config):
        prompts = data.prompts
    where = f"{config.source_of(('backend',))}: backend"
    with errors_at(where):
        parts = build_parts(config, backend.draft)
    arm = make_arm(ArmSpec(name, config.generation, parts, latency=config.latency, where=where), backend)
    assert isinstance(arm, LearningArm)
    module = ControllerLearning(arm, prompts, backend)
    folder = config.output / name
    folder.mkdir(parents=True, exist_ok=True)
    arguments: dict[str, Any] = {
        "max_steps": section.epochs * len(module.prompts),
        "max_epochs": -1,
        "log_every_n_steps": 1,  # each step is one prompt
        "enable_progress_bar": False,
        "enable_checkpointing": True,
        "callbacks": [checkpoints_in(folder, section.checkpoint_every)],
        "default_root_dir": folder,
    }
    if "logger" not in config.get("trainer"):
        tracked = wanted_mode(config.tracking.mode) != "disabled"
        project = project_of(config.tracking.project)
        take_over(config.tracking.project)
        arguments["logger"] = WandbLogger(name=name, project=project, save_dir=str(folder)) if tracked else False
    trainer = build_trainer(config.get("trainer"), config.checker, **arguments)
    run(trainer, module, folder, train_dataloaders=data.loader())
    return module


def report(config: Config, module: ControllerLearning) -> Report:
    """Export the learned state, and return a report that describes it, with a plot of the Q-table if there is one."""
    from specexp.config.artifacts import save_artifact
    from specexp.report.publish import Attached, Report

    arm, name = module.arm, config.name
    controller: Any = arm.parts.controller
    answers = f"{module.done} answers to {min(module.done, len(module.prompts))} prompts"
    learned = controller.learned()
    sentences = [f"Learned from {module.steps:.0f} steps of {answers}{f'; {learned}' if learned else ''}."]
    provenance = module.backend.provenance(arm)
    if "recording" in provenance:
        where = provenance["recording"]["folder"]
        worth = provenance["recording"]["fidelity"]
        sentences.append(f"The steps were replayed from the recording {where} ({worth}).")
    artifacts = []
    assert config.fit is not None
    export = config.fit.export
    if export is not None:
        composition = composition_of(config)
        kind = kind_for("controller", composition)
        assert kind is not None, "checked before learning"
        state = {"learned": {"controller": controller.state_dict()}}
        payloads = kind.payloads_of(composition, state) or {}
        metrics = {"steps": module.steps}
        made_by = {"study": name, "config": config.to_dict(), "metrics": metrics, **provenance}
        fingerprint = module.backend.fingerprint()
        artifact = save_artifact(Path(export.to), export.kind, payloads, made_by, fingerprint, name=name)
        sentences.append(f"Its learned state is in {artifact.folder}, a {artifact.kind}.")
        artifacts.append(Attached(artifact.folder, name, artifact.kind))
    figures = {}
    if isinstance(controller, QLearning):
        title = f"{name}: {module.steps:.0f} steps of {answers}"
        figures["q_table"] = draw_table(controller.table, title)
    return Report(figures=figures, sentences=sentences, artifacts=artifacts)


def draw_table(table: QTable, title: str) -> Figure:
    """Draw Q(CONTINUE) - Q(STOP) and the visits for each bin. With extra signals, draw only the most visited blocks."""
    from matplotlib.colors import LogNorm, TwoSlopeNorm
    from matplotlib.figure import Figure

    values, visits = np.array(table.values), np.array(table.visits)
    size = table.block_size
    starts = sorted(range(0, table.rows, size), key=lambda row: -visits[row : row + size].sum())[:_MOST_BLOCKS]
    cost = _labels(table.cost_bins)
    confidence = _labels(table.confidence_bins)
    shape = (len(cost), len(confidence))
    figure = Figure(figsize=(13, 0.6 + 4.4 * len(starts)), layout="constrained")
    figure.suptitle(title)
    axes = figure.subplots(len(starts), 2, squeeze=False)
    for (decides, counts), start in zip(axes, starts, strict=True):
        cells = slice(start + 1, start + size)  # the first row of a block is for the start of a step
        counted = visits[cells].sum(axis=1).reshape(shape)  # [cost, confidence]
        gain = (values[cells, CONTINUE] - values[cells, STOP]).reshape(shape)
        gain = np.ma.masked_where(counted == 0, gain)
        limit = max(float(np.abs(gain).max()) if gain.count() else 0.0, 1e-9)  # TwoSlopeNorm needs a width
        image = decides.imshow(
            gain.T, cmap="PuOr", norm=TwoSlopeNorm(0.0, -limit, limit), origin="lower", aspect="auto"
        )
        figure.colorbar(image, ax=decides, label="Q(CONTINUE) - Q(STOP)")
        begins = values[start, CONTINUE] - values[start, STOP]
        what = "drafts" if begins >= 0 else "stays off"
        decides.set_title(f"a step {what} (CONTINUE worth {begins:+.2f}); ■ CONTINUE, □ STOP", fontsize=10)
        for column, row in zip(*np.nonzero(counted), strict=True):
            mark = "■" if gain[column, row] >= 0 else "□"
            decides.text(column, row, mark, ha="center", va="center", fontsize=7, color="0.25")
        shown = np.ma.masked_where(counted == 0, counted)
        most = max(int(counted.max()), 2)
        image = counts.imshow(shown.T, cmap="viridis", norm=LogNorm(1, most), origin="lower", aspect="auto")
        figure.colorbar(image, ax=counts, label="visits")
        counts.set_title("visits", fontsize=10)
        for axis in (decides, counts):
            axis.set_xticks(range(shape[0]), cost, rotation=45, ha="right")
            axis.set_yticks(range(shape[1]), confidence)
            axis.set_xlabel("draft passes spent")
            axis.set_ylabel("product of confidences")
    return figure


def _labels(edges: list[float]) -> list[str]:
    if not edges:
        return ["all"]
    shown = [f"{edge:g}" for edge in edges]
    between = [f"{low} to {high}" for low, high in pairwise(shown)]
    return [f"< {shown[0]}", *between, f"≥ {shown[-1]}"]
