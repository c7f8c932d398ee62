"""Dry run of an experiment: everything up to decoding, without weights."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from specexp.bench.experiment import arm_specs, begin_analyses, check_prompts, check_tasks, load_prompts
from specexp.bench.make_arm import make_arm
from specexp.config import ConfigError, build_analyses, build_data, build_outline
from specexp.data import PromptSetError

if TYPE_CHECKING:
    from specexp.bench.live import LiveBackend
    from specexp.config import Config


def rehearse(config: Config) -> LiveBackend:
    """Make the arms of an experiment and read its prompts, with models that have no weights.

    Raises:
        ConfigError: trainer, models, parts or prompts cannot be used, or do not go together.
    """
    from specexp.bench.live import LiveBackend
    from specexp.bench.trainer import build_trainer

    check_tasks(config)
    build_trainer(config)
    pair = build_outline(config)
    load_prompts(config, pair)
    backend = LiveBackend.of(config, pair)
    arms = []
    for spec in arm_specs(config):
        # engines were checked as they were made, and need weights to start
        arms.append(make_arm(replace(spec, preload=None, engine=None), backend))
        arms[-1].close()
        if spec.preload is not None:
            try:
                check_prompts(spec.preload, build_data(spec.preload, pair.tokenizer).prompts, pair)
            except PromptSetError as error:
                raise ConfigError(f"{spec.where}.preload: {error}") from error
    begin_analyses(config, build_analyses(config), arms)
    return backend
