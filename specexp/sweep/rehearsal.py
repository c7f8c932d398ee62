"""Dry run of a sweep: everything up to its first trial, without weights."""

from __future__ import annotations

from typing import get_args

from specexp.artifacts import StudyKind, kind_named
from specexp.bench.trainer import build_trainer
from specexp.config import Config, build_outline
from specexp.config.sweep import Sweep
from specexp.config.swept import awaits_counts
from specexp.core.parts import Parts
from specexp.sweep.backend import StudyBackend
from specexp.sweep.bench import StudyBench
from specexp.sweep.branches import Possible, branches, composer, without_impossible
from specexp.sweep.candidates import Candidate
from specexp.sweep.drawing import check_drawing
from specexp.sweep.session import check_prompts, live_backend, replayed_backend
from specexp.sweep.study_config import StudyConfig


def rehearse(study_config: StudyConfig, settings: Sweep) -> Possible:
    """Read the prompts of all stages and compose every branch of the space, with models that have no weights.

    Returns:
        The study without the choices that cannot be built.

    Raises:
        ValueError: sampler, pruner, trainer, models, prompts or parts cannot be used, or do not go together; or no
            candidate can leave the artifact that ``sweep.export`` names.
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
    _check_export(possible, StudyBench(backend, study_config.folder))
    return possible


def _check_export(possible: Possible, bench: StudyBench) -> None:
    """Raise if none of the candidates is of the kind of artifact that the sweep exports."""
    study_config, sweep = bench.study_config, possible.sweep
    if sweep.export is None:
        return
    fitting: set[str] = set()
    for overrides in (*branches(study_config, sweep), *(known.overrides for known in sweep.known)):
        if awaits_counts(study_config.with_overrides(overrides), sweep):
            return
        try:
            candidate = bench.prepare(overrides)
        except ValueError:  # of a pair that does not go together
            continue
        fitting |= _kinds_of(candidate, study_config.config, learns=sweep.learn is not None)
        candidate.arm.close()
        if sweep.export.kind in fitting:
            return
    learned = kind_named(sweep.export.kind).learned
    unlearned = f"; a {learned} is kept only with sweep.learn" if learned and sweep.learn is None else ""
    raise study_config.config.checker.error(
        ("sweep", "export", "kind"),
        f" is {sweep.export.kind!r}, and no candidate of this space is one; allowed are "
        f"{', '.join(sorted(fitting)) or 'none'}{unlearned}",
    )


def _kinds_of(candidate: Candidate, config: Config, *, learns: bool) -> set[str]:
    """Return the kinds of artifact that hold a candidate, with its learned state where the study learns."""
    parts, resolved = candidate.arm.parts, candidate.attributes["resolved"]
    specs = {family: resolved.get(family, config.get(family)) for family in Parts._fields}
    state = {
        "controller": parts.controller.state_dict(),
        "drafter": None if parts.drafter is None else parts.drafter.state_dict(),
    }
    attributes = {**candidate.attributes, **({"learned": state} if learns else {})}
    return {
        kind for kind in get_args(StudyKind) if kind_named(kind).payloads_of(specs, attributes) is not None
    }
