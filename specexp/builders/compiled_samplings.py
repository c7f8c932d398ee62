"""Samplings with inner loops in C++ (if there is a compiler), which build the same trees in less time."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from specexp.base.kernels import CannotCompileError, check_fields, library
from specexp.builders.samplings import ROW, SAMPLING, USED_UP, Samplings, probabilities
from specexp.core.dialogue import Candidates
from specexp.core.tree import NodeKind

_COLUMNS = (*SAMPLING, *(f"row_{name}" for name in ROW))


class _Growth(ctypes.Structure):
    """Mirrors ``Growth`` of ``tree_growth.cpp``."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _COLUMNS),
        ("best", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("size", "rows", "best_size", "budget", "drawn")),
        *((name, ctypes.c_double) for name in ("lowest", "used_up")),
    )


def samplings_of(root: int, kind: NodeKind, budget: int, acceptance_power: float = 1.0) -> Samplings:
    """Create the samplings for a tree. They run compiled code if there is a compiler and ``acceptance_power`` is 1.

    With 16 or more nodes, compiled samplings take 30 to 75 % of NumPy's time; with 8 nodes, there is no difference.
    """
    compiled = acceptance_power == 1.0 and _library() is not None
    return (CompiledSamplings if compiled else Samplings)(root, kind, budget, acceptance_power)


class CompiledSamplings(Samplings):
    """Samplings with arrays that C++ code also reads and writes. They need a compiler; see :func:`samplings_of`."""

    def __init__(self, root: int, kind: NodeKind, budget: int, acceptance_power: float = 1.0) -> None:
        super().__init__(root, kind, budget, acceptance_power)
        self._native = _library()
        self._keys = np.empty(budget)
        self._growth = _Growth(
            best=self._keys.ctypes.data, budget=budget, drawn=kind is not NodeKind.POINT_MASS, used_up=USED_UP
        )
        self._at = ctypes.addressof(self._growth)
        self._grow(0, 0)

    @override
    def draft(self, samplings: NDArray[np.int64]) -> NDArray[np.int64]:
        first = self._rows.size
        self._grow(0, samplings.size)
        self._native.draft(self._at, samplings.ctypes.data, samplings.size)
        self._take_sizes()
        return np.arange(first, self._rows.size)

    @override
    def add(self, rows: NDArray[np.int64], answer: Candidates, k: int) -> None:
        assert answer.log_probs is not None
        tokens = np.ascontiguousarray(answer.tokens, dtype=np.int64)  # [f, j]
        log_probs = np.ascontiguousarray(answer.log_probs, dtype=np.float32)
        shares = probabilities(log_probs)
        candidates = [array.ctypes.data for array in (tokens, log_probs, shares)]
        self._grow(tokens.size, 0)
        self._native.add(self._at, rows.ctypes.data, rows.size, *candidates, tokens.shape[1], k)
        self._take_sizes()
        self.lowest = float(self._growth.lowest)
        if answer.q is not None:
            self._q.append((rows, answer.q))

    @override
    def waiting(self, max_depth: int) -> tuple[NDArray[np.int64], NDArray[np.int64], float]:
        more = np.empty(self._rows.size, dtype=np.int64)
        chosen = np.empty(self._samplings.size, dtype=np.int64)
        counts = np.empty(2, dtype=np.int64)
        found = [array.ctypes.data for array in (more, chosen, counts)]
        cut = self._native.waiting(self._at, min(max_depth, np.iinfo(np.int64).max), *found)
        self._take_sizes()
        rows, nodes = counts.tolist()
        return more[:rows], chosen[:nodes], float(cut)

    @override
    def _ordered(
        self, chosen: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        chosen = chosen.copy()
        parents = np.empty(chosen.size + 1, dtype=np.int64)
        new_row = np.empty(self._rows.size + 1, dtype=np.int64)
        found = parents.ctypes.data, new_row.ctypes.data
        self._native.order(self._at, chosen.ctypes.data, chosen.size, *found)
        return chosen, parents, new_row

    def _grow(self, samplings: int, rows: int) -> None:
        """Make room in Python, because C++ never allocates, and pass the columns' new addresses to C++."""
        if self._samplings.reserve(samplings) | self._rows.reserve(rows) or not self._growth.key:
            columns = [self._samplings.column(name) for name in SAMPLING]
            columns += [self._rows.column(name) for name in ROW]
            for name, column in zip(_COLUMNS, columns, strict=True):
                setattr(self._growth, name, column.ctypes.data)
            self._growth.size, self._growth.rows = self._samplings.size, self._rows.size

    def _take_sizes(self) -> None:
        self._samplings.size, self._rows.size = self._growth.size, self._growth.rows


@cache
def _library() -> Any:
    try:
        found = library(Path(__file__).with_name("tree_growth.cpp"))
        check_fields(found, Growth=_Growth)
    except CannotCompileError:
        return None
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    for name, arguments in {
        "add": (pointer, pointer, number, pointer, pointer, pointer, number, number),
        "draft": (pointer, pointer, number),
        "waiting": (pointer, number, pointer, pointer, pointer),
        "order": (pointer, pointer, number, pointer, pointer),
    }.items():
        getattr(found, name).argtypes = arguments
        getattr(found, name).restype = ctypes.c_double if name == "waiting" else None
    return found
