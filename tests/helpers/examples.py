"""How often a property is tried: a third as often by default as under ``-m slow``, which tries all properties again."""

from collections.abc import Callable
from typing import Any

from hypothesis import settings


def examples(number: int, **given: Any) -> Callable[[Any], Any]:
    """Settings of a property that is to be tried on so many examples.

    Args:
        number: examples where a property without settings is tried on a hundred, as under ``-m slow``.
        given: other settings.
    """
    return settings(max_examples=max(number * settings().max_examples // 100, min(number, 5)), **given)
