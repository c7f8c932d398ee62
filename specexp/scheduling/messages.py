"""Messages between the target's side and a drafting worker, and the memory that both share.

Messages are small; logits and draft distributions are in shared memory.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from socket import SHUT_RDWR, socket
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.multiprocessing  # registers how tensors are sent to another process: their memory is shared

from specexp.core.context import Context
from specexp.core.contracts import TreeBuilder
from specexp.core.loop import Draft
from specexp.core.parts import Parts
from specexp.core.tree import NodeKind, TreeShape

if TYPE_CHECKING:
    from numpy.typing import NDArray

UNNUMBERED = -1
_MOST_SHAPES = 1024  # kept; further ones are sent every time


class StartSequence(NamedTuple):
    """Begin a sequence and draft; ``prefill`` is the target's ``[p, V]`` logits, if the drafter learns from them."""

    lane: int
    context: Context
    depth: int
    prefill: NDArray[Any] | None = None


class StepResult(NamedTuple):
    """Learn from the verification of a draft, and draft again unless the output has ended."""

    lane: int
    accepted: tuple[int, ...]
    tokens: tuple[int, ...]
    seconds: Mapping[str, float]
    depth: int
    ended: bool


class Reset(NamedTuple):
    """Return to the initial state, or to a saved one; answered by a :class:`MemoryReport`."""

    drafter: Mapping[str, Any] | None
    controller: Mapping[str, Any] | None


class MemoryQuery(NamedTuple):
    """Answer with a :class:`MemoryReport`."""


class NextDraft(NamedTuple):
    """The next draft of the sequence in slot ``lane``.

    Attributes:
        draft: sent without the tree's shape and distributions.
        prepared: start and end of starting the parts, or of learning from the last outcome.
        drafting: start and end of drafting.
        shape: number of the tree's shape, and the shape if it is new.
        q_rows: rows of the tree with a draft distribution in the shared memory.
    """

    lane: int
    draft: Draft
    prepared: tuple[float, float]
    drafting: tuple[float, float]
    shape: tuple[int, TreeShape | None]
    q_rows: tuple[int, ...] | None


class SequenceLearned(NamedTuple):
    """The parts have learned from the end of a sequence; with start and end."""

    lane: int
    prepared: tuple[float, float]


class MemoryReport(NamedTuple):
    """Bytes, see :func:`specexp.scheduling.executor.bytes_of`."""

    bytes: dict[str, int]


class Memory:
    """Memory of a lane that both sides share.

    Attributes:
        logits: ``[rows, V]`` target's logits of the last tree, written by the target's side; no rows if no part
            reads them.
        q: ``[rows, V]`` draft distributions of the last tree, written by the worker; no rows if nothing is drawn.
    """

    def __init__(self, parts: Parts, vocab_size: int, dtype: torch.dtype) -> None:
        drawn = parts.builder is not None and {*_kinds_of(parts.builder)} != {NodeKind.POINT_MASS}
        self.logits = torch.empty((parts.max_rows if parts.reads_answers else 0, vocab_size), dtype=dtype)
        self.q = torch.empty((parts.max_rows if drawn else 0, vocab_size), dtype=torch.float32)


class Shapes:
    """Numbers tree shapes that recur, such as a static tree, so that each is sent once and stays one object."""

    def __init__(self) -> None:
        self._numbers: dict[int, tuple[int, TreeShape]] = {}  # at the sender, by id
        self._shapes: dict[int, TreeShape] = {}  # at the receiver, by number

    def pack(self, shape: TreeShape) -> tuple[int, TreeShape | None]:
        """Return its number, and the shape if it is new; :data:`UNNUMBERED` if it does not recur."""
        _ = shape.children, shape.ancestor_mask  # computed here, so that the target does not wait for them
        is_new = id(shape) not in self._numbers
        if not shape.recurs or (is_new and len(self._numbers) == _MOST_SHAPES):
            return UNNUMBERED, shape
        number, _ = self._numbers.setdefault(id(shape), (len(self._numbers), shape))
        return number, shape if is_new else None

    def unpack(self, number: int, shape: TreeShape | None) -> TreeShape:
        """Return the shape of :meth:`pack`."""
        if shape is not None:
            self._shapes[number] = shape
        return self._shapes[number]


def _kinds_of(builder: TreeBuilder) -> list[NodeKind]:
    return [builder.kind, *(kind for inner in builder.inner for kind in _kinds_of(inner))]


def send_message(connection: Connection, message: Any) -> None:
    """Send a message."""
    connection.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))  # three times faster than send()


def receive_message(connection: Connection) -> Any:
    """Wait for the next message; raises EOFError if the other side is gone."""
    return pickle.loads(connection.recv_bytes())


def shut_down(connection: Connection) -> None:
    """End both directions, which also wakes a reader at this end; closing would leave it blocked."""
    if os.name == "posix":
        with suppress(OSError), socket(fileno=os.dup(connection.fileno())) as line:
            line.shutdown(SHUT_RDWR)
