"""The ``sweep:`` section of an experiment, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specexp.config.methods import METHOD, with_parts
from specexp.core.messages import did_you_mean
from specexp.sweep.space import Space, SpaceError

OBJECTIVES = {
    "speedup": "maximize",
    "tokens_per_step": "maximize",
    "drafted_nodes": "minimize",
    "draft_passes": "minimize",
}
"""What a study can optimise, and which way unless stated: ``speedup`` is the mean over prompts of log(AR
seconds per token / strategy seconds per token); the others are means per target pass."""

CONSTRAINTS = ("max_draft_nodes", "max_drafted_nodes", "min_tokens_per_step")
"""``max_draft_nodes``: most nodes a tree may have (known before measuring); ``max_drafted_nodes`` and
``min_tokens_per_step``: measured means per target pass."""

_DEFAULT_SAMPLER = {"class_path": "optuna.samplers.TPESampler", "init_args": {"seed": 0}}
_DEFAULT_PRUNER = {"class_path": "optuna.pruners.WilcoxonPruner", "init_args": {"p_threshold": 0.1}}


@dataclass(frozen=True)
class Known:
    """A configuration measured before anything is searched: overrides of the composition, and its name."""

    name: str
    overrides: Mapping[str, Any]


@dataclass(frozen=True)
class Settings:
    """A checked ``sweep:`` section.

    Attributes:
        space: what varies.
        n_trials: finished, distinct trials the study ends with, known configurations included.
        objectives: direction by name; several make a multi-objective study, which does not prune.
        sampler: ``class_path`` and ``init_args`` of an Optuna sampler.
        pruner: the same of a pruner.
        storage: URL, or None for a journal file in the study's folder.
        known: configurations measured first.
        constraints: limit by name, see :data:`CONSTRAINTS`.
        record_hits: ``builder`` of the recording and ``data`` overrides, or None.
        learn: ``data`` overrides: prompts that every candidate learns from before it is measured, or None.
        confirm: ``best`` (how many), ``of_each`` (a key of the space, the best of each of whose choices is confirmed
            too, or None), and ``data`` overrides; or None for no confirmation.
        export: ``kind`` and ``to`` (folder), or None.
        left_out: names of methods that need a draft model, of which the pair has none.
    """

    space: Space
    n_trials: int = 24
    objectives: Mapping[str, str] = field(default_factory=lambda: {"speedup": "maximize"})
    sampler: Mapping[str, Any] = field(default_factory=lambda: _DEFAULT_SAMPLER)
    pruner: Mapping[str, Any] = field(default_factory=lambda: _DEFAULT_PRUNER)
    storage: str | None = None
    known: tuple[Known, ...] = ()
    constraints: Mapping[str, float] = field(default_factory=dict)
    record_hits: Mapping[str, Any] | None = None
    learn: Mapping[str, Any] | None = None
    confirm: Mapping[str, Any] | None = None
    export: Mapping[str, Any] | None = None
    left_out: tuple[str, ...] = ()

    @property
    def omission(self) -> str:
        """What is left out, as a sentence; empty where nothing is."""
        if not self.left_out:
            return ""
        return f"Left out, for the pair has no draft model: {', '.join(self.left_out)}."

    @property
    def prunes(self) -> bool:
        """Optuna prunes studies with one objective only."""
        return len(self.objectives) == 1


_SECTION_KEYS = {
    *(
        "direction",
        "n_trials",
        "objectives",
        "sampler",
        "pruner",
        "storage",
        "space",
        "enqueue",
        "constraints",
    ),
    *("record_hits", "learn", "confirm", "export"),
}


def read_settings(section: Mapping[str, Any], left_out: tuple[str, ...] = ()) -> Settings:
    """Check a ``sweep:`` section.

    Args:
        section: as in the file.
        left_out: names of methods that were taken out of it.

    Raises:
        SpaceError: a key is unknown or a value is not what the key takes.
    """
    if not isinstance(section, Mapping):
        raise SpaceError(f"sweep is {section!r}; a mapping with a space is expected")
    _check_keys("sweep", section, _SECTION_KEYS)
    direction = section.get("direction", "maximize")
    if direction not in ("maximize", "minimize"):
        raise SpaceError(f"sweep.direction is {direction!r}; allowed are maximize, minimize")
    objectives = _objectives(section.get("objectives", ["speedup"]), direction)
    space = Space(section.get("space", {}))
    return Settings(
        space=space,
        n_trials=_positive("sweep.n_trials", section.get("n_trials", 24)),
        objectives=objectives,
        sampler=_part("sweep.sampler", section.get("sampler") or _DEFAULT_SAMPLER),
        pruner=_part("sweep.pruner", section.get("pruner") or _DEFAULT_PRUNER),
        storage=section.get("storage"),
        known=_known(section.get("enqueue") or [], section["space"]),
        constraints=_constraints(section.get("constraints") or {}),
        record_hits=_stage(
            "sweep.record_hits", section.get("record_hits"), {"builder", "data"}, needs=("builder",)
        ),
        learn=_stage("sweep.learn", section.get("learn"), {"data"}),
        confirm=_confirm(section.get("confirm"), space),
        export=_stage("sweep.export", section.get("export"), {"kind", "to"}, needs=("kind", "to")),
        left_out=left_out,
    )


def _objectives(given: Any, direction: str) -> dict[str, str]:
    named = dict.fromkeys(given) if isinstance(given, list) else given
    if not isinstance(named, Mapping) or not named:
        raise SpaceError(
            f"sweep.objectives is {given!r}; a list such as [speedup] or a mapping to directions is expected"
        )
    _check_keys("sweep.objectives", named, set(OBJECTIVES))
    directions = {}
    for name, way in named.items():
        way = way or (direction if name == "speedup" else OBJECTIVES[name])
        if way not in ("maximize", "minimize"):
            raise SpaceError(f"sweep.objectives: {name} is {way!r}; allowed are maximize, minimize")
        directions[name] = way
    return directions


def _known(given: Any, space: Mapping[str, Any]) -> tuple[Known, ...]:
    if not isinstance(given, list) or not all(isinstance(entry, Mapping) for entry in given):
        raise SpaceError(
            f"sweep.enqueue is {given!r}; a list of mappings such as {{builder: {{class_path: Chain}}}} is "
            "expected"
        )
    known = []
    for entry in given:
        overrides = {key: value for key, value in entry.items() if key != "name"}
        name = str(entry.get("name") or name_of(overrides))
        try:
            known.append(Known(name, with_parts(overrides, space)))
        except LookupError as error:
            asked = overrides[METHOD]
            raise SpaceError(
                f"sweep.enqueue: {name!r} asks for the method {asked!r}, which sweep.space does not have"
                f"{did_you_mean(str(asked), error.args[0])}"
            ) from error
    names = [configuration.name for configuration in known]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SpaceError(f"sweep.enqueue: two configurations are called {twice!r}; give each its own name")
    return tuple(known)


def name_of(overrides: Mapping[str, Any]) -> str:
    """A short name for overrides: classes and arguments, e.g. ``Chain(length=4)``."""
    parts = []
    for key, value in overrides.items():
        if isinstance(value, Mapping) and "class_path" in value:
            arguments = ", ".join(f"{name}={inner}" for name, inner in (value.get("init_args") or {}).items())
            parts.append(
                f"{str(value['class_path']).rpartition('.')[2]}({arguments})"
                if arguments
                else str(value["class_path"]).rpartition(".")[2]
            )
        else:
            parts.append(f"{key}={value}")
    return " ".join(parts)


def _constraints(given: Any) -> dict[str, float]:
    if not isinstance(given, Mapping):
        raise SpaceError(
            f"sweep.constraints is {given!r}; a mapping such as {{max_draft_nodes: 128}} is expected"
        )
    _check_keys("sweep.constraints", given, set(CONSTRAINTS))
    for name, limit in given.items():
        if not isinstance(limit, int | float) or isinstance(limit, bool):
            raise SpaceError(f"sweep.constraints: {name} is {limit!r}; a number is expected")
    return dict(given)


def _confirm(given: Any, space: Space) -> Mapping[str, Any] | None:
    stage = _stage("sweep.confirm", given, {"best", "of_each", "data"})
    if stage is None:
        return None
    key = stage.get("of_each")
    choices = [parameter.key for parameter in space.parameters if parameter.choices is not None]
    if key is not None and key not in choices:
        raise SpaceError(
            f"sweep.confirm.of_each is {key!r}; a key of the space with choices is expected{did_you_mean(key, choices)}"
        )
    return {
        "best": _positive("sweep.confirm.best", stage.get("best", 3)),
        "of_each": key,
        "data": stage.get("data") or {},
    }


def _stage(
    where: str, given: Any, allowed: set[str], needs: tuple[str, ...] = ()
) -> Mapping[str, Any] | None:
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise SpaceError(f"{where} is {given!r}; a mapping of {', '.join(sorted(allowed))} is expected")
    _check_keys(where, given, allowed)
    for name in needs:
        if name not in given:
            raise SpaceError(f"{where} lacks {name!r}")
    return given


def _part(where: str, given: Any) -> Mapping[str, Any]:
    if not isinstance(given, Mapping) or not isinstance(given.get("class_path"), str):
        raise SpaceError(f"{where} is {given!r}; a mapping with class_path and init_args is expected")
    _check_keys(where, given, {"class_path", "init_args"})
    return given


def _positive(where: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise SpaceError(f"{where} is {value!r}; a whole number of at least 1 is expected")
    return value


def _check_keys(where: str, given: Mapping[str, Any], allowed: set[str]) -> None:
    for key in given:
        if key not in allowed:
            raise SpaceError(f"{where}: unknown key {key!r}{did_you_mean(key, allowed)}")
