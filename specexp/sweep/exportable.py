"""Whether a study can leave the kind of artifact it is asked for: seen before anything is measured."""

from __future__ import annotations

from typing import get_args

from specexp.artifacts import StudyKind, kind_named
from specexp.config import Config
from specexp.config.swept import awaits_counts
from specexp.core.parts import Parts
from specexp.sweep.bench import StudyBench
from specexp.sweep.branches import Possible, branches
from specexp.sweep.candidates import Candidate


def check_export(possible: Possible, bench: StudyBench) -> None:
    """Refuse an export of a kind that none of the candidates is.

    Args:
        possible: What of the study can be built.
        bench: Composes its candidates.

    Raises:
        ConfigError: With the kinds that candidates are.
    """
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
    unlearned = (
        f"; what a {learned} learns is kept where there is sweep.learn"
        if learned and sweep.learn is None
        else ""
    )
    raise study_config.config.checker.error(
        ("sweep", "export", "kind"),
        f" is {sweep.export.kind!r}, and no candidate of this space is one; allowed are "
        f"{', '.join(sorted(fitting)) or 'none'}{unlearned}",
    )


def _kinds_of(candidate: Candidate, config: Config, *, learns: bool) -> set[str]:
    """The kinds of artifact that hold a candidate, and what it has learned where it learns beforehand."""
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
