"""Builds Lightning's Trainer from an experiment file, handles its interrupts, and silences libraries."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from specexp.base.checked import import_object
from specexp.base.messages import first_line
from specexp.config.check import Checker, announce_import
from specexp.config.layers import ConfigError

if TYPE_CHECKING:
    from lightning import Trainer


def build_trainer(given: Mapping[str, Any], checker: Checker, **overrides: Any) -> Trainer:
    """Return the Trainer for the section ``trainer:`` (``given``), by default without Lightning's logs and checkpoints.

    ``overrides`` take precedence over the file. Raises ConfigError if Lightning rejects an argument or if an object
    with a ``class_path`` cannot be made.
    """
    from lightning import Trainer
    from lightning.fabric.plugins.environments.lightning import LightningEnvironment

    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_model_summary"), False)
    # pair.device places the models; the Trainer moves nothing
    settings = {"accelerator": "cpu", **quiet, **given, **overrides}
    # a shell's SLURM variables concern other processes
    settings.setdefault("plugins", [LightningEnvironment()])
    quiet_libraries()
    for name, value in settings.items():
        _check_value(name, value, checker)
    where = f"{checker.source_of(('trainer',))}: trainer"
    try:
        return Trainer(**{name: _object(value, f"{where}.{name}") for name, value in settings.items()})
    except Exception as error:  # Lightning raises its own errors, and those of other libraries
        raise refused_trainer(error, given, checker) from error


def refused_trainer(error: Exception, given: Mapping[str, Any], checker: Checker) -> ConfigError:
    """Return Lightning's error as a ConfigError that names the argument in ``given`` that it is about, if it shows."""
    why = first_line(error)
    texts = ("{name}={value}", "{value!r}", "{name}")  # how a message shows an argument, the clearest first
    shown = [name for text in texts for name, value in given.items() if text.format(name=name, value=value) in why]
    return checker.error(("trainer", *shown[:1]), f": {why}")


def _check_value(name: str, value: Any, checker: Checker) -> None:
    """Raise ConfigError for values that would make Lightning fail later or skip prompts."""
    items = value if isinstance(value, list) else [value]
    simple = any(isinstance(item, str | int | float) for item in items)
    if name == "logger" and simple and not isinstance(value, bool):
        allowed = "a Logger given as class_path and init_args, a list of these, or false"
    elif name == "callbacks" and simple and value is not False:
        allowed = "a Callback given as class_path and init_args, a list of these, or null"
    elif name in ("devices", "num_nodes") and value not in (1, "1", "auto", -1, "-1"):
        allowed = "1 (one process times answers one after the other)"
    elif name in ("limit_test_batches", "limit_predict_batches") and value not in (None, 1.0):
        allowed = "null (data.max_prompts limits the prompts)"
    elif name == "fast_dev_run" and value:
        allowed = "false (data.max_prompts limits the prompts)"
    else:
        return
    raise checker.error(("trainer", name), f" must be {allowed}, got {value!r}")


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt where Lightning would turn it into SystemExit."""
    try:
        yield
    except SystemExit as end:
        raise (end.__context__ if isinstance(end.__context__, KeyboardInterrupt) else KeyboardInterrupt) from end


def quiet_libraries() -> None:
    """Silence Transformers and Lightning, so that the command's own output stays readable."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    for name in ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")


def _object(value: Any, where: str) -> Any:
    if isinstance(value, list):
        return [_object(item, where) for item in value]
    if isinstance(value, Mapping) and "class_path" in value:
        announce_import(str(value["class_path"]), "lightning")
        return import_object(str(value["class_path"]))(**(value.get("init_args") or {}))
    return value
