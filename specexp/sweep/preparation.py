"""Prepares a sweep: loads models and prompts, and drops choices that cannot be built. A dry run does only this."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from types import MappingProxyType
from typing import Any, get_args

from specexp.artifacts import StudyKind, kind_named
from specexp.base.messages import counted, first_line
from specexp.config import ConfigError
from specexp.config.sweep import FUNCTION, Categorical, Suggested, Sweep
from specexp.models.pair import ModelPair
from specexp.sweep.bench import Bench
from specexp.sweep.live_benches import live_bench
from specexp.sweep.output import payloads_of
from specexp.sweep.replay_bench import ReplayBench
from specexp.sweep.sampler import check_sampler
from specexp.sweep.space import Space
from specexp.sweep.study_config import StudyConfig

_LISTED = 3  # maximum number of names in a sentence


def without_impossible(bench: Bench) -> tuple[Sweep, dict[str, str]]:
    """Remove choices of whole parts, and known configurations, that cannot be built.

    A choice is removed if it fails in every combination with other choices, with all numbers at their lowest and with
    all at their highest. Two choices that fail only together are kept; a trial that draws both fails at once.
    A candidate that needs acceptance counts is kept too, because it cannot be built before they are counted.

    Returns:
        The sweep without them, and the reason for removing each choice or configuration, by name.

    Raises:
        ConfigError: A key of the space has no choices left, or nothing that the space yields can be built.
    """
    config, sweep = bench.config, bench.config.sweep

    def refusal(overrides: Mapping[str, Any]) -> str | None:
        try:
            if not config.awaits_counts(overrides):
                bench.compose("candidate", overrides).close()
        except ValueError as error:
            return first_line(error)
        return None

    left_out, entries = dict[str, str](), dict(sweep.space)
    whole = _whole_parts(sweep)
    if not whole:  # a function, or only numbers
        # the lowest and highest values may not fit together where others do
        enqueued = (one.overrides for one in sweep.known)
        drawn = [refusal(overrides) for overrides in (*branches(config, sweep), {}, *enqueued)]
        if None not in drawn:
            raise config.checker.error(("sweep", "space"), f": no settings of it can be built: {drawn[0]}")
    for key, entry in whole.items():
        kept, refused = [], dict[str, str]()
        # ``by_label`` is in the order of the choices.
        for label, choice in zip(entry.by_label, entry.choices, strict=True):
            reasons = [refusal(overrides) for overrides in branches(config, sweep, {key: label})]
            if reasons[0] is not None and None not in reasons:
                refused[f"{key} {label!r}"] = reasons[0]
            else:
                kept.append(choice)
        if not kept:
            why = next(iter(refused.values()))
            raise config.checker.error(("sweep", "space", key), f": no choice can be built: {why}")
        entries[key], left_out = entry.with_changes(choices=kept), left_out | refused
    known = {one.name: refusal(one.overrides) for one in sweep.known}
    left_out |= {name: why for name, why in known.items() if why is not None}
    first = [given for given, why in zip(sweep.enqueue, known.values(), strict=True) if why is None]
    possible = sweep.with_changes(space=entries, enqueue=first)
    _check_ends(config, possible, refusal)
    return possible, left_out


def _check_ends(config: StudyConfig, sweep: Sweep, refusal: Callable[[Mapping[str, Any]], str | None]) -> None:
    """Raise ConfigError for an end of a range, or a choice, that cannot be built where another value of its key can.

    An end is the lowest or highest value that can be drawn, given ``at_most`` and the step of integers.
    It is tried in each composition of whole parts, with all other numbers at their lowest and at their highest.
    """
    drawn = [] if FUNCTION in sweep.space else [*branches(config, sweep)]
    for key, entry in sweep.space.items():
        if "." not in key or isinstance(entry, Suggested):
            continue
        if isinstance(entry, Categorical):
            values = {f"choices.{number}": value for number, value in enumerate(entry.by_label.values())}
        else:
            values = {"low": _Fixed({}, 0), "high": _Fixed({}, 1)}
        wrong: dict[str, str] = {}
        for name, value in values.items():
            for overrides in (one for one in drawn if key in one):
                drawn_value = value if isinstance(entry, Categorical) else entry.suggest(value, key, overrides)
                if (why := refusal({**overrides, key: drawn_value})) is None:
                    wrong.pop(name, None)
                    break
                wrong.setdefault(name, why)
        if wrong and len(wrong) < len(values):
            name, why = next(iter(wrong.items()))
            raise config.checker.error(("sweep", "space", key, name), f": {why}")


def _whole_parts(sweep: Sweep) -> dict[str, Categorical]:
    entries = Space(sweep).entries.items()
    return {key: entry for key, entry in entries if "." not in key and isinstance(entry, Categorical)}


def branches(
    config: StudyConfig, sweep: Sweep, chosen: Mapping[str, Any] = MappingProxyType({})
) -> Iterator[dict[str, Any]]:
    """Yield overrides for each combination of whole parts, once with the lowest and once with the highest numbers.

    If a function draws the settings, yield a few draws.

    ``chosen`` maps keys to the labels that all combinations share.
    """
    if FUNCTION in sweep.space:
        yield from config.drawn()
        return
    others = {key: list(entry.by_label) for key, entry in _whole_parts(sweep).items() if key not in chosen}
    for labels in product(*others.values()):
        for end in (0, 1):
            fixed = _Fixed({**dict(zip(others, labels, strict=True)), **chosen}, end)
            yield Space(sweep).suggest(fixed, config.applies)


class _Fixed:
    """A deterministic trial that suggests given labels and one end of each range (0: the low end, 1: the high end)."""

    def __init__(self, labels: Mapping[str, Any], end: int) -> None:
        self._labels = labels
        self._end = end

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        return self._labels.get(name, choices[-self._end])

    def suggest_int(self, name: str, low: int, high: int, step: int = 1, **how: Any) -> int:
        return (low, low + (high - low) // step * step)[self._end]

    def suggest_float(self, name: str, low: float, high: float, **how: Any) -> float:
        return (low, high)[self._end]


def open_bench(config: StudyConfig, pair: ModelPair | None = None) -> Bench:
    """Return a bench that replays a recording or runs the models; raises ConfigError if these cannot be loaded."""
    latency = config.latency
    if latency is None or not config.replayed:
        return live_bench(config, pair or config.load_models(), latency)
    return ReplayBench(config, latency, confirms=config.sweep.confirm is not None)


def left_out_lines(impossible: Mapping[str, str]) -> Iterator[str]:
    """Yield one sentence for each reason why choices of the space or known configurations cannot be built."""
    names: dict[str, list[str]] = {}
    for name, why in impossible.items():
        names.setdefault(why, []).append(name)
    for why, own in names.items():
        listed = own if len(own) <= _LISTED else [*own[:_LISTED], counted(len(own) - _LISTED, "other")]
        yield f"Not measured: {', '.join(listed)}, because {why.removeprefix('sweep: drafter: ')}."


def check_stages(bench: Bench) -> None:
    """Read the prompts of all stages; raises ConfigError if one does not fit or is in both search and confirmation."""
    config = bench.config
    found = {stage: bench.data(stage) for stage in config.sweep.stages}
    searched = {prompt.token_ids for prompt in bench.data().prompts}
    for sentence in bench.data().workload.preparation.notes():
        print(sentence)
    for prompt in found["confirm"].prompts if "confirm" in found else ():
        if prompt.token_ids in searched:
            raise ConfigError(
                f"{config.invocation.file}: sweep.confirm.data: prompt {prompt.prompt_id!r} is one of the search's or "
                "has its text: remove copies, or set an offset of at least data.offset + data.max_prompts"
            )


def rehearse(config: StudyConfig) -> tuple[Sweep, dict[str, str]]:
    """Read the prompts of all stages and compose every branch of the space, with models that have no weights.

    Returns the result of :func:`without_impossible`. Raises ValueError if a part of the experiment cannot be used, or
    if no candidate can be exported as ``sweep.export.kind``.
    """
    check_sampler(config.sweep, config.checker)
    bench = open_bench(config, None if config.replayed else config.load_models(weights=False))
    check_stages(bench)
    possible, left_out = without_impossible(bench)
    if possible.export is not None:
        _check_export(possible, bench, possible.export.kind)
    return possible, left_out


def _check_export(sweep: Sweep, bench: Bench, kind: StudyKind) -> None:
    """Raise ConfigError if no candidate can be exported as this kind. One that still needs acceptance counts passes."""
    config, kinds = bench.config, set[str]()
    for overrides in (*branches(config, sweep), *(known.overrides for known in sweep.known)):
        if config.awaits_counts(overrides):
            return
        try:
            candidate = bench.prepare(overrides)
        except ValueError:  # choices that do not fit together
            continue
        drafter, controller = candidate.arm.parts.drafter, candidate.arm.parts.controller
        drafted = None if drafter is None else drafter.state_dict()
        learned = {"controller": controller.state_dict(), "drafter": drafted} if sweep.learn else None
        candidate.arm.close()
        given = (config.specs, candidate.attributes, learned)
        kinds |= {one for one in get_args(StudyKind) if payloads_of(one, *given) is not None}
        if kind in kinds:
            return
    part = kind_named(kind).learned
    needs = f"; a {part} is kept only with sweep.learn" if part and sweep.learn is None else ""
    allowed = ", ".join(sorted(kinds)) or "none"
    why = f" must be a kind that a candidate of the space can be exported as ({allowed}), got {kind!r}{needs}"
    raise config.checker.error(("sweep", "export", "kind"), why)
