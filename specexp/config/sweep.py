"""The ``sweep:`` section: the search space, the objectives, and the stages before and after the search."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError
from typing_extensions import override

from specexp.artifacts import StudyKind
from specexp.base.checked import PartOf, Section, import_object, refusal
from specexp.base.messages import did_you_mean, shown

METHOD = "method"
"""The key in ``sweep.space`` that chooses a whole method: a drafter with its builder and controller."""
FUNCTION = "function"
"""The only key in ``sweep.space`` if a function of the user draws the settings."""
PARTS_OF_A_METHOD = ("drafter", "builder", "controller")
# Target, prompts, verifier and lengths are fixed within a study, so all candidates share its plain decoding.
SEARCHABLE = (*PARTS_OF_A_METHOD, "execution", "engine", METHOD)
STAGES = ("confirm", "count_acceptances", "learn")
Count = Annotated[int, Field(ge=1)]
Way = Literal["maximize", "minimize"]


def overrides_of(key: str, value: Any) -> dict[str, Any]:
    """Return a chosen value as overrides of a composition: a method's parts, or the value itself under its key.

    Example:
        >>> overrides_of("method", {"name": "chain", "builder": {"class_path": "Chain"}})
        {'builder': {'class_path': 'Chain'}}
    """
    if key == FUNCTION:
        return dict(value)
    return {part: spec for part, spec in value.items() if part != "name"} if key == METHOD else {key: value}


class _Range(Section):
    """A range of numbers in a search space.

    Attributes:
        type: ``int`` or ``float``.
        low: Lower bound, inclusive.
        high: Upper bound, inclusive.
        log: Whether to draw on a logarithmic scale.
        step: Spacing of the allowed values. If null, it is 1 for integers, and floats have no fixed spacing.
    """

    type: str
    low: float
    high: float
    log: bool = False
    step: float | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low must be <= high, got low {self.low} and high {self.high}")
        if self.log and self.low <= 0:
            raise ValueError(f"low must be > 0 if log is true, got {self.low}")
        if self.log and self.step is not None:
            raise ValueError("step cannot be combined with log: true; leave one out")
        return self

    def label_of(self, value: Any) -> Any:
        """Return the value as a study stores it; raises LookupError if it is outside the range."""
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not self.low <= value <= self.high:
            raise LookupError(value)
        if self.step is not None and abs((value - self.low) / self.step % 1) >= 1e-9:
            raise LookupError(value)
        return value

    def __str__(self) -> str:
        how = " (log)" if self.log else f" (step {self.step:g})" if self.step not in (None, 1) else ""
        return f"{self.type} {self.low:g} to {self.high:g}{how}"


class IntRange(_Range):
    """A range of integers in a search space.

    Attributes:
        at_most: Earlier key of the space; the value drawn for it is an upper bound on this key's value.

    Example:
        >>> str(IntRange(type="int", low=4, high=64, log=True))
        'int 4 to 64 (log)'
    """

    type: Literal["int"]
    low: int
    high: int
    step: Count | None = None
    at_most: str | None = None

    def suggest(self, trial: Any, key: str, drawn: Mapping[str, Any]) -> Any:
        """Draw a value with an Optuna trial. ``drawn`` contains the values drawn earlier in the trial."""
        high = self.high if self.at_most is None else min(self.high, drawn.get(self.at_most, self.high))
        return trial.suggest_int(key, self.low, max(self.low, high), step=self.step or 1, log=self.log)

    @override
    def label_of(self, value: Any) -> Any:
        if not isinstance(value, int | float) or not float(value).is_integer():
            raise LookupError(value)
        return super().label_of(value)

    def __str__(self) -> str:
        return super().__str__() + ("" if self.at_most is None else f", at most {self.at_most}")


class FloatRange(_Range):
    """A range of real numbers in a search space."""

    type: Literal["float"]
    step: Annotated[float, Field(gt=0)] | None = None

    def suggest(self, trial: Any, key: str, drawn: Mapping[str, Any]) -> Any:
        """Draw a value with an Optuna trial."""
        return trial.suggest_float(key, self.low, self.high, step=self.step, log=self.log)


class Categorical(Section):
    """A list of choices in a search space.

    Attributes:
        choices: Strings and numbers, or parts with a ``name`` in addition to ``class_path`` and ``init_args``.

    Example:
        >>> str(Categorical(type="categorical", choices=[{"name": "fitted", "class_path": "FittedTree"}, "top-k"]))
        'one of fitted, top-k'
    """

    type: Literal["categorical"]
    choices: Annotated[list[Any], Field(min_length=1)]

    @model_validator(mode="after")
    def _check(self) -> Self:
        labels: set[Any] = set()
        for choice in self.choices:
            if isinstance(choice, list) or (isinstance(choice, Mapping) and not _is_named(choice)):
                why = f": {choice!r} must have a name, as in {{name: fitted, class_path: FittedTree}}"
                raise refusal(("choices",), why)
            if _label(choice) in labels:
                raise refusal(("choices",), f": two choices are called {_label(choice)!r}; rename one")
            labels.add(_label(choice))
        named = list(self.by_label.items())
        for number, (label, choice) in enumerate(named):
            same = next((other for other, earlier in named[:number] if earlier == choice and label != other), None)
            if same is not None and isinstance(choice, Mapping):
                raise refusal(("choices",), f" must differ, got the same for {same!r} and {label!r}; leave one out")
        return self

    @cached_property
    def by_label(self) -> dict[Any, Any]:
        """The choices, keyed by label; a study stores only labels. A method's choice maps sections to parts."""
        return {
            _label(choice): {key: inner for key, inner in choice.items() if key != "name"}
            if _is_named(choice)
            else choice
            for choice in self.choices
        }

    def suggest(self, trial: Any, key: str, drawn: Mapping[str, Any]) -> Any:
        """Draw a value with an Optuna trial."""
        return self.by_label[trial.suggest_categorical(key, list(self.by_label))]

    def label_of(self, value: Any) -> Any:
        """Return the label under which a study stores a value; raises LookupError if the value is not a choice."""
        for label, choice in self.by_label.items():
            if choice == value and isinstance(choice, bool) == isinstance(value, bool):
                return label
        raise LookupError(value)

    def __str__(self) -> str:
        return "one of " + ", ".join(str(label) for label in self.by_label)


class Suggested(Section):
    """A search space given as a function: ``sweep.space: my_module.suggest`` in a file.

    Attributes:
        call: Dotted path of the function. It takes an Optuna trial, and returns a value for each dotted key it sets.
    """

    type: Literal["function"]
    call: str

    def suggest(self, trial: Any, key: str, drawn: Mapping[str, Any]) -> dict[str, Any]:
        """Call the function with an Optuna trial; raises ValueError if it returns keys that a study cannot vary."""
        found = import_object(self.call)(trial)
        if not isinstance(found, Mapping):
            raise ValueError(f"{self.call} must return a mapping of dotted keys to values, got {found!r}")
        allowed = [name for name in SEARCHABLE if name != METHOD]
        for name in found:
            if str(name).partition(".")[0] not in allowed:
                raise ValueError(f"{self.call} must return keys of {', '.join(allowed)}, got {name!r}")
        return dict(sorted(found.items(), key=lambda item: item[0].count(".")))  # whole parts before keys inside them

    def label_of(self, value: Any) -> Any:
        """Raise LookupError, because only the function knows which values it draws."""
        raise LookupError(value)

    def __str__(self) -> str:
        source = inspect.getsource(import_object(self.call))
        return f"{self.call}, source {hashlib.sha256(source.encode()).hexdigest()[:8]}"


def _no_list(value: Any) -> Any:
    """Return a value that is not a list unchanged. A list, which many write for choices, raises PydanticCustomError."""
    if isinstance(value, list):
        sentence = " must be a mapping, such as {example}, got a list"
        raise PydanticCustomError("sentence", sentence, {"example": f"{{type: categorical, choices: {shown(value)}}}"})
    return value


SpaceEntry = Annotated[
    IntRange | FloatRange | Categorical | Suggested, Field(discriminator="type"), BeforeValidator(_no_list)
]


def _is_named(choice: Any) -> bool:
    return isinstance(choice, Mapping) and isinstance(choice.get("name"), str)


def _label(choice: Any) -> Any:
    return choice["name"] if _is_named(choice) else choice


class _Stage(Section):
    """A stage of a sweep other than the search.

    Attributes:
        data: Overrides of the experiment's ``data``.
    """

    data: dict[str, Any] = Field(default={})


class Learn(_Stage):
    """The stage in which a candidate's drafter and controller learn from prompts before the candidate is measured."""


class CountAcceptances(_Stage):
    """The stage that counts how often each rank path of a wide tree is accepted.

    Attributes:
        builder: Builder of the wide tree.
        most_cost: If given, the tree has more ``nodes`` where rows are cheap: the largest of the timed trees with
            steps at most this many times as long as those with a single node.
    """

    builder: Annotated[Any, PartOf("specexp.core.contracts.TreeBuilder", built=False)]
    most_cost: Annotated[float, Field(ge=1)] | None = None


class Confirm(_Stage):
    """The stage that measures the best trials again, on prompts that the search does not use.

    Attributes:
        best: Number of the best trials to measure again. Without ``of_each``, those that ``enqueue`` names follow.
        of_each: Categorical key of the space; the best trial for each of its choices is confirmed too.
    """

    best: Count = 3
    of_each: str | None = None


class Export(Section):
    """The artifact that a study exports.

    Attributes:
        to: Folder of the artifact; defaults to ``artifacts/<name>``.
        kind: Kind of the artifact.
        cold: Whether to leave learned state out of the artifact (``--cold``) and measure its speed without that state.
    """

    to: str = ""
    kind: StudyKind = "static-tree"
    cold: bool = False


@dataclass(frozen=True)
class Known:
    """A named configuration to measure before the search, given as overrides of the composition."""

    name: str
    overrides: Mapping[str, Any]


class Sweep(Section):
    """The settings of a study.

    Attributes:
        space: The search space: how to draw a value for each dotted key of the composition, or the dotted path of a
            function that draws them with an Optuna trial.
        direction: Direction of ``speedup`` if ``objectives`` does not set it.
        n_trials: Number of distinct finished trials after which the search ends, including those in ``enqueue``.
        minutes: Time limit, in minutes, for each start of the study (``--minutes``). Prompts, trials and confirmed
            candidates are reduced to fit; null for no limit.
        objectives: Metrics to optimize: a list, or a mapping of metrics to directions. Several metrics disable pruning.
        sampler: Optuna sampler; null for ``TPESampler(seed=0)``.
        pruner: Optuna pruner; null for ``WilcoxonPruner(p_threshold=0.1)``.
        storage: URL of a database that several workers share; null for a journal file in the study's folder.
        enqueue: Configurations to measure first, each given as overrides and an optional ``name``.
        constraints: Limits by name: ``max_draft_nodes``, or a metric with the prefix ``min_`` or ``max_``.
        count_acceptances: Stage before the search that counts accepted rank paths; null to skip it.
        learn: Stage in which every candidate learns from prompts before being measured; null to skip it.
        confirm: Stage that measures the best trials again; null to skip it.
        export: Artifact to which the winner is exported; null to export nothing.
        require_gain: Whether to exit with code 3 if no gain over plain decoding is confirmed (``--require-gain``).
    """

    space: dict[str, SpaceEntry]
    direction: Way = "maximize"
    n_trials: Count = 24
    minutes: Annotated[float, Field(gt=0)] | None = None
    objectives: list[str] | dict[str, Way | None] = Field(default=["speedup"])
    sampler: Annotated[Any, PartOf("optuna.samplers.BaseSampler", built=False)] | None = None
    pruner: Annotated[Any, PartOf("optuna.pruners.BasePruner", built=False)] | None = None
    storage: str | None = None
    enqueue: list[dict[str, Any]] = Field(default=[])
    constraints: dict[str, Annotated[float, Field(ge=0)]] = Field(default={})
    count_acceptances: CountAcceptances | None = None
    learn: Learn | None = None
    confirm: Confirm | None = None
    export: Export | None = None
    require_gain: bool = False

    @field_validator("space", mode="before", json_schema_input_type=dict[str, SpaceEntry] | str)
    @classmethod
    def _read_space(cls, given: Any) -> Any:
        if isinstance(given, str):
            return {FUNCTION: {"type": "function", "call": given}}
        for key, entry in given.items() if isinstance(given, Mapping) else ():
            nested = isinstance(entry, Mapping) and any(isinstance(one, Mapping) for one in entry.values())
            if nested and "type" not in entry:
                why = " must be one dotted key, such as builder.init_args.nodes, got a mapping of mappings"
                raise refusal((str(key),), why)
        return given

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.space:
            why = " must have at least one dotted key, such as builder.init_args.nodes"
            raise refusal(("space",), why)
        for key, entry in self.space.items():
            self._check_entry(key, entry)
        objectives = list(self.objectives)
        if not objectives:
            raise refusal(("objectives",), " must name at least one metric, such as speedup")
        if repeated := _repeated(objectives):
            raise refusal(("objectives",), f" must name each metric once, got {repeated!r} twice")
        if self.require_gain and self.confirm is None:
            why = " is true, but only a confirmation measures a gain: set sweep.confirm too"
            raise refusal(("require_gain",), why)
        if repeated := _repeated([known.name for known in self.known]):
            raise refusal(("enqueue",), f": two configurations are called {repeated!r}; rename one")
        of_each = None if self.confirm is None else self.confirm.of_each
        choices = [key for key, entry in self.space.items() if isinstance(entry, Categorical)]
        if of_each is not None and of_each not in choices:
            why = f" must be a key of the space with choices, got {of_each!r}{did_you_mean(of_each, choices)}"
            raise refusal(("confirm", "of_each"), why)
        return self

    def _check_entry(self, key: str, entry: SpaceEntry) -> None:
        at = ("space", key)
        if isinstance(entry, Suggested):
            if list(self.space) != [FUNCTION]:
                raise refusal(("space",), " must be the path of a function alone, as in space: my_module.suggest")
            return
        if key.partition(".")[0] not in SEARCHABLE:
            raise refusal(
                at,
                f" cannot be searched: a study varies {', '.join(SEARCHABLE)}, and compares all trials on the same "
                "target, prompts and sampling",
            )
        if "." not in key and not isinstance(entry, Categorical):
            why = f" must be categorical if the key names a whole part or a method, got {entry.type!r}"
            raise refusal((*at, "type"), why)
        for choice in entry.choices if key == METHOD and isinstance(entry, Categorical) else ():
            parts = set(choice) - {"name"} if _is_named(choice) else set()
            if not parts or not parts <= set(PARTS_OF_A_METHOD):
                wrong = min(parts - set(PARTS_OF_A_METHOD), default="")
                hint = did_you_mean(wrong, PARTS_OF_A_METHOD) if wrong else ""
                why = f": {choice!r} must set a name and at least one of {', '.join(PARTS_OF_A_METHOD)}{hint}"
                raise refusal((*at, "choices"), why)
        method = next((name for name, parts in self.methods.items() if key in parts), None)
        if method is not None:
            raise refusal(at, f" is searched, but also set by the method {method!r}; leave one of them out")
        if isinstance(entry, IntRange) and entry.at_most is not None:
            # keys are drawn in this order, so the bound must come first
            order = sorted(self.space, key=lambda name: name.count("."))
            known = [name for name in order[: order.index(key)] if isinstance(self.space[name], IntRange)]
            if entry.at_most not in known:
                hint = did_you_mean(entry.at_most, known)
                why = f": at_most must be an earlier integer of the space, got {entry.at_most!r}{hint}"
                raise refusal(at, why)

    @property
    def stages(self) -> list[str]:
        """The names of the stages that the file sets."""
        return [stage for stage in STAGES if getattr(self, stage) is not None]

    @property
    def prunes(self) -> bool:
        """True if trials may be pruned. Optuna prunes only studies with one objective."""
        return len(self.objectives) == 1

    @property
    def known(self) -> tuple[Known, ...]:
        """The configurations to measure first, with method names replaced by the methods' parts."""
        found = []
        for number, given in enumerate(self.enqueue):
            overrides = {key: value for key, value in given.items() if key != "name"}
            name = str(given.get("name") or name_of(overrides))
            method = overrides.pop(METHOD, None)
            if method is not None and method not in self.methods:
                hint = did_you_mean(str(method), self.methods)
                why = f": method must be one of sweep.space.method, got {method!r}{hint}"
                raise refusal(("enqueue", str(number)), why)
            found.append(Known(name, {**self.methods.get(method, {}), **overrides}))
        return tuple(found)

    @property
    def methods(self) -> dict[str, Any]:
        """The parts of each method in the space, keyed by the method's name."""
        entry = self.space.get(METHOD)
        return entry.by_label if isinstance(entry, Categorical) else {}


def _repeated(names: Sequence[str]) -> str | None:
    return next((name for number, name in enumerate(names) if name in names[:number]), None)


def name_of(overrides: Mapping[str, Any]) -> str:
    """Return a short name for overrides, built from their classes and arguments, e.g. ``Chain(length=4)``."""
    return " ".join(
        _notation(value) if isinstance(value, Mapping) and "class_path" in value else f"{key}={_notation(value)}"
        for key, value in overrides.items()
    )


def _notation(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_notation, value))}]"
    if not isinstance(value, Mapping):
        return str(value)
    inside = (value.get("init_args") or {}) if "class_path" in value else value
    arguments = ", ".join(f"{name}={_notation(inner)}" for name, inner in inside.items() if inner is not None)
    name = str(value.get("class_path", "")).rpartition(".")[2]
    return f"{name}({arguments})" if arguments else name
