"""``python -m specexp.fit CONFIG.yaml [--key value]``: trains a model or a controller with Lightning's Trainer."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field

from specexp.base.checked import PartOf, arguments_of
from specexp.base.messages import counted, first_line, restated
from specexp.config import Config, ConfigError
from specexp.config.check import Checker
from specexp.config.command import (
    DRY_RUN,
    GOES_ON,
    HELP,
    OPTIONS,
    answered,
    check_here,
    check_writable,
    collected_result,
    current_result,
    fail,
    run_command,
    say,
)
from specexp.config.config import check_trainer
from specexp.config.layers import read_layers
from specexp.config.next_step import command_line, experiment_again
from specexp.data.prompt_set import PromptSetError
from specexp.tracking.mode import project_of, take_over, wanted_mode

USAGE = """usage: python -m specexp.fit CONFIG.yaml [--dry-run] [--key value ...]

The controller of an experiment with a fit: section learns on the prompts of data. The run continues from the last
checkpoint in its output folder.

Any other CONFIG.yaml trains a model. It names model and data (class_path, init_args), trainer (arguments of
lightning.Trainer), work_dir and export_to. --dotted.key overrides the file, e.g. --model.init_args.tokens 1000000
--trainer.precision 32-true. The run continues from the last checkpoint in work_dir, if there is one. Lightning
distributes it over devices and machines: --trainer.devices 4 --trainer.num_nodes 2 --trainer.strategy ddp

--dry-run builds the model and prepares the data (prepare_data), but trains nothing. W&B logs offline unless WANDB_MODE
is set."""


def fit(
    model: Annotated[Any, PartOf("lightning.LightningModule")],
    data: Annotated[Any, PartOf("lightning.LightningDataModule")],
    *,
    work_dir: str | Path,
    trainer: dict[str, Any] | None = None,
    export_to: str | Path | None = None,
    checkpoint_every: Annotated[int, Field(ge=1)] = 100,
    name: str = "fit",
) -> Any:
    """Train ``model`` on ``data``, resuming from ``work_dir/checkpoints/last.ckpt`` if it exists.

    Args:
        model: A LightningModule with a method ``export(tokenizer, folder)``.
        data: A LightningDataModule with a method ``tokenizer()``.
        work_dir: Folder for checkpoints and logs.
        trainer: Arguments for `lightning.Trainer`.
        export_to: Folder for the result. By default, nothing is exported.
        checkpoint_every: Number of steps between checkpoints.
        name: Name of the Weights & Biases run.

    Returns:
        The trainer, after the run.
    """
    os.environ.setdefault("WANDB_MODE", "offline")
    import lightning
    import torch
    from lightning.fabric.plugins.environments.lightning import LightningEnvironment
    from lightning.pytorch.loggers import WandbLogger

    from specexp.fit.resumable import checkpoints_in, run

    work = Path(work_dir)
    work.mkdir(parents=True, exist_ok=True)
    arguments = {
        # The module ends training once its token budget is spent.
        "max_steps": -1,
        "max_epochs": -1,
        "enable_progress_bar": sys.stderr.isatty(),
        **(trainer or {}),
    }
    if "logger" not in arguments:
        take_over(None)
        logger = WandbLogger(name=name, project=project_of(None), save_dir=str(work))
        arguments["logger"] = logger if wanted_mode() != "disabled" else False
    devices = arguments.get("devices", "auto" if torch.cuda.is_available() else 1)
    if devices in (1, "1") and arguments.get("num_nodes", 1) == 1:
        # One process trains, so a shell's SLURM variables concern other processes.
        arguments.setdefault("plugins", [LightningEnvironment()])
    checkpoints = checkpoints_in(work, checkpoint_every)
    runner = lightning.Trainer(default_root_dir=work, callbacks=[checkpoints], **arguments)
    run(runner, model, work, datamodule=data)
    if export_to is not None and runner.is_global_zero:
        model.export(data.tokenizer(), export_to)
    return runner


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    try:
        given = list(sys.argv[1:] if arguments is None else arguments)
        overrides = [argument for argument in given[1:] if argument not in OPTIONS]
        wants_help = not given or given[0].startswith("-") or not HELP.isdisjoint(given)
        if wants_help or _of_controller(given[0], overrides):
            return run_command(USAGE, given, _learn, after=GOES_ON)
        shows = "--print-config" in given
        with restated(ValueError, lambda error: ConfigError(str(error))):
            wanted_mode()
        values = read_fit(given[0], overrides, build=not shows)
    except ConfigError as error:
        return fail(error)
    if shows:
        return say(yaml.safe_dump(values, sort_keys=False, allow_unicode=True), end="")
    if DRY_RUN in given:
        return 0

    def act() -> int:
        try:
            runner = fit(**values)
        except PromptSetError as error:  # a source of the corpus cannot be read
            return fail(error)
        if (to := values.get("export_to")) is not None and runner.is_global_zero:
            current_result().folder = str(to)
            # A model can be a study's target; heads and corpora are arguments of drafters.
            if Path(to, "tokenizer.json").exists():
                current_result().next = command_line("init", "my-study", "--target", to)
            elif Path(to, "config.json").exists():  # a head in the published layout
                head = ("--drafter", "Eagle3", "--drafter.init_args.head", to, "--builder", "Chain")
                current_result().next = command_line("run", "FILE.yaml", *head)
        return 0

    with collected_result(given) as found:
        found.exit_code = answered(act, GOES_ON)
    return found.exit_code


def _of_controller(path: str, overrides: Sequence[str]) -> bool:
    """Return whether a file is an experiment with a ``fit:`` section, as opposed to a file that trains a model."""
    values = read_layers(path, overrides).values
    if not {"fit", "model"} & values.keys():
        raise ConfigError(
            f"{path} has neither a fit: section (to let a controller learn) nor a model: section (to train a model)"
        )
    return "fit" in values


def _learn(config: Config, dry: bool) -> int:
    from specexp.fit.learn import check_learning, learn, report

    check_learning(config)
    check_here(config, "fit.export.to")
    if dry:
        if config.is_replayed:
            from specexp.config import prompt_errors
            from specexp.replay.backend import open_replay

            _, data = open_replay(config)
            with prompt_errors(config):
                _ = data.prompts
        else:
            from specexp.bench.experiment import rehearse

            rehearse(config)
        assert config.fit is not None
        learner = config.get("controller")["class_path"]
        print(f"{config.name}: {learner} learns from the prompts of data, {config.fit.epochs} x")
        return 0
    from specexp.artifacts import ArtifactError
    from specexp.report.publish import publish

    module = learn(config)
    if module.failed:
        first = module.failed[0]
        why = (
            f"{len(module.failed)} of {counted(module.done, 'prompt')} could not be learned from, e.g. "
            f"{first.prompt_id!r}: {first.error}"
        )
        if len(module.failed) == module.done:
            return fail(f"{why}; nothing is exported", 1)
    try:
        found = report(config, module)
        publish(found, config.output / config.name)
        if found.artifacts:
            current_result().artifact = str(found.artifacts[0].folder)
            name = f"{config.name}_learned"  # another name, because this folder holds the results of learning
            again = experiment_again(config.invocation)
            current_result().next = command_line("run", *again, "--artifact", current_result().artifact, "--name", name)
    except ArtifactError as error:
        return fail(error, 1)
    return fail(f"{why}; the controller learned from the other prompts", 1) if module.failed else 0


def read_fit(path: str | Path, overrides: Sequence[str] = (), *, build: bool = True) -> dict[str, Any]:
    """Read the arguments of :func:`fit` from a file and overrides. If ``build``, also build and prepare model and data.

    Raises:
        ConfigError: if a key is unknown, a value is not allowed, a folder cannot be written, or the model or data
            cannot be built or prepared.
    """
    layers = read_layers(path, overrides)
    checker = Checker(lambda key: layers.source_of(key, str(path)))
    values = checker.arguments(fit, layers.values, ())
    check_trainer(values["trainer"] or {}, checker)
    if not build:
        return values
    _check_trainer_here(values["trainer"] or {}, checker)
    for name in ("work_dir", "export_to"):
        if values[name] is not None:
            check_writable(Path(values[name]), checker.error((name,), ""))
    signature = arguments_of(fit) or {}
    built = {name: checker.build(values[name], signature[name].annotation, (name,)) for name in ("model", "data")}
    # Lightning calls it again, but only after the logger and the trainer have begun a run
    if os.environ.get("LOCAL_RANK", "0") == "0":
        with restated((ValueError, OSError), lambda error: checker.error(("data",), f": {first_line(error)}")):
            built["data"].prepare_data()
    return {**values, **built}


def _check_trainer_here(given: dict[str, Any], checker: Checker) -> None:
    """Raise ConfigError if Lightning rejects arguments of its Trainer on this machine."""
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    from specexp.bench.trainer import quiet_libraries, refused_trainer

    quiet_libraries()
    try:
        lightning.Trainer(callbacks=[ModelCheckpoint()], **{"logger": False, **given})  # as :func:`fit` makes it
    except Exception as error:  # Lightning raises its own errors, and those of other libraries
        raise refused_trainer(error, given, checker) from error
