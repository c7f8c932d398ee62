"""A table whose columns grow in place, each by itself in memory: most questions are about one of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Columns:
    """Columns of as many entries each.

    Args:
        columns: kind of number by name.
        room: entries there is room for at first.
    """

    def __init__(self, columns: Mapping[str, type[np.generic]], room: int) -> None:
        self._columns: dict[str, NDArray[Any]] = {
            name: np.empty(room, dtype=kind) for name, kind in columns.items()
        }
        self._room = room
        self.size = 0

    def __getitem__(self, name: str) -> NDArray[Any]:
        """What is in a column, to be read and written."""
        return self._columns[name][: self.size]

    def column(self, name: str) -> NDArray[Any]:
        """A whole column, beyond what is in it."""
        return self._columns[name]

    def reserve(self, entries: int) -> bool:
        """Make room for so many more; whether the columns stand elsewhere now."""
        if self.size + entries <= self._room:
            return False
        self._room = 2 * (self.size + entries)
        for name, column in self._columns.items():
            self._columns[name] = np.empty(self._room, dtype=column.dtype)
            self._columns[name][: self.size] = column[: self.size]
        return True

    def append(self, entries: int, /, **values: Any) -> None:
        """Add entries: a value, or one for each, of every column."""
        self.reserve(entries)
        start, self.size = self.size, self.size + entries
        for name, value in values.items():
            self._columns[name][start : self.size] = value

    def keep(self, which: NDArray[np.int64]) -> None:
        """Forget all entries but these, in this order."""
        for column in self._columns.values():
            column[: which.size] = column[which]
        self.size = which.size
