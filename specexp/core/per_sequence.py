"""What a part keeps of the step under way, apart for every sequence."""

from __future__ import annotations

from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from specexp.core.context import Context

T = TypeVar("T")


class PerSequence(WeakKeyDictionary[Context, T]):
    """Values by sequence, gone with it. A copy of a part, also one in another process, begins with none.

    Example:
        >>> pending: PerSequence[int] = PerSequence()
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return PerSequence, ()

    def __deepcopy__(self, memo: dict[int, Any]) -> PerSequence[T]:
        return PerSequence()
