"""``python -m specexp.fit CONFIG.yaml [--key value]``: trains what a configuration describes, with
Lightning's Trainer."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

USAGE = """usage: python -m specexp.fit CONFIG.yaml [--key value ...]

CONFIG.yaml  model and data (class_path, init_args), trainer (arguments of lightning.Trainer), work_dir,
export_to --key value  overrides one key, for example --model.init_args.minutes 5 or --trainer.precision
32-true

The run continues from the last checkpoint in work_dir, if there is one. Weights & Biases logs offline unless
WANDB_MODE says otherwise.
"""


def fit(
    model: Any,
    data: Any,
    *,
    work_dir: str | Path,
    trainer: dict[str, Any] | None = None,
    export_to: str | Path | None = None,
    checkpoint_every: int = 100,
    name: str = "fit",
) -> Any:
    """Trains ``model`` on ``data``, continuing from ``work_dir/checkpoints/last.ckpt`` where it exists.

    Args:
        model: a LightningModule.
        data: a LightningDataModule with a method ``tokenizer()``.
        work_dir: checkpoints and logs go here.
        trainer: arguments of `lightning.Trainer`.
        export_to: where the trained model is written as a Hugging Face folder; nowhere when absent.
        checkpoint_every: steps between two checkpoints.
        name: of the Weights & Biases run.

    Returns:
        The trainer, after the run.
    """
    os.environ.setdefault("WANDB_MODE", "offline")
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.loggers import WandbLogger

    work = Path(work_dir)
    work.mkdir(parents=True, exist_ok=True)
    checkpoints = ModelCheckpoint(
        dirpath=work / "checkpoints",
        filename="last",
        every_n_train_steps=checkpoint_every,
        enable_version_counter=False,
    )
    arguments = {
        "max_steps": -1,
        "max_epochs": -1,
        "enable_progress_bar": sys.stderr.isatty(),
        **(trainer or {}),
    }
    if "logger" not in arguments:
        arguments["logger"] = WandbLogger(name=name, project="specexp", save_dir=str(work))
    runner = lightning.Trainer(default_root_dir=work, callbacks=[checkpoints], **arguments)
    last = work / "checkpoints" / "last.ckpt"
    runner.fit(model, datamodule=data, ckpt_path=str(last) if last.exists() else None, weights_only=True)
    runner.save_checkpoint(last, weights_only=False)
    if export_to is not None:
        from specexp.training.export import export_model

        export_model(model.model, data.tokenizer(), export_to)
    return runner


def main(arguments: list[str] | None = None) -> int:
    """The command; returns its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if arguments else 2
    config, *overrides = arguments
    if not Path(config).is_file():
        print(f"specexp.fit: no configuration file {config!r}", file=sys.stderr)
        return 2
    import lightning
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(prog="python -m specexp.fit", exit_on_error=True)
    parser.add_argument("--config", action="config")
    parser.add_subclass_arguments(lightning.LightningModule, "model", required=True)
    parser.add_subclass_arguments(lightning.LightningDataModule, "data", required=True)
    parser.add_function_arguments(fit, skip={"model", "data"})
    values = parser.parse_args(["--config", config, *overrides])
    values = parser.instantiate(values)
    fit(values.model, values.data, **{key: values[key] for key in _FIT_KEYS})
    return 0


_FIT_KEYS = ("work_dir", "trainer", "export_to", "checkpoint_every", "name")

if __name__ == "__main__":
    sys.exit(main())
