"""A drafting worker: a process or thread that drafts for several sequences while the target verifies others.

The target's side sends prompts and verdicts; the worker replies to each with the next draft, in the order of arrival.
Its parts change in one place only. Neither side waits to send: a worker reads messages without delay, and the target's
side sends nothing that the worker must reply to before it reads. So the two cannot deadlock.
"""

from __future__ import annotations

import os
import pickle
import select
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from io import BytesIO
from multiprocessing.connection import Connection, Pipe
from types import FunctionType
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.multiprocessing  # registers how tensors are sent to another process: their memory is shared
from typing_extensions import override

from specexp.core.parts import Parts
from specexp.scheduling.messages import (
    Failed,
    Memory,
    MemoryQuery,
    MemoryReport,
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
from specexp.scheduling.serving import serve, serve_process

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.process import BaseProcess

Kind = Literal["process", "thread"]
_PATIENCE = 1.0  # seconds for a worker to end by itself


class DraftWorker:
    """The target's side of a worker.

    Args:
        parts: the parts of every lane, in their initial state.
        memories: shared memory of each lane, by slot.
        kind: ``process``, or ``thread`` for drafters that hardly compute: threads share one interpreter.
        threads: number of torch's threads for the worker; None leaves it.
    """

    def __init__(self, parts: Parts, memories: dict[int, Memory], kind: Kind, threads: int | None) -> None:
        self.connection, theirs = Pipe()
        self._memories = memories
        self._shapes = Shapes()
        self._poll: Any = None
        if hasattr(select, "poll"):  # ten times faster than connection.poll
            self._poll = select.poll()
            self._poll.register(self.connection, select.POLLIN)
        arguments = (theirs, parts, memories, threads)
        self._process: BaseProcess | None = None
        self._thread: threading.Thread | None = None
        if kind == "thread":
            self._thread = threading.Thread(target=serve, args=arguments, daemon=True, name="specexp drafts")
            self._thread.start()
            return
        try:
            self._process = _start_process(serve_process, arguments)
        except BaseException:
            self.connection.close()
            raise
        finally:
            theirs.close()

    @property
    def pid(self) -> int:
        """Process id of the worker."""
        return os.getpid() if self._process is None else int(self._process.pid or 0)

    def send(self, message: StartSequence | StepResult | Reset | MemoryQuery) -> None:
        """Send a message without waiting for a reply; raises as :meth:`receive`."""
        try:
            send_message(self.connection, message)
        except (BrokenPipeError, ConnectionResetError):
            lost = self._lost()
        else:
            return
        raise lost

    def ready(self) -> bool:
        """Whether there is a message."""
        return self.connection.poll() if self._poll is None else bool(self._poll.poll(0))

    def receive(self) -> NextDraft | SequenceLearned | MemoryReport:
        """Wait for the next message.

        Raises:
            RuntimeError: the worker is gone.
            Exception: an error of a part in the worker.
        """
        try:
            message = receive_message(self.connection)
        except (EOFError, ConnectionResetError):
            message = None
        if message is None:
            raise self._lost()
        if isinstance(message, Failed):
            raise _noted(message)
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
        """Share ``[n + 1, V]`` logits, if a part reads them, before the :class:`StepResult` they belong to."""
        there = self._memories[lane].logits
        if there.shape[0]:
            there[: logits.shape[0]].copy_(logits)

    def stop(self, at_once: bool = False) -> None:
        """End it and wait for its end; ``at_once`` drops its work. A hanging thread is left behind."""
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
        """Return the error that a part raised in the worker, or one that says how the worker ended."""
        with suppress(EOFError, OSError):
            while True:
                message = receive_message(self.connection)
                if isinstance(message, Failed):
                    return _noted(message)
        code = None
        if self._process is not None:
            self._process.join(_PATIENCE)
            code = self._process.exitcode
        return RuntimeError(
            f"a drafting worker ended on its own{'' if code is None else f' (exit code {code})'}"
        )


def _noted(failed: Failed) -> BaseException:
    for note in failed.notes:
        failed.error.add_note(note)
    return failed.error


def _start_process(serve: Callable[..., None], arguments: tuple[Any, ...]) -> BaseProcess:
    """Fork a worker from a server that has imported everything but has no threads and no models."""
    contexts: list[Any] = [torch.multiprocessing.get_context("spawn")]
    if "forkserver" in torch.multiprocessing.get_all_start_methods():
        server = torch.multiprocessing.get_context("forkserver")
        server.set_forkserver_preload(
            ["specexp.scheduling.worker", "specexp.core.language_model", "transformers"]
        )
        contexts.insert(0, server)
    while True:
        context = contexts.pop(0)
        process: BaseProcess = context.Process(
            target=serve, args=arguments, daemon=True, name="specexp drafts"
        )
        try:
            with _script_hidden(arguments):
                process.start()
        except (pickle.PicklingError, AttributeError, TypeError, ValueError) as error:
            if contexts and isinstance(error, ValueError):
                continue  # the server accepts some 250 tensors, a new interpreter any number
            raise ValueError(
                f"the parts cannot be handed to a drafting process ({error}): set workers to thread, or write them "
                "so that pickle can"
            ) from error
        return process


@contextmanager
def _script_hidden(arguments: tuple[Any, ...]) -> Iterator[None]:
    """Keep a new process from running the program's script again, unless a part is defined in the script."""
    script = sys.modules["__main__"]
    finder = _Finder()
    with suppress(Exception):  # starting the process raises for objects that cannot be pickled
        finder.dump(arguments)
    if finder.found:
        yield
        return
    names = ("__file__", "__spec__")
    kept: dict[str, Any] = {name: vars(script).pop(name) for name in names if name in vars(script)}
    script.__spec__ = None
    try:
        yield
    finally:
        vars(script).update(kept)


class _Finder(pickle.Pickler):
    """Finds classes and functions of the program's script in an object, without looking into models."""

    def __init__(self) -> None:
        super().__init__(BytesIO())
        self.found = False

    @override
    def persistent_id(self, thing: Any) -> str | None:
        kind = thing if isinstance(thing, type | FunctionType) else type(thing)
        self.found = self.found or kind.__module__ == "__main__"
        return "" if isinstance(thing, torch.Tensor | torch.nn.Module | Connection) else None
