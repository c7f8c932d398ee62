"""The drafting side of a worker: it handles the messages of the target's side until it is stopped."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import traceback
from dataclasses import replace
from multiprocessing.connection import Connection
from queue import SimpleQueue
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from specexp.core.context import Context
from specexp.core.loop import Draft, Drafting, DraftingFor, draft_together, teams
from specexp.core.outcome import Outcome, prefill_outcome
from specexp.core.parts import Parts
from specexp.scheduling.executor import bytes_of, copies, initial
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

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


def serve_process(
    connection: Connection, parts: Parts, memories: dict[int, Memory], threads: int | None
) -> None:
    """:func:`serve` in a process of its own, which ends with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C the target's side ends its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    serve(connection, parts, memories, threads, orphaned=lambda: os._exit(1))


def serve(
    connection: Connection,
    parts: Parts,
    memories: dict[int, Memory],
    threads: int | None,
    orphaned: Callable[[], object] = lambda: None,
) -> None:
    """Work until stopped, or until the other side is gone and ``orphaned`` is called."""
    if threads is not None:
        torch.set_num_threads(threads)
    inbox: SimpleQueue[Any] = SimpleQueue()
    over = threading.Event()

    def read() -> None:  # without delay, so that the other side never waits to send
        try:
            while (message := receive_message(connection)) is not None:
                inbox.put(message)
        except (EOFError, OSError):
            if not over.is_set():
                orphaned()
            over.set()
        except Exception as error:  # a message that cannot be unpickled
            inbox.put(error)
        else:
            over.set()  # drops the messages before
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
        shut_down(connection)
        reader.join()
        connection.close()


def _work(
    connection: Connection,
    parts: Parts,
    memories: dict[int, Memory],
    inbox: SimpleQueue[Any],
    over: threading.Event,
) -> None:
    """Handle messages; the first error is the last reply."""
    try:
        lanes = WorkerLanes(parts, memories)
        while (message := inbox.get()) is not None and not over.is_set():
            messages = [message]
            while not inbox.empty() and messages[-1] is not None:
                messages.append(inbox.get())
            for answer in lanes.answers(messages):
                if over.is_set():
                    return
                try:
                    send_message(connection, answer)
                except OSError:
                    return  # the other side is gone
            if messages[-1] is None:
                return
    except Exception as error:
        notes = tuple(getattr(error, "__notes__", ()))
        where = "".join(traceback.format_tb(error.__traceback__))
        send_message(connection, Failed(_sendable(error), (*notes, f"in the drafting worker:\n{where}")))


def _sendable(error: Exception) -> Exception:
    """Return the error without notes, or a RuntimeError with its text if it cannot be pickled."""
    try:
        copy: Exception = pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    copy.__dict__.pop("__notes__", None)
    return copy


class _Wanted(NamedTuple):
    lane: int
    drafting: Drafting
    depth: int
    prepared: tuple[float, float]


class WorkerLanes:
    """The sequences a worker drafts for, with arguments as in :func:`serve`."""

    def __init__(self, parts: Parts, memories: dict[int, Memory]) -> None:
        self._memories = memories
        self._take(parts)
        self._draftings: dict[int, tuple[Drafting, Draft]] = {}
        self._shapes = Shapes()

    def answers(self, messages: Sequence[Any]) -> Iterator[NextDraft | SequenceLearned | MemoryReport]:
        """Handle messages; sequences that wait for a draft of one team are drafted for together."""
        waiting: list[_Wanted] = []
        for message in messages:
            if message is None:
                break
            if isinstance(message, Exception):
                raise message
            if isinstance(message, Reset | MemoryQuery):
                if isinstance(message, Reset):
                    first = next(iter(self._parts.values()))
                    self._take(initial(first, message.drafter, message.controller))
                yield MemoryReport(bytes_of([*self._parts.values()]))
            else:
                begins = isinstance(message, StartSequence)
                context = message if begins else self._draftings[message.lane][0].context
                with DraftingFor(context.sequence):
                    wanted = self._begin(message) if begins else self._learn(message)
                if isinstance(wanted, SequenceLearned):
                    yield wanted
                elif wanted.drafting.drafter is None or wanted.drafting.drafter.team is None:
                    yield from self._drafts([wanted])
                else:
                    waiting.append(wanted)
        for places in teams([one.drafting for one in waiting]):
            yield from self._drafts([waiting[place] for place in places])

    def _take(self, parts: Parts) -> None:
        self._parts = dict(zip(self._memories, copies(parts, len(self._memories)), strict=True))

    def _begin(self, message: StartSequence) -> _Wanted:
        started = perf_counter()
        _, prompt, seed, sequence, noise_temperature, *_ = message
        context = Context(prompt, seed=seed, sequence=sequence, noise_temperature=noise_temperature)
        drafting = Drafting(self._parts[message.lane], context)
        prefill = None
        if message.prefill is not None:
            prefill = prefill_outcome(
                context, context.token_ids[:-1].copy(), torch.from_numpy(message.prefill)
            )
        drafting.begin(prefill)
        return _Wanted(message.lane, drafting, message.depth, (started, perf_counter()))

    def _learn(self, message: StepResult) -> _Wanted | SequenceLearned:
        started = perf_counter()
        drafting, draft = self._draftings[message.lane]
        rows, logits = draft.tree.num_nodes + 1, self._memories[message.lane].logits
        logits = logits[:rows] if logits.shape[0] else torch.empty((rows, 0))  # not read by any part
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
            light = replace(tree, shape=None, q=None)  # type: ignore[arg-type]  # put back by the receiver
            yield NextDraft(lane, replace(draft, tree=light), one.prepared, (started, ended), shape, rows)
