"""The dry run of a sweep, and the choices of a space that cannot be built, which are left out of the search."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, get_args

from specexp.artifacts import StudyKind, kind_named
from specexp.config import Config, build_pair
from specexp.config.load import STAGES, awaits_counts
from specexp.config.sweep import Categorical, Sweep
from specexp.core.messages import first_line
from specexp.core.parts import Parts
from specexp.sweep.space import Space
from specexp.sweep.study import Study, live_study
from specexp.sweep.study_config import StudyConfig
from specexp.sweep.trials import Candidate

if TYPE_CHECKING:
    from specexp.models.pair import ModelPair

Compose = Callable[[Mapping[str, Any]], object]
"""Composes a candidate of these overrides; ValueError where it cannot be."""


def composer(study: Study) -> Compose:
    """Return a function that composes a candidate of a study, and stops what it keeps running."""

    def compose(overrides: Mapping[str, Any]) -> None:
        study.compose("candidate", study.config.with_overrides(overrides)).close()

    return compose


@dataclass(frozen=True)
class Possible:
    """The part of a study that can be built."""

    sweep: Sweep  # the study without the choices that cannot be built at all
    # choices by key that cannot be built together, whatever the others are; the search avoids them
    pairs: tuple[Mapping[str, Any], ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)  # why not, by the name of what is left out


def without_impossible(config: StudyConfig, sweep: Sweep, compose: Compose) -> Possible:
    """A study without the choices of whole parts, and without what is measured first, that cannot be built.

    A choice goes with others: it is left out where it can be built with none of them, its numbers as small or as large
    as the space allows; where there is only one choice that it does not go with, the two are a pair. A candidate that
    awaits acceptance counts that are not there yet stays.

    Raises:
        ConfigError: Nothing is left.
    """

    def refusal(overrides: Mapping[str, Any]) -> str | None:
        try:
            if not awaits_counts(config.with_overrides(overrides), sweep):
                compose(overrides)
        except ValueError as error:
            return first_line(error)
        return None

    def why_not(space: Sweep, chosen: Mapping[str, Any]) -> str | None:
        """Why no candidate with these choices can be built; None where one can."""
        first = None
        for overrides in branches(config, space, chosen):
            found = refusal(overrides)
            if found is None:
                return None
            first = first or found
        return first

    out, entries = dict[str, str](), dict(sweep.space)
    for key, entry in _whole_parts(sweep).items():
        whys = {label: why_not(sweep, {key: label}) for label in entry.by_label}
        out |= {f"{key} {label!r}": why for label, why in whys.items() if why is not None}
        kept = [choice for choice in entry.choices if whys[_label(choice)] is None]
        if not kept:
            raise config.config.checker.error(
                ("sweep", "space", key), f": no choice can be built: {next(filter(None, whys.values()))}"
            )
        entries[key] = entry.with_changes(choices=kept)
    kept_choices = sweep.with_changes(space=entries, enqueue=[])
    pairs = []
    for (one, entry), (other, beside) in combinations(_whole_parts(kept_choices).items(), 2):
        for label, second in product(entry.by_label, beside.by_label):
            why = why_not(kept_choices, {one: label, other: second})
            if why is not None:
                pairs.append({one: label, other: second})
                out[f"{one} {label!r} with {other} {second!r}"] = why
    refused = [refusal(known.overrides) for known in sweep.known]
    out |= {known.name: why for known, why in zip(sweep.known, refused, strict=True) if why is not None}
    first = [given for given, why in zip(sweep.enqueue, refused, strict=True) if why is None]
    return Possible(sweep.with_changes(space=entries, enqueue=first), tuple(pairs), out)


def _whole_parts(sweep: Sweep) -> dict[str, Categorical]:
    return {
        key: entry
        for key, entry in Space(sweep).entries.items()
        if "." not in key and isinstance(entry, Categorical)
    }


def branches(
    config: StudyConfig, sweep: Sweep, chosen: Mapping[str, Any] = MappingProxyType({})
) -> Iterator[dict[str, Any]]:
    """Overrides of every combination of whole parts, its numbers as small and as large as the space allows.

    Args:
        chosen: Labels by key that are the same in all of them.
    """
    others = {key: list(entry.by_label) for key, entry in _whole_parts(sweep).items() if key not in chosen}
    for labels in product(*others.values()):
        for end in (0, 1):
            fixed = _Fixed({**dict(zip(others, labels, strict=True)), **chosen}, end)
            yield Space(sweep).suggest(fixed, config.applies)


class _Fixed:
    """Takes the place of a trial: the labels that are given, and one end of every other range: 0 low, 1 high."""

    def __init__(self, labels: Mapping[str, Any], end: int) -> None:
        self._labels = labels
        self._end = end

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        return self._labels.get(name, choices[-self._end])

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        return (low, high)[self._end]

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        return (low, high)[self._end]


def _label(choice: Any) -> Any:
    return choice["name"] if isinstance(choice, Mapping) else choice


def open_models(config: StudyConfig, settings: Sweep, pair: ModelPair | None = None) -> Study:
    """A study that a recording answers, or models that decode.

    Raises:
        ConfigError: Models or recording cannot be loaded, or do not go with the experiment.
    """
    if not config.replayed:
        return live_study(config, pair or build_pair(config.config), config.latency())
    from specexp.sweep.replayed import ReplayedStudy

    latency = config.latency()
    assert latency is not None, "a replay without latency is refused with the file"
    return ReplayedStudy(config, latency, confirms=settings.confirm is not None)


def check_prompts(study: Study) -> None:
    """Read the prompts of all stages before the first is decoded.

    Raises:
        ValueError: One does not fit the context, or the confirmation's are among the search's.
    """
    config = study.config.config
    found = {stage: study.data(stage) for stage in STAGES if config.get(f"sweep.{stage}", None) is not None}
    searched = {prompt.token_ids for prompt in study.data().prompts}
    for prompt in found["confirm"].prompts if "confirm" in found else ():
        if prompt.token_ids in searched:
            raise ValueError(
                f"sweep.confirm.data: prompt {prompt.prompt_id!r} is one of the search's, so it cannot confirm "
                "what the search found: give an offset of at least data.offset + data.max_prompts, or other prompts"
            )


def rehearse(study_config: StudyConfig, settings: Sweep) -> Possible:
    """Read the prompts of all stages and compose every branch of the space, with models that have no weights.

    Returns:
        The study without the choices that cannot be built.

    Raises:
        ValueError: sampler, pruner, trainer, models, prompts or parts cannot be used, or do not go together; or no
            candidate can leave the artifact that ``sweep.export`` names.
    """
    from specexp.bench.trainer import build_trainer
    from specexp.config import build_outline
    from specexp.sweep.sampler import check_sampler

    config = study_config.config
    check_sampler(settings, config.checker)
    build_trainer(config)
    study = open_models(study_config, settings, None if study_config.replayed else build_outline(config))
    check_prompts(study)
    possible = without_impossible(study_config, settings, composer(study))
    _check_export(possible, study)
    return possible


def _check_export(possible: Possible, study: Study) -> None:
    study_config, sweep = study.config, possible.sweep
    if sweep.export is None:
        return
    fitting: set[str] = set()
    for overrides in (*branches(study_config, sweep), *(known.overrides for known in sweep.known)):
        if awaits_counts(study_config.with_overrides(overrides), sweep):
            return
        try:
            candidate = study.prepare(overrides)
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
