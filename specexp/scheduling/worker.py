"""A drafting worker: a process or thread that drafts for several sequences while the target verifies others.

The target's side sends prompts and verdicts. The worker replies to each with the next draft, in order of arrival.
The two sides cannot deadlock, because sending never blocks. A thread of the worker always reads immediately. The
target's side reads the reply to a message before it sends the next one for that lane.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from io import BytesIO
from multiprocessing.connection import Connection, Pipe
from multiprocessing.process import BaseProcess
from queue import SimpleQueue
from time import perf_counter
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.multiprocessing  # registers how tensors are sent to another process: their memory is shared
from typing_extensions import override

from specexp.core.loop import Draft, Drafting, draft_together, drafting_for, teams
from specexp.core.outcome import Outcome, prefill_outcome
from specexp.core.parts import Parts
from specexp.scheduling.executor import bytes_of, copies, initial
from specexp.scheduling.messages import (
    Memory,
    MemoryQuery,
    NextDraft,
    Reset,
    SequenceLearned,
    Shapes,
    StartSequence,
    StepResult,
    receive_message,
    send_message,
    shut_down,
)

_PATIENCE = 1.0  # seconds to wait for a worker to end before it is killed


class DraftWorker:
    """The target's side of a worker. The worker runs a draft process D(n) of SEED's Algorithm 2 for each of its lanes.

    ``parts`` are those of every lane, in their initial state, and ``memories`` the lanes' shared memory by slot. With
    ``in_thread``, the worker is a thread of this process. It uses ``threads`` torch threads; None keeps the default.
    """

    def __init__(self, parts: Parts, memories: dict[int, Memory], in_thread: bool, threads: int | None) -> None:
        self.connection, theirs = Pipe()
        self._memories = memories
        self._shapes = Shapes()
        self._poll: Any = None
        if hasattr(select, "poll"):  # ten times faster than connection.poll
            self._poll = select.poll()
            self._poll.register(self.connection, select.POLLIN)
        arguments = (theirs, parts, memories, threads, not in_thread)
        self._process: BaseProcess | None = None
        self._thread: threading.Thread | None = None
        if in_thread:
            self._thread = threading.Thread(target=serve, args=arguments, daemon=True, name="specexp drafts")
            self._thread.start()
            return
        try:
            self._process = _start_process(arguments)
        except BaseException:
            self.connection.close()
            raise
        finally:
            theirs.close()

    def send(self, message: StartSequence | StepResult | Reset | MemoryQuery) -> None:
        """Send a message without waiting for a reply. Raises the same errors as :meth:`receive`."""
        try:
            send_message(self.connection, message)
        except (BrokenPipeError, ConnectionResetError):
            raise self._lost() from None

    def ready(self) -> bool:
        """Return whether a message has arrived."""
        return self.connection.poll() if self._poll is None else bool(self._poll.poll(0))

    def receive(self) -> NextDraft | SequenceLearned | dict[str, int]:
        """Wait for the next message. Raises RuntimeError if the worker has ended, or the error of a part in it."""
        try:
            message = receive_message(self.connection)
        except (EOFError, ConnectionResetError):
            raise self._lost() from None
        if isinstance(message, BaseException):
            raise message
        if not isinstance(message, NextDraft):
            return message  # type: ignore[no-any-return]
        shape = self._shapes.unpack(*message.shape)
        q = None
        if message.q_rows is not None:
            rows = self._memories[message.lane].q.numpy()
            q = {row: rows[place] for place, row in enumerate(message.q_rows)}
        draft = message.draft
        return message._replace(draft=replace(draft, tree=replace(draft.tree, shape=shape, q=q)))

    def share_logits(self, lane: int, logits: torch.Tensor) -> None:
        """Copy logits ``[n + 1, V]`` to shared memory if a part reads them. Call this before sending the StepResult."""
        there = self._memories[lane].logits
        if there.shape[0]:
            there[: logits.shape[0]].copy_(logits)

    def stop(self, at_once: bool = False) -> None:
        """Stop the worker and wait until it has ended. ``at_once`` discards its work. A hanging thread is abandoned."""
        if at_once:
            if self._process is not None:
                self._process.terminate()
            shut_down(self.connection)
        else:
            with suppress(OSError):
                send_message(self.connection, None)
        if self._thread is not None:
            self._thread.join(_PATIENCE)
        if self._process is not None:
            self._process.join(_PATIENCE)
            if self._process.is_alive():
                self._process.kill()
                self._process.join()
            self._process.close()
        self.connection.close()
        self._memories = {}

    def _lost(self) -> BaseException:
        """Return the error that a part raised in the worker, or a RuntimeError with the exit code."""
        with suppress(EOFError, OSError):
            while True:
                message = receive_message(self.connection)
                if isinstance(message, BaseException):
                    return message
        code = None
        if self._process is not None:
            self._process.join(_PATIENCE)
            code = self._process.exitcode
        return RuntimeError(f"a drafting worker ended on its own{'' if code is None else f' (exit code {code})'}")


def _start_process(arguments: tuple[Any, ...]) -> BaseProcess:
    """Start a worker process. If possible, it is forked from a server that has all imports but no threads or models."""
    contexts: list[Any] = [torch.multiprocessing.get_context("spawn")]
    if "forkserver" in torch.multiprocessing.get_all_start_methods():
        server = torch.multiprocessing.get_context("forkserver")
        server.set_forkserver_preload(["specexp.scheduling.worker", "specexp.core.language_model", "transformers"])
        contexts.insert(0, server)
    while True:
        context = contexts.pop(0)
        process: BaseProcess = context.Process(target=serve, args=arguments, daemon=True, name="specexp drafts")
        try:
            with _script_hidden(arguments):
                process.start()
        except (pickle.PicklingError, AttributeError, TypeError, ValueError) as error:
            if contexts and isinstance(error, ValueError):
                continue  # a fork server accepts about 250 tensors, so spawn a new interpreter
            raise ValueError(
                f"the parts cannot be handed to a drafting process ({error}): set workers to thread, or make the "
                "parts picklable"
            ) from error
        return process


@contextmanager
def _script_hidden(arguments: tuple[Any, ...]) -> Iterator[None]:
    """Prevent a new process from importing the program's script, unless the script defines a part."""
    script = sys.modules["__main__"]
    finder = _Finder()
    with suppress(Exception):  # unpicklable objects raise a clear error when the process starts
        finder.dump(arguments)
    if finder.found:
        yield
        return
    kept: dict[str, Any] = {name: vars(script).pop(name) for name in ("__file__", "__spec__") if name in vars(script)}
    script.__spec__ = None
    try:
        yield
    finally:
        vars(script).update(kept)


class _Finder(pickle.Pickler):
    """Detects if an object refers to classes or functions of the program's script. It skips models and tensors."""

    def __init__(self) -> None:
        super().__init__(BytesIO())
        self.found = False

    @override
    def persistent_id(self, thing: Any) -> str | None:
        kind = thing if isinstance(thing, type | FunctionType) else type(thing)
        self.found = self.found or kind.__module__ == "__main__"
        return "" if isinstance(thing, torch.Tensor | torch.nn.Module | Connection) else None


# The code below runs in the worker.


def serve(
    connection: Connection, parts: Parts, memories: dict[int, Memory], threads: int | None, own_process: bool
) -> None:
    """Draft until a stop message arrives or the connection closes. A process also ends when its parent does."""
    if own_process:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C the target's side stops its workers
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if threads is not None:
        torch.set_num_threads(threads)
    inbox: SimpleQueue[Any] = SimpleQueue()
    over = threading.Event()

    def read() -> None:  # reads immediately, so that the other side never blocks when sending
        try:
            while (message := receive_message(connection)) is not None:
                inbox.put(message)
        except (EOFError, OSError):
            if own_process and not over.is_set():
                os._exit(1)
            over.set()
        except Exception as error:  # a message that cannot be unpickled
            inbox.put(error)
        else:
            over.set()  # drops earlier messages that are still in the inbox
        inbox.put(None)

    reader = threading.Thread(target=read, daemon=True, name="specexp drafts, reader")
    reader.start()
    try:
        with torch.inference_mode():
            _work(connection, WorkerLanes(parts, memories), inbox, over)
    except Exception as error:
        error.add_note(f"in the drafting worker:\n{''.join(traceback.format_tb(error.__traceback__))}")
        with suppress(OSError):  # the connection may be closed
            send_message(connection, _sendable(error))
    finally:
        over.set()
        shut_down(connection)
        reader.join()
        connection.close()


def _work(connection: Connection, lanes: WorkerLanes, inbox: SimpleQueue[Any], over: threading.Event) -> None:
    """Reply to messages until the stop message None arrives or the connection closes."""
    message: Any = inbox.get()
    while message is not None:
        messages = [message]
        while not inbox.empty() and messages[-1] is not None:
            messages.append(inbox.get())
        for reply in lanes.replies(messages):
            if over.is_set():
                return
            try:
                send_message(connection, reply)
            except OSError:
                return
        message = inbox.get() if messages[-1] is not None else None


def _sendable(error: Exception) -> Exception:
    """Return the error itself if it can be pickled, otherwise a RuntimeError with its text and notes."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # an exception may define its own pickling, which may fail in any way
        copy = RuntimeError(f"{type(error).__name__}: {error}")
        copy.__notes__ = error.__notes__
        return copy
    return error


class _Wanted(NamedTuple):
    lane: int
    drafting: Drafting
    depth: int
    prepared: tuple[float, float]


class WorkerLanes:
    """The sequences for which a worker drafts. The arguments are those of :func:`serve`."""

    def __init__(self, parts: Parts, memories: dict[int, Memory]) -> None:
        self._memories = memories
        self._take(parts)
        self._draftings: dict[int, tuple[Drafting, Draft]] = {}
        self._shapes = Shapes()

    def replies(self, messages: Sequence[Any]) -> Iterator[NextDraft | SequenceLearned | dict[str, int]]:
        """Handle messages up to None and yield the replies. Waiting sequences of the same team draft together."""
        waiting: list[_Wanted] = []
        for message in messages:
            if message is None:
                break
            if isinstance(message, Exception):
                raise message
            if isinstance(message, Reset | MemoryQuery):
                if isinstance(message, Reset):
                    self._take(initial(next(iter(self._parts.values())), message.drafter, message.controller))
                yield bytes_of([*self._parts.values()])
            else:
                begins = isinstance(message, StartSequence)
                context = message.context if begins else self._draftings[message.lane][0].context
                with drafting_for(context.sequence):
                    wanted = self._begin(message) if begins else self._learn(message)
                if isinstance(wanted, SequenceLearned):
                    yield wanted
                elif wanted.drafting.drafter is None or wanted.drafting.drafter.team is None:
                    yield from self._drafts([wanted])
                else:
                    waiting.append(wanted)
        for team in teams([one.drafting for one in waiting]):
            yield from self._drafts([waiting[number] for number in team])

    def _take(self, parts: Parts) -> None:
        self._parts = dict(zip(self._memories, copies(parts, len(self._memories)), strict=True))

    def _begin(self, message: StartSequence) -> _Wanted:
        started, context = perf_counter(), message.context
        drafting = Drafting(self._parts[message.lane], context)
        prefill = None
        if message.prefill is not None:
            prefill = prefill_outcome(context, context.token_ids[:-1].copy(), torch.from_numpy(message.prefill))
        drafting.begin(prefill)
        return _Wanted(message.lane, drafting, message.depth, (started, perf_counter()))

    def _learn(self, message: StepResult) -> _Wanted | SequenceLearned:
        started = perf_counter()
        drafting, draft = self._draftings[message.lane]
        rows = draft.tree.num_nodes + 1
        logits = self._memories[message.lane].logits
        logits = logits[:rows] if logits.shape[0] else torch.empty((rows, 0))  # no part reads them
        drafting.context.append(message.tokens)
        drafting.context.steps += 1
        drafting.learn(
            Outcome(
                drafting.context,
                draft.tree,
                logits,
                message.accepted,
                message.tokens,
                draft.pass_tokens,
                message.seconds,
            )
        )
        if message.ended:
            return SequenceLearned(message.lane, (started, perf_counter()))
        return _Wanted(message.lane, drafting, message.depth, (started, perf_counter()))

    def _drafts(self, wanted: Sequence[_Wanted]) -> Iterator[NextDraft]:
        """Draft and yield the replies (Algorithm 2, lines 6 and 7). Each sequence then awaits its verdict (line 8)."""
        started = perf_counter()
        drafts = draft_together([(one.drafting, one.depth) for one in wanted])
        ended = perf_counter()
        for one, draft in zip(wanted, drafts, strict=True):
            lane, tree = one.lane, draft.tree
            self._draftings[lane] = one.drafting, draft
            rows = None
            if tree.q is not None:
                rows = tuple(tree.q)
                q = self._memories[lane].q.numpy()
                for place, row in enumerate(rows):
                    np.copyto(q[place], tree.q[row])
            shape = self._shapes.pack(tree.shape)
            light = replace(tree, shape=None, q=None)  # type: ignore[arg-type]  # the receiver restores both
            yield NextDraft(lane, replace(draft, tree=light), one.prepared, (started, ended), shape, rows)
