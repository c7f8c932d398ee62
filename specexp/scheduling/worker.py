"""A drafting worker: a process or thread that drafts for several sequences while the target verifies others.

The target's side sends what a sequence begins with and what the target said; the worker answers each with the next
draft. It serves what comes first, one thing at a time, so whatever its sequences share changes in one place only.

Nobody waits to send: a worker reads at once whatever it is told, and the target's side sends nothing that the worker
has to answer before it reads. So the two cannot block each other.
"""

from __future__ import annotations

import os
import select
import threading
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection, Pipe
from typing import TYPE_CHECKING, Any, Literal

import torch

from specexp.core.parts import Parts
from specexp.scheduling.messages import (
    Failed,
    Memory,
    MemoryQuery,
    MemoryReport,
    NextDraft,
    PackedDraft,
    Reset,
    ResetDone,
    SequenceLearned,
    Shapes,
    StartSequence,
    StepResult,
    receive_message,
    send_message,
    shut_down,
)
from specexp.scheduling.processes import start_process
from specexp.scheduling.serving import serve, serve_process

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

Kind = Literal["process", "thread"]
_PATIENCE = 1.0
"""Seconds that a worker is given to end by itself."""


class DraftWorker:
    """The target's side of a worker.

    Args:
        parts: what every lane drafts with, in its initial state.
        memories: what each of its lanes shares with the target's side.
        kind: ``process``, or ``thread``: threads share one interpreter, so they overlap only where the parts leave it,
            and are for drafters that hardly compute.
        threads: number of torch's threads for the worker's own passes; None leaves it.
    """

    def __init__(self, parts: Parts, memories: dict[int, Memory], kind: Kind, threads: int | None) -> None:
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
            self._process = start_process(serve_process, arguments)
        except BaseException:
            self._connection.close()
            raise
        finally:
            theirs.close()

    @property
    def pid(self) -> int:
        """Of the process it works in."""
        return os.getpid() if self._process is None else int(self._process.pid or 0)

    def send(self, message: StartSequence | StepResult | Reset | MemoryQuery) -> None:
        """Tell the worker something; it does not answer at once.

        Raises:
            Exception: as :meth:`receive`.
        """
        try:
            send_message(self._connection, message)
        except (BrokenPipeError, ConnectionResetError):
            lost = self._lost()
        else:
            return
        raise lost

    @property
    def line(self) -> Connection:
        """Where its messages arrive, to wait for several workers."""
        return self._connection

    def ready(self) -> bool:
        """Whether there is a message."""
        return self._connection.poll() if self._poll is None else bool(self._poll.poll(0))

    def receive(self) -> NextDraft | SequenceLearned | ResetDone | MemoryReport:
        """Its next message; waits for one.

        Raises:
            RuntimeError: it is gone.
            Exception: whatever a part raised there.
        """
        try:
            message = receive_message(self._connection)
        except (EOFError, ConnectionResetError):
            message = None
        if message is None:
            raise self._lost()
        if isinstance(message, Failed):
            raise _noted(message)
        if not isinstance(message, PackedDraft):
            return message  # type: ignore[no-any-return]
        shape = self._shapes.unpack(*message.shape)
        q = None
        if message.q_rows is not None:
            rows = self._memories[message.lane].q.numpy()
            q = {row: rows[place] for place, row in enumerate(message.q_rows)}
        draft = message.draft
        draft = replace(draft, tree=replace(draft.tree, shape=shape, q=q))
        return NextDraft(message.lane, draft, message.prepared, message.drafting)

    def say(self, lane: int, logits: torch.Tensor) -> None:
        """Lay ``[n + 1, V]`` logits where the worker finds them, if a part reads them; before the :class:`StepResult`
        they belong to.
        """
        there = self._memories[lane].logits
        if there.shape[0]:
            there[: logits.shape[0]].copy_(logits)

    def stop(self, at_once: bool = False) -> None:
        """End it, and wait until it has ended.

        Args:
            at_once: do not let a process finish what it does. A thread cannot be ended from outside: one that hangs is
                left behind, and ends with the program.
        """
        if at_once:
            if self._process is not None:
                self._process.terminate()
            shut_down(self._connection)
        else:
            with suppress(OSError):
                send_message(self._connection, None)
        if self._thread is not None:
            self._thread.join(_PATIENCE)
        if self._process is not None:
            self._process.join(_PATIENCE)
            if self._process.is_alive():
                self._process.kill()
                self._process.join()
            self._process.close()
        self._connection.close()
        self._memories = {}

    def _lost(self) -> BaseException:
        """Why nothing can be sent or received any more: what a part raised, if the worker still said so."""
        with suppress(EOFError, OSError):
            while True:
                message = receive_message(self._connection)
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
