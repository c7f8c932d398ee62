"""A drafting worker: a process or thread that drafts for several sequences while the target verifies others.

The target's side sends what a sequence begins with and what the target said; the worker answers each with the next
draft. It serves what comes first, one thing at a time, so whatever its sequences share changes in one place only.
Messages are small; logits and draft distributions lie in memory both sides see.

Nobody waits to send: a worker reads at once whatever it is told, and the target's side sends nothing that the worker
has to answer before it reads. So the two cannot block each other.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import threading
import traceback
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection, Pipe
from queue import SimpleQueue
from socket import SHUT_RDWR, socket
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
import torch.multiprocessing  # registers how tensors are handed to another process: their memory is shared

from specexp.composition import Parts
from specexp.context import Context
from specexp.controllers import Fixed
from specexp.execution.drafters import bytes_of, drafting_for, initial, twins
from specexp.execution.processes import start_process
from specexp.outcome import Outcome, prefill_outcome
from specexp.sequence import Draft, Drafting
from specexp.tree import NodeKind, TokenTree, TreeShape

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.process import BaseProcess

    from numpy.typing import NDArray

Kind = Literal["process", "thread"]
_SHAPES_KEPT = 256
_PATIENCE = 1.0
"""Seconds that a worker is given to end by itself."""


class Begin(NamedTuple):
    """A sequence starts: begin its parts and draft."""

    lane: int
    prompt: tuple[int, ...]
    seed: int
    sequence: int | str
    noise_temperature: float
    depth: int
    prefill: NDArray[Any] | None = None
    """``[p, V]`` the target's answers to the prompt, where the drafter learns from them; bfloat16 as float32."""


class Said(NamedTuple):
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


class Weigh(NamedTuple):
    """Say how much memory the drafts take."""


class Drafted(NamedTuple):
    """The next draft of a sequence, and when it was made."""

    lane: int
    draft: Draft
    prepared: tuple[float, float]
    """From when to when the parts began, or learned from the last outcome."""
    drafting: tuple[float, float]
    noise: dict[int, NDArray[np.float32]]
    """``[V]`` noise of the target that the drafter has drawn, by position."""


class Learned(NamedTuple):
    """A sequence that has ended is learned from."""

    lane: int
    prepared: tuple[float, float]
    """From when to when."""


class Ready(NamedTuple):
    """It is reset."""


class Weight(NamedTuple):
    """Bytes, see :func:`specexp.execution.drafters.bytes_of`."""

    bytes: dict[str, int]


class Failed(NamedTuple):
    """A part raised an error, and the worker has ended."""

    error: Exception
    notes: tuple[str, ...]
    """For whose draft, and its traceback."""


class Memory:
    """What both sides of a lane see.

    Args:
        rows: of the largest tree, its root included.
        vocab_size: V.
        dtype: of the target's logits.
        drawn: whether trees come with draft distributions.
        coupled: whether the drafter draws the target's noise.

    Attributes:
        logits: ``[rows, V]`` the target's answer to the lane's last tree; written by the target's side alone.
        q: ``[rows, V]`` draft distributions of the lane's last tree; written by the worker alone.
        noise: ``[rows, V]`` the target's noise of the positions from the lane's root on, where a coupled drafter drew
            it; written by the worker alone.
    """

    def __init__(self, rows: int, vocab_size: int, dtype: torch.dtype, drawn: bool, coupled: bool) -> None:
        self.logits = torch.empty((rows, vocab_size), dtype=dtype)
        self.q = torch.empty((rows if drawn else 0, vocab_size), dtype=torch.float32)
        self.noise = torch.empty((rows if coupled else 0, vocab_size), dtype=torch.float32)


class Shapes:
    """Numbers tree shapes, so that one that comes again is sent once, and is the same object at the target.

    Both sides keep the same last ones, since both see all in the same order.
    """

    def __init__(self) -> None:
        self._numbers: OrderedDict[int, tuple[int, TreeShape]] = OrderedDict()  # by id, at the sender
        self._shapes: OrderedDict[int, TreeShape] = OrderedDict()  # by number, at the receiver
        self._next = 0

    def pack(self, shape: TreeShape) -> tuple[int, TreeShape | None]:
        """Its number, and itself if it is new."""
        known = self._numbers.get(id(shape))
        if known is not None:
            return known[0], None
        number, self._next = self._next, self._next + 1
        self._numbers[id(shape)] = number, shape
        if len(self._numbers) > _SHAPES_KEPT:
            self._numbers.popitem(last=False)
        _ = shape.children, shape.ancestor_mask  # here the target does not wait for them
        return number, shape

    def unpack(self, number: int, shape: TreeShape | None) -> TreeShape:
        """The shape of :meth:`pack`."""
        if shape is None:
            return self._shapes[number]
        self._shapes[number] = shape
        if len(self._shapes) > _SHAPES_KEPT:
            self._shapes.popitem(last=False)
        return shape


class _Packed(NamedTuple):
    """A :class:`Drafted` on its way."""

    lane: int
    draft: Draft
    shape: tuple[int, TreeShape | None]
    q_rows: tuple[int, ...] | None
    noise: tuple[int, ...]
    prepared: tuple[float, float]
    drafting: tuple[float, float]


class DraftWorker:
    """The target's side of a worker.

    Args:
        parts: of every lane, in their initial state.
        memories: of every lane.
        kind: ``process``, or ``thread``: threads share one interpreter, so they overlap only where the parts leave it,
            and are for drafters that hardly compute.
        threads: of torch, for the worker's own passes; None leaves them.
    """

    def __init__(self, parts: Parts, memories: list[Memory], kind: Kind, threads: int | None) -> None:
        self._connection, theirs = Pipe()
        self._memories = memories
        self._shapes = Shapes()
        self._poll: Any = None
        if hasattr(select, "poll"):  # a tenth of the time of the connection's own
            self._poll = select.poll()
            self._poll.register(self._connection, select.POLLIN)
        arguments = (theirs, parts, memories, threads)
        self._process: BaseProcess | None = None
        self._thread: threading.Thread | None = None
        if kind == "thread":
            self._thread = threading.Thread(target=serve, args=arguments, daemon=True, name="specexp drafts")
            self._thread.start()
            return
        try:
            self._process = start_process(_serve_process, arguments)
        except BaseException:
            self._connection.close()
            raise
        finally:
            theirs.close()

    @property
    def pid(self) -> int:
        """Of the process it works in."""
        return os.getpid() if self._process is None else int(self._process.pid or 0)

    def send(self, message: Begin | Said | Reset | Weigh) -> None:
        """Tell the worker something; it does not answer at once.

        Raises:
            Exception: as :meth:`receive`.
        """
        try:
            _put(self._connection, message)
        except (BrokenPipeError, ConnectionResetError):
            lost = self._lost()
        else:
            return
        raise lost

    def ready(self) -> bool:
        """Whether there is a message."""
        return self._connection.poll() if self._poll is None else bool(self._poll.poll(0))

    def receive(self) -> Drafted | Learned | Ready | Weight:
        """Its next message; waits for one.

        Raises:
            RuntimeError: it is gone.
            Exception: whatever a part raised there.
        """
        try:
            message = _take(self._connection)
        except (EOFError, ConnectionResetError):
            message = None
        if message is None:
            raise self._lost()
        if isinstance(message, Failed):
            raise _noted(message)
        if not isinstance(message, _Packed):
            return message  # type: ignore[no-any-return]
        shape = self._shapes.unpack(*message.shape)
        q = None
        if message.q_rows is not None:
            rows = self._memories[message.lane].q.numpy()
            q = {row: rows[place] for place, row in enumerate(message.q_rows)}
        draft = message.draft
        draft = replace(draft, tree=replace(draft.tree, shape=shape, q=q))
        shared = self._memories[message.lane].noise.numpy()
        noise = {position: shared[place].copy() for place, position in enumerate(message.noise)}
        return Drafted(message.lane, draft, message.prepared, message.drafting, noise)

    def say(self, lane: int, logits: torch.Tensor) -> None:
        """Lay ``[n + 1, V]`` logits where the worker finds them; before the :class:`Said` they belong to."""
        self._memories[lane].logits[: logits.shape[0]].copy_(logits)

    def stop(self, at_once: bool = False) -> None:
        """End it, and wait until it has ended.

        Args:
            at_once: do not let a process finish what it does. A thread cannot be ended from outside: one that hangs is
                left behind, and ends with the program.
        """
        if at_once:
            if self._process is not None:
                self._process.terminate()
            _hang_up(self._connection)
        else:
            with suppress(OSError):
                _put(self._connection, None)
        if self._thread is not None:
            self._thread.join(_PATIENCE)
        if self._process is not None:
            self._process.join(_PATIENCE)
            if self._process.is_alive():
                self._process.kill()
                self._process.join()
            self._process.close()
        self._connection.close()
        self._memories = []

    def _lost(self) -> BaseException:
        """Why nothing can be sent or received any more: what a part raised, if the worker still said so."""
        with suppress(EOFError, OSError):
            while True:
                message = _take(self._connection)
                if isinstance(message, Failed):
                    return _noted(message)
        code = None
        if self._process is not None:
            self._process.join(_PATIENCE)
            code = self._process.exitcode
        return RuntimeError(
            f"a drafting worker ended on its own{'' if code is None else f' (exit code {code})'}"
        )


def _put(connection: Connection, message: Any) -> None:
    connection.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))  # a third of the time of send()


def _take(connection: Connection) -> Any:
    return pickle.loads(connection.recv_bytes())


def _hang_up(connection: Connection) -> None:
    """Let both ends know that nothing will follow, also who waits at this end: closing it would leave them there."""
    if os.name == "posix":
        with suppress(OSError), socket(fileno=os.dup(connection.fileno())) as line:
            line.shutdown(SHUT_RDWR)


def _noted(failed: Failed) -> BaseException:
    for note in failed.notes:
        failed.error.add_note(note)
    return failed.error


def _serve_process(connection: Connection, parts: Parts, memories: list[Memory], threads: int | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the target's side, which ends its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    serve(connection, parts, memories, threads, alone=lambda: os._exit(1))


def serve(
    connection: Connection,
    parts: Parts,
    memories: list[Memory],
    threads: int | None,
    alone: Callable[[], object] = lambda: None,
) -> None:
    """Work until told to stop, or until the other side is gone.

    Args:
        connection: to the target's side; closed in the end.
        parts: of every lane, in their initial state.
        memories: of every lane.
        threads: of torch; None leaves them.
        alone: called, from another thread, when the other side is gone without a word.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    inbox: SimpleQueue[Any] = SimpleQueue()
    over = threading.Event()

    def read() -> None:  # at once, so that the other side never waits to send
        try:
            while (message := _take(connection)) is not None:
                inbox.put(message)
        except (EOFError, OSError):
            if not over.is_set():
                alone()
            over.set()
        except Exception as error:  # a message that cannot be unpickled
            inbox.put(error)
        else:
            over.set()  # whatever was asked before is not wanted any more
        inbox.put(None)

    reader = threading.Thread(target=read, daemon=True, name="specexp drafts, reader")
    reader.start()
    try:
        with torch.inference_mode():
            _work(connection, parts, memories, inbox, over)
    except (BrokenPipeError, ConnectionResetError):
        pass  # the other side is gone
    finally:
        over.set()
        _hang_up(connection)
        reader.join()
        connection.close()


def _work(
    connection: Connection,
    parts: Parts,
    memories: list[Memory],
    inbox: SimpleQueue[Any],
    over: threading.Event,
) -> None:
    """Answer what comes in; the first error is the last answer."""
    try:
        lanes = _Lanes(parts, memories)
        while (message := inbox.get()) is not None and not over.is_set():
            if isinstance(message, Exception):
                raise message
            with drafting_for(lanes.sequence_of(message)):
                answer = pickle.dumps(lanes.answer(message), pickle.HIGHEST_PROTOCOL)
            try:
                connection.send_bytes(answer)
            except OSError:
                return  # nobody is there to hear it
    except Exception as error:
        notes = tuple(getattr(error, "__notes__", ()))
        where = "".join(traceback.format_tb(error.__traceback__))
        _put(connection, Failed(_sendable(error), (*notes, f"in the drafting worker:\n{where}")))


def _sendable(error: Exception) -> Exception:
    """The error without notes, or one of the same words where it cannot be pickled."""
    try:
        copy: Exception = pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    copy.__dict__.pop("__notes__", None)
    return copy


class _Lanes:
    """The sequences a worker drafts for."""

    def __init__(self, parts: Parts, memories: list[Memory]) -> None:
        self._memories = memories
        self._parts = twins(parts, len(memories))
        self._draftings: dict[int, tuple[Drafting, TokenTree | None]] = {}
        self._shapes = Shapes()

    def sequence_of(self, message: Any) -> int | str | None:
        """Whose message it is; None if it is nobody's."""
        if isinstance(message, Begin):
            return message.sequence
        known = self._draftings.get(message.lane) if isinstance(message, Said) else None
        return None if known is None else known[0].context.sequence

    def answer(self, message: Begin | Said | Reset | Weigh) -> _Packed | Learned | Ready | Weight:
        """Do what a message asks for."""
        if isinstance(message, Begin):
            return self._begin(message)
        if isinstance(message, Said):
            return self._learn(message)
        if isinstance(message, Reset):
            first = initial(self._parts[0], message.drafter, message.controller)
            self._parts = twins(first, len(self._memories))
            return Ready()
        return Weight(bytes_of(self._parts))

    def _begin(self, message: Begin) -> _Packed:
        started = perf_counter()
        context = Context(
            message.prompt,
            seed=message.seed,
            sequence=message.sequence,
            noise_temperature=message.noise_temperature,
        )
        parts = self._parts[message.lane]
        drafting = Drafting(parts.drafter, parts.builder, parts.controller or Fixed(), context)
        prefill = None
        if message.prefill is not None:
            prefill = prefill_outcome(
                context, context.token_ids[:-1].copy(), torch.from_numpy(message.prefill)
            )
        drafting.begin(prefill)
        return self._draft(message.lane, drafting, message.depth, started)

    def _learn(self, message: Said) -> _Packed | Learned:
        started = perf_counter()
        drafting, tree = self._draftings[message.lane]
        assert tree is not None
        logits = self._memories[message.lane].logits[: tree.num_nodes + 1]
        drafting.context.append(message.tokens)
        drafting.context.steps += 1
        drafting.learn(
            Outcome(
                drafting.context,
                tree,
                logits,
                message.accepted,
                message.tokens,
                drafting.pass_tokens,
                message.seconds,
            )
        )
        if message.ended:
            return Learned(message.lane, (started, perf_counter()))
        return self._draft(message.lane, drafting, message.depth, started)

    def _draft(self, lane: int, drafting: Drafting, depth: int, since: float) -> _Packed:
        started = perf_counter()
        draft = drafting.draft(depth)
        tree = draft.tree
        self._draftings[lane] = drafting, tree
        rows = None
        if tree.q is not None:
            rows = tuple(tree.q)
            q = self._memories[lane].q.numpy()
            for place, row in enumerate(rows):
                np.copyto(q[place], tree.q[row])
        noise = drafting.context.drawn_noise()[: len(self._memories[lane].noise)]
        for place, position in enumerate(noise):
            shared = self._memories[lane].noise.numpy()
            np.copyto(shared[place], drafting.context.target_noise(position, shared.shape[1]))
        shape = self._shapes.pack(tree.shape)
        light = replace(tree, shape=None, q=None)  # type: ignore[arg-type]  # put back by the receiver
        ended = perf_counter()
        return _Packed(
            lane, replace(draft, tree=light), shape, rows, noise, (since, started), (started, ended)
        )


def memory_of(parts: Parts, vocab_size: int, dtype: torch.dtype) -> Memory:
    """What a lane with these parts shares."""
    builder = parts.builder
    drawn = builder is not None and any(kind is not NodeKind.POINT_MASS for kind in _kinds_of(builder))
    coupled = parts.drafter is not None and parts.drafter.coupled
    return Memory(1 + (0 if builder is None else builder.max_nodes), vocab_size, dtype, drawn, coupled)


def _kinds_of(builder: Any) -> list[NodeKind]:
    inner = [*getattr(builder, "builders", ()), getattr(builder, "builder", None)]
    return [builder.kind, *(kind for one in inner if one is not None for kind in _kinds_of(one))]
