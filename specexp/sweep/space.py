"""The search space of a sweep: dotted keys of the composition, and how each is drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from specexp.config.methods import METHOD, check_method, overrides_of
from specexp.core.messages import did_you_mean

Applies = Callable[[str, Mapping[str, Any]], bool]
"""Whether a dotted key exists in the composition once the overrides chosen so far are applied."""

SEARCHABLE = ("drafter", "builder", "controller", "execution", METHOD)
"""What a study may vary: sections, or with ``method`` several of them at once. Target, prompts, verifier and lengths
are the same for all trials of a study: AR's seconds are measured once for them."""

_KEYS = {
    "int": {"low", "high", "log", "step", "at_most"},
    "float": {"low", "high", "log", "step"},
    "categorical": {"choices"},
}
_PLAIN = (bool, int, float, str, type(None))


class Suggesting(Protocol):
    """What draws values: a trial of Optuna, or a draw of which nothing is stored."""

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        """One of the choices."""

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        """A whole number."""

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        """A number."""


class SpaceError(ValueError):
    """A sweep section that cannot be searched; the sentence names the key, the value and what is allowed."""


@dataclass(frozen=True)
class Parameter:
    """One key of the space.

    Attributes:
        key: dotted key of the composition.
        kind: ``int``, ``float`` or ``categorical``.
        low: smallest number.
        high: largest number.
        log: draw on a logarithmic scale.
        step: distance between allowed numbers, None for all.
        choices: value by its label; the label is what the study stores. A method's value holds its parts by section.
        at_most: key of the space that is drawn before this one, and whose value this number never exceeds.
    """

    key: str
    kind: str
    low: float = 0
    high: float = 0
    log: bool = False
    step: float | None = None
    choices: Mapping[bool | int | float | str | None, Any] | None = None
    at_most: str | None = None

    def suggest(self, trial: Suggesting, overrides: Mapping[str, Any]) -> Any:
        """Draw a value, given those drawn before."""
        if self.choices is not None:
            return self.choices[trial.suggest_categorical(self.key, list(self.choices))]
        if self.kind == "int":
            high = (
                self.high if self.at_most is None else min(self.high, overrides.get(self.at_most, self.high))
            )
            low = int(self.low)
            return trial.suggest_int(
                self.key, low, max(low, int(high)), step=int(self.step or 1), log=self.log
            )
        return trial.suggest_float(self.key, self.low, self.high, step=self.step, log=self.log)

    def label_of(self, value: Any) -> Any:
        """What the study stores for ``value``, which must be in the space.

        Raises:
            KeyError: the value is not in the space.
        """
        if self.choices is not None:
            for label, choice in self.choices.items():
                if choice == value and isinstance(choice, bool) == isinstance(value, bool):
                    return label
        elif self._holds(value):
            return value
        raise KeyError(f"{self.key}={value!r} is not in the space")

    def method_of(self, overrides: Mapping[str, Any]) -> Any:
        """Label of the method whose parts are among the overrides, the one with most parts; None where none is."""
        labels = [
            label
            for label, parts in (self.choices or {}).items()
            if all(overrides.get(part) == spec for part, spec in parts.items())
        ]
        return max(labels, key=lambda label: len((self.choices or {})[label]), default=None)

    def _holds(self, value: Any) -> bool:
        if (
            not isinstance(value, int | float)
            or isinstance(value, bool)
            or not self.low <= value <= self.high
        ):
            return False
        if self.kind == "int" and not float(value).is_integer():
            return False
        return self.step is None or abs((value - self.low) / self.step % 1) < 1e-9

    def __str__(self) -> str:
        if self.choices is not None:
            return "one of " + ", ".join(str(label) for label in self.choices)
        how = " (log)" if self.log else f" (step {self.step:g})" if self.step not in (None, 1) else ""
        bound = "" if self.at_most is None else f", at most {self.at_most}"
        return f"{self.kind} {self.low:g} to {self.high:g}{how}{bound}"


class Space:
    """All keys of a study, whole parts before the keys inside them.

    Args:
        section: ``sweep.space`` of the file: dotted key to ``{type, low, high, log, step}`` or ``{type,
            choices}``.

    Raises:
        SpaceError: an entry is malformed.

    Example:
        >>> space = Space({"builder.init_args.nodes": {"type": "int", "low": 4, "high": 64, "log": True}})
        >>> str(space.parameters[0])
        'int 4 to 64 (log)'
    """

    def __init__(self, section: Mapping[str, Any]) -> None:
        if not isinstance(section, Mapping) or not section:
            raise SpaceError(
                f"sweep.space is {section!r}; at least one dotted key such as builder.init_args.nodes is "
                "needed"
            )
        parameters = [_parameter(str(key), entry) for key, entry in section.items()]
        _refuse_parts_set_twice(parameters)
        self.parameters = sorted(parameters, key=lambda parameter: parameter.key.count("."))
        drawn: list[str] = []
        for parameter in self.parameters:
            if parameter.at_most is not None and parameter.at_most not in drawn:
                raise SpaceError(
                    f"sweep.space: {parameter.key}: at_most is {parameter.at_most!r}; a whole number of the space that "
                    f"stands before it is expected{did_you_mean(parameter.at_most, drawn)}"
                )
            if parameter.kind == "int":
                drawn.append(parameter.key)

    def suggest(self, trial: Suggesting, applies: Applies) -> dict[str, Any]:
        """Draw one configuration: the overrides of every key that exists in what was chosen before it."""
        overrides: dict[str, Any] = {}
        for parameter in self.parameters:
            if parameter.key == METHOD or applies(parameter.key, overrides):
                overrides |= overrides_of(parameter.key, parameter.suggest(trial, overrides))
        return overrides

    def params_of(self, overrides: Mapping[str, Any]) -> dict[str, Any] | None:
        """The study's parameters of a known configuration, or None where it lies outside the space."""
        by_key = {parameter.key: parameter for parameter in self.parameters}
        method = by_key.pop(METHOD, None)
        params: dict[str, Any] = {}
        if method is not None:
            params[METHOD] = label = method.method_of(overrides)
            if label is None:
                return None
            parts = (method.choices or {})[label]
            overrides = {key: value for key, value in overrides.items() if key not in parts}
        try:
            flat = _flatten(overrides, set(by_key))
            return params | {key: by_key[key].label_of(value) for key, value in flat.items()}
        except KeyError:
            return None


def _refuse_parts_set_twice(parameters: Sequence[Parameter]) -> None:
    """A part of a method is not searched beside it: which of the two counts, nobody could tell."""
    methods = next((one.choices for one in parameters if one.key == METHOD), None) or {}
    for parameter in parameters:
        twice = next((label for label, parts in methods.items() if parameter.key in parts), None)
        if twice is not None:
            raise SpaceError(
                f"sweep.space: {parameter.key} is searched and set by the method {twice!r}; leave one of them out"
            )


def _parameter(key: str, entry: Any) -> Parameter:
    where = f"sweep.space: {key}"
    if key.partition(".")[0] not in SEARCHABLE:
        raise SpaceError(
            f"{where} cannot be searched: a study varies {', '.join(SEARCHABLE)}, and compares all trials on "
            "the same "
            "target, prompts and sampling"
        )
    if not isinstance(entry, Mapping):
        raise SpaceError(
            f"{where} is {entry!r}; a mapping such as {{type: int, low: 4, high: 64}} is expected"
        )
    kind = entry.get("type")
    if kind not in _KEYS:
        raise SpaceError(f"{where}: type is {kind!r}{did_you_mean(kind, _KEYS)}")
    for given in entry:
        if given != "type" and given not in _KEYS[kind]:
            raise SpaceError(f"{where}: unknown key {given!r} of {kind}{did_you_mean(given, _KEYS[kind])}")
    if key == METHOD and kind != "categorical":
        raise SpaceError(f"{where}: type is {kind!r}; a method needs type categorical with choices")
    if kind == "categorical":
        if key == METHOD:
            _check_methods(where, entry.get("choices"))
        return Parameter(key, kind, choices=_choices(where, entry.get("choices")))
    return _number(where, key, kind, entry)


def _check_methods(where: str, choices: Any) -> None:
    for choice in choices if isinstance(choices, list) else ():
        try:
            check_method(choice)
        except ValueError as error:
            raise SpaceError(f"{where}: {error}") from error


def _number(where: str, key: str, kind: str, entry: Mapping[str, Any]) -> Parameter:
    wanted = int if kind == "int" else (int, float)
    for name in ("low", "high"):
        value = entry.get(name)
        if not isinstance(value, wanted) or isinstance(value, bool):
            raise SpaceError(f"{where}: {name} is {value!r}; a number of type {kind} is expected")
    low, high, log, step = entry["low"], entry["high"], entry.get("log", False), entry.get("step")
    if low > high:
        raise SpaceError(f"{where}: low is {low} above high {high}")
    if not isinstance(log, bool):
        raise SpaceError(f"{where}: log is {log!r}; true or false is expected")
    at_most = entry.get("at_most")
    if at_most is not None and not isinstance(at_most, str):
        raise SpaceError(f"{where}: at_most is {at_most!r}; a key of the space is expected")
    if log and low <= 0:
        raise SpaceError(f"{where}: low is {low}; with log: true it must be above 0")
    if step is not None:
        if not isinstance(step, wanted) or isinstance(step, bool) or step <= 0:
            raise SpaceError(f"{where}: step is {step!r}; a positive number of type {kind} is expected")
        if log:
            raise SpaceError(f"{where}: step and log: true do not go together; leave one out")
    return Parameter(key, kind, low, high, log, step, at_most=at_most)


def _choices(where: str, choices: Any) -> dict[Any, Any]:
    if not isinstance(choices, list) or not choices:
        raise SpaceError(f"{where}: choices is {choices!r}; a list of at least one value is expected")
    by_label: dict[Any, Any] = {}
    for choice in choices:
        label: Any
        value: Any
        if isinstance(choice, _PLAIN):
            label, value = choice, choice
        elif isinstance(choice, Mapping) and isinstance(choice.get("name"), str):
            label, value = choice["name"], {key: inner for key, inner in choice.items() if key != "name"}
        else:
            raise SpaceError(
                f"{where}: choice {choice!r} needs a name, as in {{name: fitted, class_path: FittedTree}}"
            )
        if label in by_label:
            raise SpaceError(f"{where}: two choices are called {label!r}")
        by_label[label] = value
    return by_label


def _flatten(overrides: Mapping[str, Any], keys: set[str], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in overrides.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and key not in keys:
            flat.update(_flatten(value, keys, f"{key}."))
        else:
            flat[key] = value
    return flat
