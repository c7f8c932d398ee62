"""What the target's side and a drafting worker say to each other, and the memory both of them see.

Messages are small; logits and draft distributions lie in shared memory.
"""

from __future__ import annotations

import os
import pickle
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from socket import SHUT_RDWR, socket
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.multiprocessing  # registers how tensors are handed to another process: their memory is shared

from specexp.core.drafting import Draft
from specexp.core.parts import Parts
from specexp.core.tree import NodeKind, TreeShape
from specexp.core.tree_builder import TreeBuilder

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SHAPES_KEPT = 256
UNNUMBERED = -1


class StartSequence(NamedTuple):
    """A sequence starts: begin its parts and draft."""

    lane: int
    prompt: tuple[int, ...]
    seed: int
    sequence: int | str
    noise_temperature: float
    depth: int
    prefill: NDArray[Any] | None = None
    """``[p, V]`` the target's answers to the prompt, where the drafter learns from them; bfloat16 as float32."""


class StepResult(NamedTuple):
    """What the target said of a draft: learn, and draft again unless the output has ended."""

    lane: int
    accepted: tuple[int, ...]
    tokens: tuple[int, ...]
    seconds: Mapping[str, float]
    depth: int
    ended: bool


class Reset(NamedTuple):
    """Return to the initial state, or to a saved one, and say so."""

    drafter: Mapping[str, Any] | None
    controller: Mapping[str, Any] | None


class MemoryQuery(NamedTuple):
    """Say how much memory the drafts take."""


class NextDraft(NamedTuple):
    """The next draft of a sequence, and when it was made."""

    lane: int
    draft: Draft
    prepared: tuple[float, float]
    """From when to when the parts began, or learned from the last outcome."""
    drafting: tuple[float, float]


class SequenceLearned(NamedTuple):
    """A sequence that has ended is learned from."""

    lane: int
    prepared: tuple[float, float]
    """From when to when."""


class ResetDone(NamedTuple):
    """It is reset."""


class MemoryReport(NamedTuple):
    """Bytes, see :func:`specexp.scheduling.drafters.bytes_of`."""

    bytes: dict[str, int]


class Failed(NamedTuple):
    """A part raised an error, and the worker has ended."""

    error: Exception
    notes: tuple[str, ...]
    """For whose draft, and its traceback."""


class Memory:
    """What both sides of a lane see.

    Args:
        rows: number of rows of the largest tree, its root included.
        vocab_size: V.
        dtype: type of the target's logits.
        drawn: whether trees come with draft distributions.
        read: whether parts read the target's answers.

    Attributes:
        logits: ``[rows, V]`` the target's answer to the lane's last tree, no rows where nobody reads it; written by the
            target's side alone.
        q: ``[rows, V]`` draft distributions of the lane's last tree; written by the worker alone.
    """

    def __init__(self, rows: int, vocab_size: int, dtype: torch.dtype, drawn: bool, read: bool) -> None:
        self.logits = torch.empty((rows if read else 0, vocab_size), dtype=dtype)
        self.q = torch.empty((rows if drawn else 0, vocab_size), dtype=torch.float32)


class Shapes:
    """Numbers the tree shapes that come again, so that each is sent once, and is the same object at the target.

    Both sides keep the same last ones, since both see all in the same order.
    """

    def __init__(self) -> None:
        self._numbers: OrderedDict[int, tuple[int, TreeShape]] = OrderedDict()  # by id, at the sender
        self._shapes: OrderedDict[int, TreeShape] = OrderedDict()  # by number, at the receiver
        self._next = 0

    def pack(self, shape: TreeShape) -> tuple[int, TreeShape | None]:
        """Its number, and itself if it is new; one that does not come again has no number."""
        _ = shape.children, shape.ancestor_mask  # here the target does not wait for them
        if not shape.recurs:
            return UNNUMBERED, shape
        known = self._numbers.get(id(shape))
        if known is not None:
            return known[0], None
        number, self._next = self._next, self._next + 1
        self._numbers[id(shape)] = number, shape
        if len(self._numbers) > _SHAPES_KEPT:
            self._numbers.popitem(last=False)
        return number, shape

    def unpack(self, number: int, shape: TreeShape | None) -> TreeShape:
        """The shape of :meth:`pack`."""
        if shape is None:
            return self._shapes[number]
        if number != UNNUMBERED:
            self._shapes[number] = shape
            if len(self._shapes) > _SHAPES_KEPT:
                self._shapes.popitem(last=False)
        return shape


class PackedDraft(NamedTuple):
    """A :class:`NextDraft` on its way."""

    lane: int
    draft: Draft
    shape: tuple[int, TreeShape | None]
    q_rows: tuple[int, ...] | None
    prepared: tuple[float, float]
    drafting: tuple[float, float]


def memory_of(parts: Parts, vocab_size: int, dtype: torch.dtype) -> Memory:
    """What a lane with these parts shares."""
    builder = parts.builder
    drawn = builder is not None and any(kind is not NodeKind.POINT_MASS for kind in _kinds_of(builder))
    return Memory(parts.max_rows, vocab_size, dtype, drawn, parts.reads_answers)


def _kinds_of(builder: TreeBuilder) -> list[NodeKind]:
    return [builder.kind, *(kind for inner in builder.inner for kind in _kinds_of(inner))]


def send_message(connection: Connection, message: Any) -> None:
    """Send a message."""
    connection.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))  # a third of the time of send()


def receive_message(connection: Connection) -> Any:
    """The next message; waits for one.

    Raises:
        EOFError: the other side is gone.
    """
    return pickle.loads(connection.recv_bytes())


def shut_down(connection: Connection) -> None:
    """Let both ends know that nothing will follow, also who waits at this end: closing it would leave them there."""
    if os.name == "posix":
        with suppress(OSError), socket(fileno=os.dup(connection.fileno())) as line:
            line.shutdown(SHUT_RDWR)
