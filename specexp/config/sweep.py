"""The ``sweep:`` section: what varies and how it is drawn, what is optimised, and the stages around the search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field

from specexp.artifacts import StudyKind
from specexp.config.errors import PlacedError
from specexp.config.methods import METHOD, check_method, with_parts
from specexp.config.search_space import Categorical, IntRange, SpaceEntry
from specexp.core.annotations import SpecOf
from specexp.core.messages import did_you_mean

Way = Literal["maximize", "minimize"]

SEARCHABLE = ("drafter", "builder", "controller", "execution", "engine", METHOD)
"""What a study may vary: sections, or with ``method`` several of them at once. Target, prompts, verifier and lengths
are the same for all trials of a study: AR's seconds are measured once for them."""


@dataclass(frozen=True)
class CountAcceptances:
    """The stage that records which rank paths are accepted in a wide tree.

    Args:
        builder: Builder of the wide tree.
        data: Overrides of the experiment's ``data``.
    """

    builder: Annotated[Any, SpecOf("specexp.core.contracts.TreeBuilder")]
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Learn:
    """The prompts that every candidate's drafter and controller learn from before it is measured.

    Args:
        data: Overrides of the experiment's ``data``.
    """

    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Confirm:
    """The stage that re-measures the best trials on prompts the search did not see.

    Args:
        best: How many trials are measured again.
        again: Whether a study that has ended is confirmed once more, and both confirmations are pooled
            (``--confirm-again``).
        of_each: A key of the space, the best of each of whose choices is confirmed too.
        data: Overrides of the experiment's ``data``.
    """

    best: Annotated[int, Field(ge=1)] = 3
    again: bool = False
    of_each: str | None = None
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Export:
    """The artifact a study leaves.

    Args:
        to: Folder of the artifact; ``artifacts/<name>`` if empty.
        kind: Kind of the artifact.
        cold: Whether what drafter and controller had learned is left out (``--cold``); their speed without it is then
            measured and stated beside the confirmed one.
    """

    to: str = ""
    kind: StudyKind = "static-tree"
    cold: bool = False


@dataclass(frozen=True)
class Known:
    """A configuration measured before anything is searched: overrides of the composition, and its name."""

    name: str
    overrides: Mapping[str, Any]


@dataclass(frozen=True)
class Sweep:
    """A study.

    Args:
        space: Dotted key of the composition, and how its value is drawn.
        direction: Which way ``speedup`` is optimised where the objectives do not say.
        n_trials: Finished, distinct trials the study ends with, known configurations included.
        objectives: Metrics, or metrics with directions; several make a multi-objective study, which does not prune.
        sampler: Sampler of Optuna; ``TPESampler(seed=0)`` if null.
        pruner: Pruner of Optuna; ``WilcoxonPruner(p_threshold=0.1)`` if null.
        storage: URL of a database that several workers share; a journal file in the study's folder if null.
        enqueue: Configurations measured first: overrides, beside a ``name``.
        constraints: Limits by name: ``max_draft_nodes``, or ``min_`` or ``max_`` before a metric.
        count_acceptances: Whether rank paths are counted first, and how.
        learn: Prompts that every candidate learns from before it is measured.
        confirm: How the best are measured again; null for no confirmation.
        export: What is left of the winner; null for nothing.
        require_gain: Whether the command ends with 3 where nothing is faster than plain decoding, by the interval
            (``--require-gain``).

    Raises:
        ValueError: an entry does not go with the others.
    """

    space: dict[str, SpaceEntry]
    direction: Way = "maximize"
    n_trials: Annotated[int, Field(ge=1)] = 24
    objectives: list[str] | dict[str, Way | None] = field(default_factory=lambda: ["speedup"])
    sampler: Annotated[Any, SpecOf("optuna.samplers.BaseSampler")] | None = None
    pruner: Annotated[Any, SpecOf("optuna.pruners.BasePruner")] | None = None
    storage: str | None = None
    enqueue: list[dict[str, Any]] = field(default_factory=list)
    constraints: dict[str, float] = field(default_factory=dict)
    count_acceptances: CountAcceptances | None = None
    learn: Learn | None = None
    confirm: Confirm | None = None
    export: Export | None = None
    require_gain: bool = False

    def __post_init__(self) -> None:
        self._check_space()
        if not self.objectives:
            raise PlacedError(("objectives",), " is empty; name at least one, such as speedup")
        repeated = next((name for name in self.objectives if list(self.objectives).count(name) > 1), None)
        if repeated is not None:
            raise PlacedError(("objectives",), f" names {repeated!r} twice; name each once")
        if self.pruner is not None and list(self.objectives) != ["speedup"]:
            raise PlacedError(
                ("pruner",),
                " is set, but only a study whose one objective is speedup prunes: set it to null, or objectives to "
                "[speedup]",
            )
        if self.require_gain and self.confirm is None:
            raise PlacedError(
                ("require_gain",), " is true, and only a confirmation tells a gain: set sweep.confirm too"
            )
        names = [known.name for known in self.known]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise PlacedError(
                ("enqueue",), f": two configurations are called {twice!r}; give each its own name"
            )
        of_each = None if self.confirm is None else self.confirm.of_each
        choices = [key for key, entry in self.space.items() if isinstance(entry, Categorical)]
        if of_each is not None and of_each not in choices:
            raise PlacedError(
                ("confirm", "of_each"),
                f" is {of_each!r}; a key of the space with choices is expected{did_you_mean(of_each, choices)}",
            )

    @property
    def prunes(self) -> bool:
        """Optuna prunes studies with one objective only."""
        return len(self.objectives) == 1

    @cached_property
    def known(self) -> tuple[Known, ...]:
        """The configurations measured first, methods with their parts in place of their names.

        Raises:
            ValueError: one asks for a method that the space does not have.
        """
        found = []
        for number, given in enumerate(self.enqueue):
            overrides = {key: value for key, value in given.items() if key != "name"}
            try:
                parts = with_parts(overrides, self.methods)
            except LookupError as error:
                method = overrides[METHOD]
                raise PlacedError(
                    ("enqueue", str(number)),
                    f": method is {method!r}, which sweep.space does not have"
                    f"{did_you_mean(str(method), self.methods)}",
                ) from error
            found.append(Known(str(given.get("name") or _name_of(overrides)), parts))
        return tuple(found)

    @property
    def methods(self) -> dict[str, Any]:
        """Parts of each method of the space by the method's name."""
        entry = self.space.get(METHOD)
        return entry.by_label if isinstance(entry, Categorical) else {}

    def _check_space(self) -> None:
        if not self.space:
            raise PlacedError(
                ("space",), " is empty; at least one dotted key such as builder.init_args.nodes is needed"
            )
        earlier: list[str] = []
        for key, entry in sorted(self.space.items(), key=lambda item: item[0].count(".")):
            at = ("space", key)
            if key.partition(".")[0] not in SEARCHABLE:
                raise PlacedError(
                    at,
                    f" cannot be searched: a study varies {', '.join(SEARCHABLE)}, and compares all trials on the "
                    "same target, prompts and sampling",
                )
            if "." not in key and not isinstance(entry, Categorical):
                what = "method" if key == METHOD else "whole part"
                raise PlacedError(
                    (*at, "type"), f" is {entry.type!r}; a {what} needs type categorical with choices"
                )
            for choice in entry.choices if key == METHOD and isinstance(entry, Categorical) else ():
                try:
                    check_method(choice)
                except ValueError as error:
                    raise PlacedError((*at, "choices"), f": {error}") from error
            method = next((name for name, parts in self.methods.items() if key in parts), None)
            if method is not None:
                raise PlacedError(at, f" is searched and set by the method {method!r}; leave one of them out")
            if isinstance(entry, IntRange):
                if entry.at_most is not None and entry.at_most not in earlier:
                    raise PlacedError(
                        at,
                        f": at_most is {entry.at_most!r}; a whole number of the space that stands before it is "
                        f"expected{did_you_mean(entry.at_most, earlier)}",
                    )
                earlier.append(key)


def _name_of(overrides: Mapping[str, Any]) -> str:
    """A short name for overrides: classes and arguments, e.g. ``Chain(length=4)``."""
    parts = []
    for key, value in overrides.items():
        if isinstance(value, Mapping) and "class_path" in value:
            arguments = ", ".join(f"{name}={inner}" for name, inner in (value.get("init_args") or {}).items())
            name = str(value["class_path"]).rpartition(".")[2]
            parts.append(f"{name}({arguments})" if arguments else name)
        else:
            parts.append(f"{key}={value}")
    return " ".join(parts)
