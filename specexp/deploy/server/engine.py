"""The thread that decodes: requests are lanes of the one loop, which they join and leave between two steps."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Sequence
from math import ceil, inf
from threading import Condition, Thread
from time import monotonic
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from specexp.core.context import Context
from specexp.core.loop import Decoding, Drafting, Lane
from specexp.core.outcome import Outcome
from specexp.core.parts import Parts, check_composition, join_target
from specexp.core.runtime import Runtime, Target
from specexp.core.tree import TokenTree
from specexp.deploy.server.output import Ended, GivenUp, Heard, Output, Piece, Running
from specexp.deploy.server.slots import Places
from specexp.scheduling.local import copies
from specexp.verifiers import KeyedSampling


class Alone(Target):
    """The same target, each tree in a pass of its own: of the shape it would have if nobody else were served.

    Args:
        target: who answers.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.context_limit, self.vocab_size = target.context_limit, target.vocab_size

    @override
    def length(self, slot: int) -> int:
        return self.target.length(slot)

    @override
    def prefill(
        self, slot: int, token_ids: Sequence[int], *, all_logits: bool = False
    ) -> torch.Tensor | None:
        return self.target.prefill(slot, token_ids, all_logits=all_logits)

    @override
    def tree_pass(self, slots: Sequence[int], trees: Sequence[TokenTree]) -> list[torch.Tensor]:
        pairs = zip(slots, trees, strict=True)
        return [logits for slot, tree in pairs for logits in self.target.tree_pass([slot], [tree])]

    @override
    def commit(self, slot: int, rows: Sequence[int]) -> None:
        self.target.commit(slot, rows)

    @override
    def synchronize(self) -> None:
        self.target.synchronize()


log = logging.getLogger("specexp.serve")
_PREFILLED_A_ROUND = 512
"""Prompt tokens after which the lanes that decode already take a step before the next prompt is fed."""


class FullError(Exception):
    """Nothing more is taken in: too much waits already.

    Args:
        retry_after: seconds after which asking again may help.
    """

    def __init__(self, retry_after: int) -> None:
        super().__init__(retry_after)
        self.retry_after = retry_after


class ClosedError(Exception):
    """Nothing more is taken in: the server shuts down."""


class Engine:
    """Decodes outputs in a thread of its own, up to ``lanes`` at a time; one target pass answers all of them.

    What an output says hangs on its prompt, seed and sequence alone. Where a row's logits are rounded otherwise in
    other company, ``deterministic`` feeds every lane by itself, each prompt whole, so that this holds bit by bit.

    Args:
        target: the model.
        parts: what outputs are decoded with; their verifier is each output's own.
        lanes: outputs at a time.
        waiting: outputs that may wait for a lane.
        eos_token_ids: tokens that end an output.
        deterministic: see above.

    Raises:
        ValueError: the parts do not go with the target, or with a verifier whose output hangs on no draft.
    """

    def __init__(
        self,
        target: Runtime,
        parts: Parts,
        *,
        lanes: int = 8,
        waiting: int = 64,
        eos_token_ids: Collection[int] = (),
        deterministic: bool = False,
    ) -> None:
        check_composition(parts.drafter, parts.builder, KeyedSampling(), parts.controller)
        join_target(parts, target)
        leaves = 1 if parts.builder is None else parts.builder.max_leaves
        models = (target, *(() if parts.drafter is None else parts.drafter.models))
        most = min(model.max_leaves for model in models)
        if leaves * lanes > most:
            raise ValueError(
                f"{lanes} lanes with trees of up to {leaves} leaves each are more than a pass of target or draft "
                f"takes, which is {most} leaves: serve with --lanes {max(1, most // leaves)}"
            )
        self.target = target
        self.lanes = lanes
        self.most_waiting = waiting
        self.eos_token_ids = frozenset(eos_token_ids)
        self.parts = parts
        self._parts = copies(parts, lanes)
        by_itself = deterministic and not target.independent_rows
        controllers = (parts.controller, *parts.controller.inner)
        if by_itself and (parts.keeps_learning or any(one.sees_load for one in controllers)):
            raise ValueError(
                "what is drafted hangs on other requests, by what parts carry or by the load, and with it rounding: "
                "for --deterministic set their state to cold, or serve with --mode compiled"
            )
        seen: Target = Alone(target) if by_itself else target
        self._decoding = Decoding(seen, [self._note], together=not by_itself)
        self._places = Places(target, lanes, reuse=not by_itself)
        self._running: dict[Context, tuple[Lane, Running]] = {}
        self._waiting: deque[tuple[Output, float]] = deque()
        self._changed = Condition()
        self._closing = False
        self._ends = inf
        self._seconds_an_output = 1.0
        self._thread = Thread(target=self._run, name="specexp decodes", daemon=True)

    @property
    def running(self) -> int:
        """Outputs that have a lane."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Outputs that wait for one."""
        return len(self._waiting)

    @property
    def alive(self) -> bool:
        """Whether it decodes what is submitted."""
        return self._thread.is_alive() and not self._closing

    def start(self) -> None:
        """Begin to decode what is submitted."""
        self._thread.start()

    def close(self, within: float = inf) -> None:
        """Take in nothing more, and wait until everything taken in has ended.

        Args:
            within: seconds after which what is not complete is given up.
        """
        with self._changed:
            self._closing = True
            self._ends = min(self._ends, monotonic() + within)
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    def give_up(self) -> None:
        """Give up at the next step what is not complete; for signal handlers, since it takes no lock."""
        self._ends = -inf

    def submit(self, outputs: Sequence[Output]) -> None:
        """Take in the outputs of a request, all or none.

        Raises:
            FullError: too many wait.
            ClosedError: the server shuts down.
        """
        with self._changed:
            if self._closing:
                raise ClosedError
            ahead = self.waiting + self.running
            if ahead + len(outputs) > self.lanes + self.most_waiting:
                seconds = self._seconds_an_output * self.waiting / self.lanes
                raise FullError(min(60, max(1, ceil(seconds))))
            now = monotonic()
            self._waiting.extend((output, now) for output in outputs)
            self._changed.notify()

    def _run(self) -> None:
        with self.target.exclusively(), torch.inference_mode():
            self.target.conversation = None
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._waiting or self._running or self._closing)
                    if self._closing and not self._waiting and not self._running:
                        return
                self.round()

    def round(self) -> None:
        """Let go what nobody wants any more or is late, take in what waits, and decode a step; within
        :func:`torch.inference_mode`.
        """
        self._let_go()
        self._take_in()
        if not self._running:
            return
        try:
            self._decoding.step()
        except Exception:
            log.exception("a step failed; the outputs under way end with an error")
            self._start_over()
            return
        for context, (lane, running) in list(self._running.items()):
            self._tell(running.output, self._piece(lane, running))
            if lane.ended:
                self._leave(context)
                result, steps = lane.result, tuple(running.steps)
                spent = result.prefill_seconds + result.decode_seconds
                self._seconds_an_output += 0.1 * (spent - self._seconds_an_output)
                ended = Ended(result.finish_reason, result, steps, running.cached, running.waited)
                self._tell(running.output, ended)

    def _let_go(self) -> None:
        now = monotonic()
        for context, (lane, running) in list(self._running.items()):
            if running.output.cancelled or self._late(running.output, now):
                self._decoding.remove(lane)
                self._leave(context)
                if not running.output.cancelled:
                    self._tell(running.output, GivenUp(self._why(running.output, now), running.told))
        with self._changed:
            wanted = [one for one in self._waiting if not one[0].cancelled]
            late = [one for one in wanted if self._late(one[0], now)]
            self._waiting = deque(one for one in wanted if one not in late)
        for output, _ in late:
            self._tell(output, GivenUp(self._why(output, now), 0))

    def _late(self, output: Output, now: float) -> bool:
        return min(output.deadline, self._ends) <= now

    def _why(self, output: Output, now: float) -> Literal["deadline", "shutdown"]:
        return "deadline" if output.deadline <= now else "shutdown"

    def _take_in(self) -> None:
        fed = 0
        while len(self._running) < self.lanes and fed < _PREFILLED_A_ROUND:
            with self._changed:
                if not self._waiting:
                    return
                output, since = self._waiting.popleft()
            try:
                fed += self._begin(output, monotonic() - since)
            except Exception:
                log.exception("a request could not begin")
                self._tell(output, GivenUp("error", 0))

    def _begin(self, output: Output, waited: float) -> int:
        """Give an output a lane; how many tokens of its prompt were fed."""
        prompt = output.prompt
        parts = self.parts if output.speculative else Parts()
        slot, cached = self._places.take(prompt, at_least=2 if parts.wants_prefill_logits else 1)
        try:
            own = self._parts[slot] if output.speculative else Parts()
            own = own._replace(verifier=output.verifier)
            context = own.context(prompt, output.seed, output.sequence)
            lane = Lane(
                context,
                self._decoding.target,
                output.verifier,
                Drafting(own, context),
                slot=slot,
                max_new_tokens=output.max_new_tokens,
                eos_token_ids=self.eos_token_ids,
                stop=output.written if output.written.stops else None,
            )
            self._decoding.start(lane, own.wants_prefill_logits)
        except BaseException:
            self._places.free(slot, None)
            raise
        self._places.occupy(slot, context)
        self._running[context] = lane, Running(output, cached, waited)
        return len(prompt) - cached

    def _leave(self, context: Context) -> None:
        """An output's lane has ended, or was removed: its slot is free, and what it holds may serve the next."""
        lane, _ = self._running.pop(context)
        self._places.free(lane.slot, context)

    def _start_over(self) -> None:
        """After a step that failed nothing is known of the caches: whoever comes begins anew."""
        for context, (lane, running) in list(self._running.items()):
            if lane.slot in self._decoding.lanes:
                self._decoding.remove(lane)
            self._running.pop(context)
            self._places.free(lane.slot, None)
            self._tell(running.output, GivenUp("error", running.told))

    def _note(self, outcome: Outcome) -> None:
        self._running[outcome.context][1].note(outcome)

    def _piece(self, lane: Lane, running: Running) -> Piece:
        """What a step added to an output."""
        new: NDArray[np.int64] = lane.context.token_ids[lane.context.prompt_length + running.told :]
        tokens, chosen, written = tuple(new.tolist()), tuple(running.chosen), running.output.written
        running.told += len(tokens)
        running.chosen.clear()
        if not written.stops:  # else the lane has shown it every token but EOS
            written.extend(tokens[:-1] if lane.result.finish_reason == "eos" else tokens)
        return Piece(tokens, written.take() + (written.rest() if lane.ended else ""), chosen)

    def _tell(self, output: Output, heard: Heard) -> None:
        try:
            output.hear(heard)
        except Exception:  # whoever asked is gone
            output.cancelled = True
