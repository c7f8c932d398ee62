"""The sequence ids of llama.cpp's cache: those of a slot's committed tokens, and of the rows of its tree.

A row attends to the cells that carry its sequence id. A tree therefore has an id a leaf, and a row carries the ids of
all leaves below it. A committed token carries one id, and others when trees need them: every removal and every copy
looks at all cells, so that as few as possible are made.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from specexp.core.tree import TreeShape

ANY = -1
"""The id that stands for all of them, in a removal."""


class IdCells(Protocol):
    """Cells that carry sequence ids."""

    def remove(self, sequence: int, start: int) -> None:
        """Take an id, or :data:`ANY`, from the cells of the positions from ``start`` on; a cell without any is free."""

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        """Add the id ``target`` to the cells of ``source`` at the positions from ``start`` up to ``end``."""

    def new_ids(self, count: int) -> list[int]:
        """Return ids that no cell carries."""

    def others_are_empty(self, lane: SlotIds) -> bool:
        """Return whether no other slot holds tokens."""


@dataclass(frozen=True)
class Branches:
    """A tree as the branches that pass its rows, numbered as they first part.

    Attributes:
        parents: of each row, ``-1`` for one that follows the last committed token.
        depths: of each row.
        first: of each row, one of the branches that pass it.
        tips: of each branch, its last row.
        through: of each row, all branches that pass it.
    """

    parents: list[int]
    depths: list[int]
    first: list[int]
    tips: list[int]
    through: list[list[int]]

    @cached_property
    def counts(self) -> NDArray[np.int32]:
        """``[n]`` how many branches pass each row."""
        return np.array([len(branches) for branches in self.through], dtype=np.int32)

    @cached_property
    def flat(self) -> NDArray[np.int32]:
        """The branches of all rows, one row's behind the other's."""
        return np.array([branch for branches in self.through for branch in branches], dtype=np.int32)

    @classmethod
    def of(cls, shape: TreeShape) -> Branches:
        """The branches of a whole tree."""
        branches = cls([], [], [], [], [])
        branches.add(shape.parents.tolist())
        return branches

    def add(self, parents: Iterable[int]) -> list[tuple[int, int]]:
        """Add rows below others.

        Args:
            parents: the row that each is below, ``-1`` where there is none.

        Returns:
            New branches that part from rows which were there before: the branch, and the last of those rows.
        """
        before, parted = len(self.parents), []
        open_at = {row: branch for branch, row in enumerate(self.tips)}
        for parent in parents:
            row = len(self.parents)
            branch = open_at.pop(parent, None)  # a first child continues its parent's branch
            if branch is None:
                branch = len(self.tips)
                self.tips.append(row)
                above = parent
                while above >= before:  # these are new, too, and are fed with it
                    self.through[above].append(branch)
                    above = self.parents[above]
                if branch:
                    parted.append((branch, above))
            open_at[row] = branch
            self.tips[branch] = row
            self.parents.append(parent)
            self.depths.append(0 if parent < 0 else self.depths[parent] + 1)
            self.first.append(branch)
            self.through.append([branch])
        return parted


class SlotIds:
    """The ids of one slot.

    Args:
        memory: the cells of all slots.

    Attributes:
        length: committed tokens.
        rows: rows behind them, of a tree that was fed and not committed.
    """

    def __init__(self, memory: IdCells) -> None:
        self.length = 0
        self._memory = memory
        self._known: dict[int, int] = {}  # of each id, how many of the committed tokens carry it; most first
        self._tree: Branches | None = None
        self._ids: list[int] = []  # of the tree's branches

    @property
    def rows(self) -> int:
        """Uncommitted rows."""
        return 0 if self._tree is None else len(self._tree.parents)

    @property
    def main(self) -> int:
        """An id that all committed tokens carry."""
        if not self._known:
            (sequence,) = self._memory.new_ids(1)
            self._known[sequence] = self.length
        return next(iter(self._known))

    def extend(self, count: int) -> int:
        """Commit tokens that are fed next, with one id, which is returned."""
        main = self.main
        self.length += count
        self._known[main] = self.length
        return main

    def plant(self, tree: Branches) -> NDArray[np.int32]:
        """Begin a tree whose rows are fed next, and forget uncommitted rows.

        Returns:
            The ids of all rows, one row's behind the other's.
        """
        self.forget_rows()
        self._take(len(tree.tips))
        self._tree = tree
        return np.array(self._ids, dtype=np.int32)[tree.flat]

    def grow(self, parents: Sequence[int]) -> list[list[int]]:
        """Add rows, which are fed next, to those fed before.

        Args:
            parents: the uncommitted row that each is below; ``-1`` for one that follows the last committed token.

        Returns:
            The ids of each row.
        """
        tree = self._tree = self._tree or Branches([], [], [], [], [])
        before = len(tree.parents)
        parted = dict(tree.add(parents))
        self._take(len(tree.tips), tree, parted)
        return [[self._ids[branch] for branch in branches] for branches in tree.through[before:]]

    def commit(self, rows: Sequence[int]) -> None:
        """Keep the rows of a path from the last committed token on, and forget the others.

        Raises:
            ValueError: the rows are no such path.
        """
        tree = self._tree
        if tree is None or [tree.parents[row] for row in rows] != [-1, *rows[:-1]]:
            raise ValueError(f"rows {list(rows)} are no path from the last committed token: commit one")
        end = self.length + len(rows)
        place = {row: depth for depth, row in enumerate(rows)}
        alone = self._memory.others_are_empty(self)
        if alone:
            self._memory.remove(ANY, end)  # one call for all ids, where no other slot loses tokens
        for sequence, tip in zip(self._ids, tree.tips, strict=True):
            row = tip  # up to the deepest accepted row of the branch
            while row >= 0 and row not in place:
                row = tree.parents[row]
            kept = self.length + (place[row] + 1 if row >= 0 else 0)
            if row != tip and not (alone and kept == end):
                self._memory.remove(sequence, kept)
            self._known[sequence] = kept
        self.length = end
        self._tree_is_over()

    def truncate(self, length: int) -> None:
        """Forget everything beyond so many committed tokens."""
        length = min(length, self.length)
        if self.rows or length < self.length:
            if self._memory.others_are_empty(self):
                self._memory.remove(ANY, length)
            else:
                for sequence, known in self._known.items():
                    if sequence in self._ids or known > length:
                        self._memory.remove(sequence, length)
            self._known = {sequence: min(known, length) for sequence, known in self._known.items()}
        self.length = length
        self._tree_is_over()

    def forget_rows(self) -> None:
        """Forget uncommitted rows."""
        if self.rows:
            self.truncate(self.length)

    def share(self, other: SlotIds, length: int) -> None:
        """Hold the first committed tokens of another lane and nothing else; their cells are the same."""
        self.truncate(0)
        if length:
            main = self.main
            self._memory.copy(other.main, main, 0, length)
            self._known[main] = length
        self.length = length

    def give_back(self) -> list[int]:
        """Return the ids that the slot does not need, after removing them from all cells."""
        main = self.main
        spare = [sequence for sequence in self._known if sequence != main and sequence not in self._ids]
        for sequence in spare:
            if self._known.pop(sequence):
                self._memory.remove(sequence, 0)
        return spare

    def _take(self, count: int, tree: Branches | None = None, parted: dict[int, int] | None = None) -> None:
        """Have an id for each branch, which the rows carry that it parts from and all committed tokens.

        Args:
            count: branches.
            tree: the tree, where some of its rows were fed before.
            parted: the last of those rows, of branches that part from one.
        """
        main = self.main
        missing = count - len(self._known)
        if missing > 0:
            self._known.update(dict.fromkeys(self._memory.new_ids(missing), 0))
        used = set(self._ids)
        spare = (sequence for sequence in self._known if sequence not in used)
        for branch in range(len(self._ids), count):
            sequence = next(spare)
            row = -1 if parted is None else parted.get(branch, -1)
            source, end = main, self.length  # a branch from the root carries the committed tokens only
            if tree is not None and row >= 0:
                source, end = self._ids[tree.first[row]], self.length + tree.depths[row] + 1
            if self._known[sequence] < end:
                self._memory.copy(source, sequence, self._known[sequence], end)
            self._known[sequence] = self.length
            self._ids.append(sequence)

    def _tree_is_over(self) -> None:
        self._tree, self._ids = None, []
        self._known = dict(sorted(self._known.items(), key=lambda item: -item[1]))  # main: the first one
