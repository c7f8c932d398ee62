"""Slots of committed tokens in a llama.cpp context, which has a single cache of cells for all slots.

A row attends to the cells that share a sequence id with it. A tree therefore needs one id per leaf, and a row has the
ids of all leaves below it. A committed token has one id, or several while trees need them. Each call that removes or
copies an id visits all cells, so this module makes as few of them as possible.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import finalize

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from specexp.core.runtime import Slots
from specexp.core.tree import TreeShape
from specexp.models.llama_file import LlamaCppError, complaint, library

if TYPE_CHECKING:
    from specexp.models.llama_file import LlamaFile

MAX_IDS = 256
"""The number of sequence ids in llama.cpp, an upper bound on the number of lanes times leaves."""
_CELLS = 512  # minimum number of cells in a context; llama.cpp rounds up to a multiple of 256
_AT_ONCE = 512  # maximum number of rows of a pass that llama.cpp computes at once
_FEW_IDS = 8  # minimum number of ids once trees branch; low, because every pass compares all pairs of ids
ANY = -1  # in a removal, means every id


class LaneRows(NamedTuple):
    """The rows of one slot in a pass, with parents before children."""

    tokens: NDArray[Any]  # [m]
    depths: NDArray[np.int64]  # [m] distance from the last committed token, minus one
    past: int  # number of committed tokens before them
    counts: NDArray[np.int32]  # [m] number of ids of each row
    starts: NDArray[np.int64]  # [m] byte offset of each row's first id
    ids: NDArray[np.int32]  # the ids of all rows, concatenated


class Batch:
    """The rows of a pass, in buffers at fixed addresses that are passed to llama.cpp only once."""

    def __init__(self, rows: int, ids: int) -> None:
        batch = library().llama_batch
        self._size = rows, ids
        self._tokens, self._positions, self._counts = np.empty((3, rows), dtype=np.int32)
        self._ids = np.empty(ids, dtype=np.int32)
        self._first = self._ids.ctypes.data
        self._places = np.empty(rows, dtype=np.int64)  # address of each row's ids
        self._wanted = np.empty(rows, dtype=np.int8)
        arrays: dict[str, NDArray[Any]] = {"token": self._tokens, "pos": self._positions}
        arrays |= {"n_seq_id": self._counts, "seq_id": self._places, "logits": self._wanted}
        kinds = dict(batch._fields_)
        self.given = batch(**{name: array.ctypes.data_as(kinds[name]) for name, array in arrays.items()})

    def fill(self, lanes: Sequence[LaneRows], with_logits: bool) -> Batch:
        """Return a batch with these rows: this batch, or a larger one if they do not fit."""
        rows = sum(lane.counts.size for lane in lanes)
        ids = sum(lane.ids.size for lane in lanes)
        if rows > self._size[0] or ids > self._size[1]:
            return Batch(2 * rows, 2 * ids).fill(lanes, with_logits)
        row = place = 0
        for lane in lanes:
            own = slice(row, row + lane.counts.size)
            self._tokens[own] = lane.tokens
            np.add(lane.depths, lane.past, out=self._positions[own], casting="same_kind")
            self._counts[own] = lane.counts
            np.add(lane.starts, self._first + 4 * place, out=self._places[own])
            self._ids[place : place + lane.ids.size] = lane.ids
            row, place = own.stop, place + lane.ids.size
        self._wanted[:rows] = with_logits
        self.given.n_tokens = rows
        return self


def starts_of(counts: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the byte offset of each row's first id, given the number of ids of each row."""
    return (np.cumsum(counts, dtype=np.int64) - counts) * counts.itemsize


@dataclass(frozen=True)
class Branches:
    """The branches of a tree, one per leaf, numbered in the order in which they split off."""

    parents: list[int]  # parent of each row, -1 for a child of the last committed token
    depths: list[int]  # depth of each row
    first: list[int]  # for each row, one of the branches through it
    tips: list[int]  # for each branch, its last row
    through: list[list[int]]  # for each row, all branches through it

    @cached_property
    def counts(self) -> NDArray[np.int32]:
        """Number of branches through each row, ``[n]``."""
        return np.array([len(branches) for branches in self.through], dtype=np.int32)

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """Byte offset of each row's first branch in :attr:`flat`, ``[n]``."""
        return starts_of(self.counts)

    @cached_property
    def flat(self) -> NDArray[np.int32]:
        """The branches of each row, concatenated."""
        return np.array([branch for branches in self.through for branch in branches], dtype=np.int32)

    @classmethod
    def of(cls, shape: TreeShape) -> Branches:
        """Return the branches of a complete tree."""
        branches = cls([], [], [], [], [])
        branches.add(shape.parents.tolist())
        return branches

    def add(self, parents: Iterable[int]) -> list[tuple[int, int]]:
        """Add rows, given their parents; ``-1`` means the last committed token. Return pairs of a new branch and the
        earlier row that it splits off from.
        """
        before, parted = len(self.parents), []
        open_at = {row: branch for branch, row in enumerate(self.tips)}
        for parent in parents:
            row = len(self.parents)
            branch = open_at.pop(parent, None)  # the first child continues its parent's branch
            if branch is None:
                branch = len(self.tips)
                self.tips.append(row)
                above = parent
                while above >= before:  # these rows are new too and are fed in the same pass
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
    """The sequence ids of one slot. ``memory`` is the cache with the cells of all slots."""

    def __init__(self, memory: LlamaCache) -> None:
        self.length = 0  # number of committed tokens
        self._memory = memory
        self._known: dict[int, int] = {}  # id -> number of committed tokens that have it; largest first
        self._tree: Branches | None = None
        self._ids: list[int] = []  # id of each branch of the tree

    @property
    def rows(self) -> int:
        """Number of uncommitted rows, which belong to a tree fed after the committed tokens."""
        return 0 if self._tree is None else len(self._tree.parents)

    @property
    def main(self) -> int:
        """An id that all committed tokens share."""
        if not self._known:
            (sequence,) = self._memory.new_ids(1)
            self._known[sequence] = self.length
        return next(iter(self._known))

    def extend(self, count: int) -> int:
        """Commit ``count`` tokens, which the next pass feeds, and return their id."""
        main = self.main
        self.length += count
        self._known[main] = self.length
        return main

    def plant(self, tree: Branches) -> NDArray[np.int32]:
        """Replace the uncommitted rows with a tree for the next pass. Return the ids of all rows, concatenated."""
        self.forget_rows()
        self._take(len(tree.tips))
        self._tree = tree
        return np.array(self._ids, dtype=np.int32)[tree.flat]

    def grow(self, parents: Sequence[int]) -> list[list[int]]:
        """Add rows for the next pass, given their uncommitted parents (``-1`` if none). Return the ids of each row."""
        tree = self._tree = self._tree or Branches([], [], [], [], [])
        before = len(tree.parents)
        parted = dict(tree.add(parents))
        self._take(len(tree.tips), tree, parted)
        return [[self._ids[branch] for branch in branches] for branches in tree.through[before:]]

    def commit(self, rows: Sequence[int]) -> None:
        """Commit the rows of a path after the last committed token. Raises ``ValueError`` for other rows."""
        tree = self._tree
        if tree is None or [tree.parents[row] for row in rows] != [-1, *rows[:-1]]:
            raise ValueError(f"rows must be a path from the last committed token, got {list(rows)}")
        end = self.length + len(rows)
        place = {row: depth for depth, row in enumerate(rows)}
        # nothing is dropped if all rows are accepted, as in plain decoding
        alone = len(rows) < len(tree.parents) and self._memory.others_are_empty(self)
        if alone:
            self._memory.remove(ANY, end)  # a single call for all ids, because no other slot has tokens
        for sequence, tip in zip(self._ids, tree.tips, strict=True):
            row = tip  # moves up to the deepest accepted row of the branch
            while row >= 0 and row not in place:
                row = tree.parents[row]
            kept = self.length + (place[row] + 1 if row >= 0 else 0)
            if row != tip and not (alone and kept == end):
                self._memory.remove(sequence, kept)
            self._known[sequence] = kept
        self.length = end
        self._tree_is_over()

    def truncate(self, length: int) -> None:
        """Keep only the first ``length`` committed tokens."""
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
        """Drop the uncommitted rows."""
        if self.rows:
            self.truncate(self.length)

    def share(self, other: SlotIds, length: int) -> None:
        """Replace the slot's tokens with the first ``length`` tokens of another slot, sharing their cells."""
        self.truncate(0)
        if length:
            main = self.main
            self._memory.copy(other.main, main, 0, length)
            self._known[main] = length
        self.length = length

    def give_back(self) -> list[int]:
        """Remove the ids that the slot does not need from all cells, and return them."""
        main = self.main
        spare = [sequence for sequence in self._known if sequence != main and sequence not in self._ids]
        for sequence in spare:
            if self._known.pop(sequence):
                self._memory.remove(sequence, 0)
        return spare

    def _take(self, count: int, tree: Branches | None = None, parted: dict[int, int] | None = None) -> None:
        """Assign an id to each new branch, and add the id to the committed tokens and the rows above the branch.

        Args:
            tree: the tree, if some of its rows have already been fed.
            parted: the fed row that each new branch splits off from.
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
            source, end = main, self.length  # a branch from the root shares only the committed tokens
            if tree is not None and row >= 0:
                source = self._ids[tree.first[row]]
                end = self.length + tree.depths[row] + 1
            if self._known[sequence] < end:
                self._memory.copy(source, sequence, self._known[sequence], end)
            self._known[sequence] = self.length
            self._ids.append(sequence)

    def _tree_is_over(self) -> None:
        self._tree = None
        self._ids = []
        if len(self._known) > 1:
            # so that `main` is first
            self._known = dict(sorted(self._known.items(), key=lambda item: -item[1]))


class LlamaCache(Slots):
    """The slots of one llama.cpp context. To grow, it replaces the context with a larger one with the same contents."""

    def __init__(self, file: LlamaFile) -> None:
        self._file = file
        self._functions = library()
        self._ids = 0
        self._cells = 0
        self._threads = torch.get_num_threads()
        self._free: list[int] = []
        self._batch = Batch(16, 16)
        self._context: Any = None
        self._memory: Any = None
        self._close: finalize[..., Any] | None = None
        self.lanes = [SlotIds(self)]  # the sequence ids of each slot

    @property
    def lengths(self) -> list[int]:  # type: ignore[override]
        """Number of committed tokens in each slot."""
        return [lane.length for lane in self.lanes]

    @override
    def reserve(self, capacity: int, slots: int = 1) -> None:
        self.lanes += [SlotIds(self) for _ in range(slots - len(self.lanes))]
        self.make_room(capacity * slots)

    @override
    def commit(self, slot: int, rows: Sequence[int]) -> None:
        self.lanes[slot].commit(rows)

    @override
    def truncate(self, slot: int, length: int) -> None:
        self.lanes[slot].truncate(length)

    @override
    def fork(self, source: int, target: int, length: int) -> None:
        self.lanes[target].share(self.lanes[source], length)

    @override
    def nbytes(self) -> int:
        return self._cells * self._file.cell_bytes

    def make_room(self, cells: int) -> None:
        """Grow the context to at least ``cells`` cells for all slots together."""
        if cells > self._cells:
            self._open(max(cells, 2 * self._cells, _CELLS), max(self._ids, 1))

    def room_for(self, rows: int) -> None:
        """Make room for ``rows`` more rows. If the cache must grow, it grows to 1.5 times the needed size."""
        needed = rows + sum(lane.length + lane.rows for lane in self.lanes)
        if needed > self._cells:
            self.make_room(needed + needed // 2)

    def pass_over(self, lanes: Sequence[LaneRows], with_logits: bool) -> int:
        """Run the model over the ``n`` rows of some slots. Return the address of ``[n, V]`` float32 logits, valid until
        the next pass; 0 without logits.
        """
        batch = self._batch = self._batch.fill(lanes, with_logits)
        if (threads := torch.get_num_threads()) != self._threads:  # it may have changed
            self._threads = threads
            self._functions.llama_set_n_threads(self._context, threads, threads)
        code = self._functions.llama_decode(self._context, batch.given)
        if code:
            raise LlamaCppError(f"llama.cpp could not run a pass of {batch.given.n_tokens} rows: {complaint()}")
        return ctypes.addressof(self._functions.llama_get_logits(self._context).contents) if with_logits else 0

    def remove(self, sequence: int, start: int) -> None:
        """Remove an id (:data:`ANY`: all ids) from cells at positions >= ``start``. Cells without ids become free."""
        if self._context is not None:
            self._functions.llama_memory_seq_rm(self._memory, sequence, start, -1)

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        """Add the id ``target`` to the cells of ``source`` at positions from ``start`` to ``end`` (exclusive)."""
        self._functions.llama_memory_seq_cp(self._memory, source, target, start, end)

    def others_are_empty(self, lane: SlotIds) -> bool:
        """Return whether all other slots are empty."""
        return all(one is lane or not (one.length or one.rows) for one in self.lanes)

    def new_ids(self, count: int) -> list[int]:
        """Return ``count`` unused ids. Raises :class:`LlamaCppError` if llama.cpp does not have enough."""
        if count > len(self._free) and self._ids < MAX_IDS:
            needed = self._ids + count - len(self._free)
            ids = 1 if needed == 1 else max(_FEW_IDS, 1 << (needed - 1).bit_length())
            self._open(max(self._cells, _CELLS), min(ids, MAX_IDS))
        for lane in self.lanes:
            if count > len(self._free):
                self._free += lane.give_back()
        if count > len(self._free):
            raise LlamaCppError(
                f"llama.cpp has only {MAX_IDS} sequence ids, and the tree leaves of {len(self.lanes)} sequences "
                f"need {count - len(self._free)} more: draft narrower trees, or decode fewer sequences together"
            )
        taken = self._free[:count]
        self._free = self._free[count:]
        return taken

    def _open(self, cells: int, ids: int) -> None:
        """Replace the context with one of this size that has the same contents."""
        functions, data = self._functions, None
        if any(self.lengths) or any(lane.rows for lane in self.lanes):
            size = functions.llama_state_get_size(self._context)
            data = (ctypes.c_uint8 * size)()
            functions.llama_state_get_data(self._context, data, size)
        if self._close is not None:
            self._close()
        cells = -(-cells // 256) * 256
        given = self._file.context_settings(n_ctx=cells, n_batch=cells, n_ubatch=min(cells, _AT_ONCE), n_seq_max=ids)
        self._context = functions.llama_init_from_model(self._file.model, given)
        if not self._context:
            raise LlamaCppError(
                f"llama.cpp could not make a context of {cells} tokens for {self._file.path}: {complaint()}"
            )
        self._close = finalize(self, functions.llama_free, self._context)
        self._memory = functions.llama_get_memory(self._context)
        if data is not None and not functions.llama_state_set_data(self._context, data, len(data)):
            raise LlamaCppError(f"llama.cpp could not grow its cache to {cells} tokens: {complaint()}")
        self._free += range(self._ids, ids)
        self._cells = cells
        self._ids = ids
        self._threads = torch.get_num_threads()
