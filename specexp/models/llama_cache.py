"""A llama.cpp context as slots of committed tokens: one cache of cells for all of them, and the passes over it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from weakref import finalize

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from specexp.core.runtime import Slots
from specexp.models.llama_file import LlamaCppError, complaint, library
from specexp.models.llama_ids import SlotIds

if TYPE_CHECKING:
    from specexp.models.llama_file import LlamaFile

MAX_IDS = 256
"""Number of sequence ids of llama.cpp, the limit of lanes times leaves."""
_CELLS = 512  # of the first context; llama.cpp pads to 256
_AT_ONCE = 512  # rows of a pass that are computed together
_FEW_IDS = 8  # every pass compares all pairs of ids


class LlamaCache(Slots):
    """Slots in one llama.cpp context, which is replaced by a larger one, with its content, where it must grow.

    Args:
        file: the model.

    Attributes:
        lanes: the slots' ids.
    """

    def __init__(self, file: LlamaFile) -> None:
        self._file = file
        self._functions = library()
        self._ids = 0
        self._cells = 0
        self._threads = file.threads
        self._free: list[int] = []
        self._context: Any = None
        self._memory: Any = None
        self._close: finalize[..., Any] | None = None
        self.lanes = [SlotIds(self)]

    @property
    def lengths(self) -> list[int]:  # type: ignore[override]
        """Committed tokens of each slot."""
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
        """Hold at least so many cells, of all slots together."""
        if cells > self._cells:
            self._open(max(cells, 2 * self._cells, _CELLS), max(self._ids, 1))

    def room_for(self, rows: int) -> None:
        """Hold so many more rows than are held now; where the cache must grow, half as many again."""
        needed = rows + sum(lane.length + lane.rows for lane in self.lanes)
        if needed > self._cells:
            self.make_room(needed + needed // 2)

    def pass_over(
        self,
        tokens: NDArray[np.int32],
        positions: NDArray[np.int32],
        counts: NDArray[np.int32],
        ids: NDArray[np.int32],
        with_logits: bool,
    ) -> int:
        """Run the model over rows, parents before children.

        Args:
            tokens: ``[n]``.
            positions: ``[n]``.
            counts: ``[n]`` ids of each row.
            ids: those of all rows, one row's behind the other's.
            with_logits: whether to compute them.

        Returns:
            Address of ``[n, V]`` float32 logits, valid until the next pass; 0 without.
        """
        ends = np.cumsum(counts, dtype=np.uint64)
        places = (ends - counts.astype(np.uint64)) * np.uint64(4) + np.uint64(ids.ctypes.data)
        wanted = np.full(tokens.size, with_logits, dtype=np.int8)
        arrays = (tokens, None, positions, counts, places, wanted)
        types = self._functions.llama_batch._fields_[1:]
        batch = self._functions.llama_batch(
            tokens.size,
            *(
                ctypes.cast(0 if array is None else array.ctypes.data, kind)
                for array, (_, kind) in zip(arrays, types, strict=True)
            ),
        )
        if self._file.threads != self._threads:  # PyTorch's may have been set since
            self._threads = self._file.threads
            self._functions.llama_set_n_threads(self._context, self._threads, self._threads)
        code = self._functions.llama_decode(self._context, batch)
        if code:
            raise LlamaCppError(f"llama.cpp could not run a pass of {tokens.size} rows: {complaint()}")
        return (
            ctypes.addressof(self._functions.llama_get_logits(self._context).contents) if with_logits else 0
        )

    # The interface of IdCells.

    def remove(self, sequence: int, start: int) -> None:
        """As :meth:`~specexp.models.llama_ids.IdCells.remove`."""
        if self._context is not None:
            self._functions.llama_memory_seq_rm(self._memory, sequence, start, -1)

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        """As :meth:`~specexp.models.llama_ids.IdCells.copy`."""
        self._functions.llama_memory_seq_cp(self._memory, source, target, start, end)

    def others_are_empty(self, lane: SlotIds) -> bool:
        """As :meth:`~specexp.models.llama_ids.IdCells.others_are_empty`."""
        return all(one is lane or not (one.length or one.rows) for one in self.lanes)

    def new_ids(self, count: int) -> list[int]:
        """As :meth:`~specexp.models.llama_ids.IdCells.new_ids`.

        Raises:
            LlamaCppError: llama.cpp has no more.
        """
        if count > len(self._free) and self._ids < MAX_IDS:
            needed = self._ids + count - len(self._free)
            ids = 1 if needed == 1 else max(_FEW_IDS, 1 << (needed - 1).bit_length())
            self._open(max(self._cells, _CELLS), min(ids, MAX_IDS))
        for lane in self.lanes:
            if count > len(self._free):
                self._free += lane.give_back()
        if count > len(self._free):
            raise LlamaCppError(
                f"llama.cpp knows {MAX_IDS} sequences, and the leaves of the trees of {len(self.lanes)} sequences need "
                f"{count - len(self._free)} more: draft narrower trees, or decode fewer sequences together"
            )
        taken, self._free = self._free[:count], self._free[count:]
        return taken

    def _open(self, cells: int, ids: int) -> None:
        """Make a context of so many cells and ids, with the content of the one before."""
        functions, data = self._functions, None
        if any(self.lengths) or any(lane.rows for lane in self.lanes):
            size = functions.llama_state_get_size(self._context)
            data = (ctypes.c_uint8 * size)()
            functions.llama_state_get_data(self._context, data, size)
        if self._close is not None:
            self._close()
        cells = -(-cells // 256) * 256
        given = self._file.context_settings(
            n_ctx=cells, n_batch=cells, n_ubatch=min(cells, _AT_ONCE), n_seq_max=ids
        )
        self._context = functions.llama_init_from_model(self._file.model, given)
        if not self._context:
            raise LlamaCppError(
                f"llama.cpp could not make a context of {cells} tokens for {self._file.path}: {complaint()}"
            )
        self._close = finalize(self, functions.llama_free, self._context)
        self._memory = functions.llama_get_memory(self._context)
        if data is not None and not functions.llama_state_set_data(self._context, data, len(data)):
            raise LlamaCppError(f"llama.cpp could not take over {cells} cached tokens: {complaint()}")
        self._free += range(self._ids, ids)
        self._cells, self._ids, self._threads = cells, ids, self._file.threads
