"""The entries of ``sweep.space``: ranges of numbers, and choices, as a trial draws them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field

from specexp.config.errors import PlacedError

_SCALAR = (bool, int, float, str, type(None))


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


@dataclass(frozen=True)
class IntRange:
    """Whole numbers of a search space.

    Args:
        type: ``int``.
        low: Smallest number.
        high: Largest number.
        log: Whether they are drawn on a logarithmic scale.
        step: Distance between two numbers.
        at_most: An earlier key of the space whose value is never exceeded.

    Raises:
        ValueError: the numbers do not go together.

    Example:
        >>> str(IntRange("int", 4, 64, log=True))
        'int 4 to 64 (log)'
    """

    type: Literal["int"]
    low: int
    high: int
    log: bool = False
    step: Annotated[int, Field(ge=1)] | None = None
    at_most: str | None = None

    def __post_init__(self) -> None:
        _check_range(self)

    def suggest(self, trial: Suggesting, key: str, drawn: Mapping[str, Any]) -> int:
        """Draw a value.

        Args:
            trial: What draws it.
            key: Key of the space.
            drawn: What was drawn before it, by key.
        """
        high = self.high if self.at_most is None else min(self.high, drawn.get(self.at_most, self.high))
        return trial.suggest_int(key, self.low, max(self.low, high), step=self.step or 1, log=self.log)

    def label_of(self, value: Any) -> Any:
        """What a study stores for a value; LookupError for one that is not in the range."""
        if not isinstance(value, int | float) or not float(value).is_integer():
            raise LookupError(value)
        return _in_range(self, value)

    def __str__(self) -> str:
        return _range_words(self) + ("" if self.at_most is None else f", at most {self.at_most}")


@dataclass(frozen=True)
class FloatRange:
    """Numbers of a search space.

    Args:
        type: ``float``.
        low: Smallest number.
        high: Largest number.
        log: Whether they are drawn on a logarithmic scale.
        step: Distance between two numbers; null for all of them.

    Raises:
        ValueError: the numbers do not go together.
    """

    type: Literal["float"]
    low: float
    high: float
    log: bool = False
    step: Annotated[float, Field(gt=0)] | None = None

    def __post_init__(self) -> None:
        _check_range(self)

    def suggest(self, trial: Suggesting, key: str, drawn: Mapping[str, Any]) -> float:
        """Draw a value, whatever was drawn before."""
        return trial.suggest_float(key, self.low, self.high, step=self.step, log=self.log)

    def label_of(self, value: Any) -> Any:
        """What a study stores for a value; LookupError for one that is not in the range."""
        return _in_range(self, value)

    def __str__(self) -> str:
        return _range_words(self)


@dataclass(frozen=True)
class Categorical:
    """Choices of a search space.

    Args:
        type: ``categorical``.
        choices: Texts and numbers, or parts with a ``name`` beside ``class_path`` and ``init_args``.

    Raises:
        ValueError: there is none, a part has no name, or two have the same.

    Example:
        >>> str(Categorical("categorical", [{"name": "fitted", "class_path": "FittedTree"}, "top-k"]))
        'one of fitted, top-k'
    """

    type: Literal["categorical"]
    choices: list[Any]

    def __post_init__(self) -> None:
        if not self.choices:
            raise PlacedError(("choices",), " is empty; at least one choice is needed")
        labels: set[Any] = set()
        for choice in self.choices:
            if not isinstance(choice, _SCALAR) and not _is_named(choice):
                raise PlacedError(
                    ("choices",), f": {choice!r} needs a name, as in {{name: fitted, class_path: FittedTree}}"
                )
            label = _label(choice)
            if label in labels:
                raise PlacedError(("choices",), f": two choices are called {label!r}")
            labels.add(label)

    @cached_property
    def by_label(self) -> dict[Any, Any]:
        """Value by its label, which is what a study stores; a method's value holds its parts by section."""
        return {
            _label(choice): {key: inner for key, inner in choice.items() if key != "name"}
            if _is_named(choice)
            else choice
            for choice in self.choices
        }

    def suggest(self, trial: Suggesting, key: str, drawn: Mapping[str, Any]) -> Any:
        """Draw a value, whatever was drawn before."""
        return self.by_label[trial.suggest_categorical(key, list(self.by_label))]

    def label_of(self, value: Any) -> Any:
        """What a study stores for a value; LookupError for one that is no choice."""
        for label, choice in self.by_label.items():
            if choice == value and isinstance(choice, bool) == isinstance(value, bool):
                return label
        raise LookupError(value)

    def __str__(self) -> str:
        return "one of " + ", ".join(str(label) for label in self.by_label)


SpaceEntry = IntRange | FloatRange | Categorical


def _check_range(entry: IntRange | FloatRange) -> None:
    if entry.low > entry.high:
        raise ValueError(f"low {entry.low} is above high {entry.high}")
    if entry.log and entry.low <= 0:
        raise ValueError(f"low is {entry.low}; with log: true it must be above 0")
    if entry.log and entry.step is not None:
        raise ValueError("step and log: true do not go together; leave one out")


def _in_range(entry: IntRange | FloatRange, value: Any) -> Any:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not entry.low <= value <= entry.high:
        raise LookupError(value)
    if entry.step is not None and abs((value - entry.low) / entry.step % 1) >= 1e-9:
        raise LookupError(value)
    return value


def _range_words(entry: IntRange | FloatRange) -> str:
    how = " (log)" if entry.log else f" (step {entry.step:g})" if entry.step not in (None, 1) else ""
    return f"{entry.type} {entry.low:g} to {entry.high:g}{how}"


def _is_named(choice: Any) -> bool:
    return isinstance(choice, Mapping) and isinstance(choice.get("name"), str)


def _label(choice: Any) -> Any:
    return choice["name"] if isinstance(choice, Mapping) else choice
