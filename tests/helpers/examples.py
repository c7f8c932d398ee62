"""The number of examples of a property: under ``-m slow`` many times the default, for all properties."""

from collections.abc import Callable
from typing import Any

from hypothesis import settings


def examples(number: int, **given: Any) -> Callable[[Any], Any]:
    """Return settings with this number of examples where the default is a hundred, as under ``-m slow``."""
    return settings(max_examples=max(number * settings().max_examples // 100, min(number, 5)), **given)
