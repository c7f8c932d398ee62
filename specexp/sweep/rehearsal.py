"""Everything that a sweep does before its first trial, done without weights."""

from __future__ import annotations

from specexp.bench.trainer import build_trainer
from specexp.config import build_outline
from specexp.config.sweep import Sweep
from specexp.sweep.backend import StudyBackend
from specexp.sweep.bench import StudyBench
from specexp.sweep.branches import Possible, composer, without_impossible
from specexp.sweep.drawing import check_drawing
from specexp.sweep.exportable import check_export
from specexp.sweep.session import check_prompts, live_backend, replayed_backend
from specexp.sweep.study_config import StudyConfig


def rehearse(study_config: StudyConfig, settings: Sweep) -> Possible:
    """Read the prompts of all stages and compose every branch of the space, with models that have no weights.

    Args:
        study_config: The experiment.
        settings: Its sweep section.

    Returns:
        The study without what cannot be built.

    Raises:
        ValueError: Sampler, pruner, trainer, models, prompts or parts cannot be used, or do not go together.
    """
    config = study_config.config
    check_drawing(settings, config.checker)
    build_trainer(config)
    backend: StudyBackend
    if study_config.replayed:
        backend = replayed_backend(study_config, settings)
    else:
        backend = live_backend(study_config, build_outline(config))
    check_prompts(study_config, backend)
    possible = without_impossible(study_config, settings, composer(study_config, backend))
    check_export(possible, StudyBench(backend, study_config.folder))
    return possible
