"""The dry run of a sweep, and the choices of a space that cannot be built, which are left out of the search."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, product
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, get_args

from specexp.artifacts import StudyKind, kind_named
from specexp.config import build_pair
from specexp.config.load import STAGES, awaits_counts
from specexp.config.sweep import Categorical, Sweep
from specexp.core.messages import first_line
from specexp.core.parts import Parts
from specexp.sweep.space import Space
from specexp.sweep.study import Study, live_study
from specexp.sweep.study_config import StudyConfig

if TYPE_CHECKING:
    from specexp.models.pair import ModelPair


def without_impossible(
    config: StudyConfig, sweep: Sweep, compose: Callable[[Mapping[str, Any]], object]
) -> tuple[Sweep, dict[str, str]]:
    """Leave out the choices of whole parts, and the known configurations, that cannot be built.

    A choice is left out if it can be built with no combination of the others, at either end of its numbers. Two
    choices that cannot be built together stay: a trial that draws both fails at once. A candidate that awaits
    acceptance counts stays.

    Args:
        compose: Composes a candidate of these overrides; raises ValueError if it cannot be built.

    Returns:
        The remaining study, and the reason for each choice, pair of choices and configuration that cannot be built.

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

    def refusal_of_choices(space: Sweep, chosen: Mapping[str, Any]) -> str | None:
        first = None
        for overrides in branches(config, space, chosen):
            reason = refusal(overrides)
            if reason is None:
                return None
            first = first or reason
        return first

    left_out, entries = dict[str, str](), dict(sweep.space)
    for key, entry in _whole_parts(sweep).items():
        reasons = {label: refusal_of_choices(sweep, {key: label}) for label in entry.by_label}
        refused = {f"{key} {label!r}": why for label, why in reasons.items() if why is not None}
        # ``by_label`` is in the order of the choices.
        kept = [choice for choice, why in zip(entry.choices, reasons.values(), strict=True) if why is None]
        if not kept:
            why = next(iter(refused.values()))
            raise config.config.checker.error(("sweep", "space", key), f": no choice can be built: {why}")
        entries[key], left_out = entry.with_changes(choices=kept), left_out | refused
    rest = sweep.with_changes(space=entries, enqueue=[])
    for (one, entry), (other, second) in combinations(_whole_parts(rest).items(), 2):
        for label, beside in product(entry.by_label, second.by_label):
            reason = refusal_of_choices(rest, {one: label, other: beside})
            if reason is not None:
                left_out[f"{one} {label!r} with {other} {beside!r}"] = reason
    known = {one.name: refusal(one.overrides) for one in sweep.known}
    left_out |= {name: why for name, why in known.items() if why is not None}
    first = [given for given, why in zip(sweep.enqueue, known.values(), strict=True) if why is None]
    return sweep.with_changes(space=entries, enqueue=first), left_out


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


def rehearse(study_config: StudyConfig, settings: Sweep) -> tuple[Sweep, dict[str, str]]:
    """Read the prompts of all stages and compose every branch of the space, with models that have no weights.

    Returns:
        As :func:`without_impossible`.

    Raises:
        ValueError: Sampler, pruner, trainer, models, prompts or parts cannot be used, or do not go together; or no
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
    possible, left_out = without_impossible(study_config, settings, study.try_to_compose)
    _check_export(possible, study)
    return possible, left_out


def _check_export(sweep: Sweep, study: Study) -> None:
    config = study.config
    if sweep.export is None:
        return
    fitting: set[str] = set()
    for overrides in (*branches(config, sweep), *(known.overrides for known in sweep.known)):
        if awaits_counts(config.with_overrides(overrides), sweep):
            return
        try:
            candidate = study.prepare(overrides)
        except ValueError:  # choices that do not go together
            continue
        parts, attributes = candidate.arm.parts, candidate.attributes
        state = {
            "controller": parts.controller.state_dict(),
            "drafter": None if parts.drafter is None else parts.drafter.state_dict(),
        }
        candidate.arm.close()
        learned = {"learned": state} if sweep.learn is not None else {}
        specs = {
            family: attributes["resolved"].get(family, config.config.get(family)) for family in Parts._fields
        }
        filled = {**attributes, **learned}
        fitting |= {
            kind for kind in get_args(StudyKind) if kind_named(kind).payloads_of(specs, filled) is not None
        }
        if sweep.export.kind in fitting:
            return
    part = kind_named(sweep.export.kind).learned
    needs = f"; a {part} is kept only with sweep.learn" if part and sweep.learn is None else ""
    raise config.config.checker.error(
        ("sweep", "export", "kind"),
        f" is {sweep.export.kind!r}, and no candidate of this space is one; allowed are "
        f"{', '.join(sorted(fitting)) or 'none'}{needs}",
    )
