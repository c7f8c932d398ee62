"""Messages between the target's process and a drafting worker, and their shared memory.

Messages stay small, because logits and draft distributions are in shared memory.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from socket import SHUT_RDWR, socket
from typing import Any, NamedTuple

import torch
import torch.multiprocessing  # registers pickling of tensors by shared memory
from numpy.typing import NDArray

from specexp.core.context import Context
from specexp.core.loop import Draft
from specexp.core.parts import Parts, parts_in
from specexp.core.tree import NodeKind, TreeShape

UNNUMBERED = -1
_MOST_SHAPES = 1024  # maximum number of shapes kept; others are sent every time


class StartSequence(NamedTuple):
    """Request: start a sequence and draft. ``prefill`` holds the target's ``[p, V]`` logits if drafters need them."""

    lane: int
    context: Context
    depth: int
    prefill: NDArray[Any] | None = None


class StepResult(NamedTuple):
    """Request: learn from the verification of a draft. Then draft again, unless the output has ended."""

    lane: int
    accepted: tuple[int, ...]
    tokens: tuple[int, ...]
    seconds: Mapping[str, float]
    depth: int
    ended: bool


class Reset(NamedTuple):
    """Request: reset the parts to their initial state or a saved state. The reply is the memory used."""

    drafter: Mapping[str, Any] | None
    controller: Mapping[str, Any] | None


class MemoryQuery(NamedTuple):
    """Request: reply with the memory used, as returned by :func:`specexp.scheduling.executor.bytes_of`."""


class NextDraft(NamedTuple):
    """Reply: the next draft of the sequence in slot ``lane``."""

    lane: int
    draft: Draft  # the draft without its tree's shape and distributions, which the receiver restores
    # start and end time of preparing the parts, i.e. starting them or learning from the last outcome
    prepared: tuple[float, float]
    drafting: tuple[float, float]  # start and end time of drafting
    shape: tuple[int, TreeShape | None]  # number of the tree's shape, and the shape itself if it is new
    q_rows: tuple[int, ...] | None  # tree rows with a draft distribution in the shared memory


class SequenceLearned(NamedTuple):
    """Reply: the parts have learned from the last step of a sequence. ``prepared`` is the start and end time."""

    lane: int
    prepared: tuple[float, float]


class Memory:
    """The shared memory of a lane."""

    def __init__(self, parts: Parts, vocab_size: int, dtype: torch.dtype) -> None:
        drawn = any(builder.kind is not NodeKind.POINT_MASS for builder in parts_in(parts.builder))
        # [rows, V] target logits of the last tree, written by the target's side; empty if no part reads them
        self.logits = torch.empty((parts.max_rows if parts.reads_answers else 0, vocab_size), dtype=dtype)
        # [rows, V] draft distributions of the last tree, written by the worker; empty if no nodes are drawn
        self.q = torch.empty((parts.max_rows if drawn else 0, vocab_size), dtype=torch.float32)


class Shapes:
    """Gives recurring tree shapes, such as static trees, a number, so that each is sent once and stays one object."""

    def __init__(self) -> None:
        self._numbers: dict[int, tuple[int, TreeShape]] = {}  # sender: id(shape) -> number, shape
        self._shapes: dict[int, TreeShape] = {}  # receiver: number -> shape

    def pack(self, shape: TreeShape) -> tuple[int, TreeShape | None]:
        """Return a shape's number, or :data:`UNNUMBERED` if it does not recur, and the shape if it must be sent."""
        _ = shape.children, shape.ancestor_mask  # cached here, to spare the target's side the work
        is_new = id(shape) not in self._numbers
        if not shape.recurs or (is_new and len(self._numbers) == _MOST_SHAPES):
            return UNNUMBERED, shape
        number, _ = self._numbers.setdefault(id(shape), (len(self._numbers), shape))
        return number, shape if is_new else None

    def unpack(self, number: int, shape: TreeShape | None) -> TreeShape:
        """Return the shape that was given to :meth:`pack`."""
        if shape is not None:
            self._shapes[number] = shape
        return self._shapes[number]


def send_message(connection: Connection, message: Any) -> None:
    """Send a pickled message."""
    connection.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))  # three times as fast as send()


def receive_message(connection: Connection) -> Any:
    """Wait for the next message. Raises EOFError if the other side closed the connection."""
    return pickle.loads(connection.recv_bytes())


def shut_down(connection: Connection) -> None:
    """Shut down both directions. Unlike closing, this wakes a reader that is blocked at this end."""
    if os.name == "posix":
        with suppress(OSError), socket(fileno=os.dup(connection.fileno())) as line:
            line.shutdown(SHUT_RDWR)
