"""The server's decoding thread, with continuous batching: outputs join and leave the loop between steps."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from math import ceil, inf
from threading import Condition, Thread
from time import monotonic
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from specexp.core.constraint import Constraint
from specexp.core.context import Context
from specexp.core.contracts import DeterministicVerifier
from specexp.core.loop import Decoding, Drafting, Lane
from specexp.core.outcome import GenerationResult, Outcome
from specexp.core.parts import Parts, check_composition, join_target
from specexp.core.runtime import Runtime
from specexp.deploy.server.texts import OutputText
from specexp.scheduling.executor import copies
from specexp.verifiers import KeyedSampling

log = logging.getLogger("specexp.serve")
_PREFILL_TOKENS = 512
"""After prefilling this many tokens, the thread runs a step, so that queued prompts do not stall running outputs."""


class TokenLogProbs(NamedTuple):
    """An output token, its log-probability before temperature and top-p, and the target's top tokens with theirs."""

    token: int
    log_prob: float
    best: tuple[tuple[int, float], ...]


class StepCounts(NamedTuple):
    """Counts of one decoding step: drafted nodes, depth of the draft tree, and accepted nodes."""

    drafted: int
    depth: int
    accepted: int


@dataclass(frozen=True)
class Ended:
    """Results and statistics of a complete output."""

    result: GenerationResult
    steps: tuple[StepCounts, ...]
    cached: int  # number of prompt tokens that were in the cache before the prefill
    waited: float  # seconds spent in the queue
    first_token: float  # time of the first token, on the clock of :func:`time.monotonic`


@dataclass(frozen=True)
class GivenUp:
    """The reason an output was aborted after ``tokens`` new tokens."""

    why: Literal["deadline", "shutdown", "error"]
    tokens: int


@dataclass(frozen=True)
class Update:
    """New tokens and text of an output since its last update. Only the last update has an ``end``."""

    tokens: tuple[int, ...] = ()
    text: str = ""
    log_probs: tuple[TokenLogProbs, ...] = ()
    end: Ended | GivenUp | None = None


@dataclass(eq=False)
class Output:
    """An output to generate."""

    prompt: tuple[int, ...]
    seed: int  # random seed; the noise is keyed by it and ``sequence``
    sequence: int | str
    max_new_tokens: int
    verifier: DeterministicVerifier
    text: OutputText  # decoder of the output's text, which also detects stop strings
    notify: Callable[[Update], object]  # called with each update, in the decoding thread
    eos_token_ids: Collection[int]  # tokens that end the output
    update_seconds: float | None = 0.0  # minimum time between two updates; None for a single update at the end
    # number of the target's top tokens to list for each output token; None for no log-probabilities
    log_probs: int | None = None
    speculative: bool | int = True  # False for plain decoding; a number limits the drafted tokens per step
    deadline: float = inf  # time at which an incomplete output is aborted, on the clock of :func:`time.monotonic`
    constraint: Constraint | None = None  # what the output may be; used for this output only
    cancelled: bool = False  # any thread may set this; the output is then dropped before the next step


@dataclass(eq=False)
class _Running:
    """An output that is being decoded in a lane."""

    output: Output
    lane: Lane
    cached: int
    waited: float
    steps: list[StepCounts] = field(default_factory=list)
    log_probs: list[TokenLogProbs] = field(default_factory=list)  # not sent yet
    sent: int = 0  # tokens
    first_token: float = inf
    next_update: float = 0.0


class UnavailableError(Exception):
    """Outputs are not accepted at the moment. A retry may succeed after ``retry_after`` seconds."""

    def __init__(self, sentence: str, retry_after: int) -> None:
        super().__init__(sentence)
        self.retry_after = retry_after


class SeparatePasses(Decoding):
    """A loop that runs one lane per pass, in turn, so that rounding does not depend on other lanes."""

    @override
    def drafts(self) -> list[Lane]:
        lane = next(iter(self.lanes.values()))
        self.lanes[lane.slot] = self.lanes.pop(lane.slot)  # move it to the end of the queue
        self.draft_group([lane])
        return [lane]


class PrefixSlots:
    """A target's KV cache slots. Free slots keep their tokens. With ``reuse``, prompts reuse prefixes they share."""

    def __init__(self, target: Runtime, slots: int, *, reuse: bool = True) -> None:
        self._target = target
        self._reuse = reuse
        self._free = list(range(slots))  # in the order in which they became free
        self._held: dict[int, Context] = {}  # the sequence in each slot, including free ones
        target.cache.reserve(0, slots)
        for slot in range(slots):
            target.cache.truncate(slot, 0)

    def take(self, prompt: Sequence[int], at_least: int = 1) -> tuple[int, int]:
        """Take a free slot, and fill it with the longest prefix of the prompt that any slot holds.

        The last ``at_least`` tokens are never reused. Returns the slot and the number of tokens it holds.
        """
        # reuse may change the rounding, which depends on the tokens that share a pass
        wanted = np.asarray(prompt[: max(0, len(prompt) - at_least) if self._reuse else 0], dtype=np.int64)
        shared = {slot: self._shared_prefix(slot, wanted) for slot in (*self._free, *self._held)}
        best = max(shared, key=lambda one: shared[one])  # ties go to the slot that has been free the longest
        slot = best if best in self._free else self._free[0]
        if slot == best:
            self._target.cache.truncate(slot, shared[best])
        else:
            self._target.cache.fork(best, slot, shared[best])
        self._free.remove(slot)
        return slot, self._target.length(slot)

    def occupy(self, slot: int, context: Context) -> None:
        """Record the sequence decoded in a taken slot, so that other prompts can reuse its prefix."""
        self._held[slot] = context

    def free(self, slot: int, context: Context | None) -> None:
        """Free a slot. It keeps the committed tokens of ``context``, or is emptied if ``context`` is None."""
        self._held.pop(slot, None)
        length = 0 if context is None else self._target.length(slot)
        self._target.cache.truncate(slot, length)  # also drops uncommitted rows
        if context is not None:  # a new context, since the old one may hold large noise tensors
            self._held[slot] = Context(context.token_ids[:length].tolist())
        self._free.append(slot)

    def _shared_prefix(self, slot: int, wanted: NDArray[np.int64]) -> int:
        if slot not in self._held:
            return 0
        held = self._held[slot].token_ids[: self._target.length(slot)]
        length = min(held.size, wanted.size)
        differ = np.flatnonzero(held[:length] != wanted[:length])
        return int(differ[0]) if differ.size else length


class DecodingThread:
    """Decodes up to ``lanes`` outputs concurrently in a separate thread, with one target pass for all of them.

    Apart from rounding, an output depends only on its prompt, seed and sequence. The logits of a row may be rounded
    differently if other rows share the pass. ``deterministic`` prevents this: if the target's rows are not independent,
    each lane gets its own passes and no prefix is reused. Up to ``waiting`` outputs may be in the queue. Each output
    has its own verifier.

    Raises ValueError if the parts do not suit the target, keyed sampling or ``deterministic``, or if the trees of all
    lanes do not fit in one pass.
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
        limit = min(model.max_leaves for model in models)
        if leaves * lanes > limit:
            raise ValueError(
                f"{lanes} lanes with trees of up to {leaves} leaves each exceed the {limit} leaves that fit into one "
                f"pass of target or draft: serve with --lanes {max(1, limit // leaves)}"
            )
        self._separate = separate = deterministic and not target.independent_rows
        controllers = (parts.controller, *parts.controller.inner)
        if separate and (parts.keeps_learning or any(one.sees_load for one in controllers)):
            raise ValueError(
                "--deterministic is not possible: rounding depends on the drafts, and the drafts depend on other "
                "requests through learned state or the load; set the parts' state to cold, or use --mode compiled"
            )
        self.target = target
        self.lanes = lanes
        self.max_waiting = waiting
        self.eos_token_ids = frozenset(eos_token_ids)
        self.parts = parts
        self._parts = copies(parts, lanes)
        decoding = SeparatePasses if separate else Decoding
        self._decoding = decoding(target, [self._count_step], together=not separate)
        self._slots = PrefixSlots(target, lanes, reuse=not separate)
        self._running: dict[Context, _Running] = {}
        self._waiting: deque[tuple[Output, float]] = deque()
        self._changed = Condition()
        self._closing = False
        self._give_up_at = inf
        self._seconds_an_output = 1.0  # moving average, used for the Retry-After header
        self._thread = Thread(target=self._run, name="specexp decodes", daemon=True)

    @property
    def running(self) -> int:
        """Number of outputs being decoded."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Number of outputs in the queue."""
        return len(self._waiting)

    @property
    def alive(self) -> bool:
        """True while the thread decodes and accepts outputs."""
        return self._thread.is_alive() and not self._closing

    def start(self) -> None:
        """Start the decoding thread."""
        self._thread.start()

    def close(self, within: float = inf) -> None:
        """Stop accepting outputs, wait up to ``within`` seconds for the accepted ones, and abort the rest."""
        with self._changed:
            self._closing = True
            self._give_up_at = min(self._give_up_at, monotonic() + within)
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    def give_up(self) -> None:
        """Abort incomplete outputs before the next step. This takes no lock, so signal handlers may call it."""
        self._give_up_at = -inf

    def submit(self, outputs: Sequence[Output]) -> None:
        """Queue all outputs of a request. Raises UnavailableError if the queue is full or the server shuts down."""
        with self._changed:
            if self._closing:
                raise UnavailableError("the server is shutting down: send the request to another server", 1)
            if self.waiting + self.running + len(outputs) > self.lanes + self.max_waiting:
                seconds = min(60, max(1, ceil(self._seconds_an_output * self.waiting / self.lanes)))
                raise UnavailableError(
                    f"the queue is full ({self.waiting} outputs are waiting): try again in {seconds} s",
                    seconds,
                )
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
        """Drop cancelled and late outputs, start queued outputs in free lanes, and decode one step.

        It must be called within :func:`torch.inference_mode`.
        """
        self._drop_outputs()
        self._fill_lanes()
        if not self._running:
            return
        try:
            self._decoding.step()
        except Exception:
            log.exception("a decoding step failed: all running outputs end with an error")
            self._start_over()
            return
        now = monotonic()
        for running in list(self._running.values()):
            lane, result = running.lane, running.lane.result
            running.first_token = min(running.first_token, now)
            if lane.ended:
                self._free_lane(lane)
                spent = result.prefill_seconds + result.decode_seconds
                self._seconds_an_output += 0.1 * (spent - self._seconds_an_output)
                steps = tuple(running.steps)
                self._send(running, Ended(result, steps, running.cached, running.waited, running.first_token))
            elif (interval := running.output.update_seconds) is not None and now >= running.next_update:
                running.next_update = now + interval
                self._send(running)

    def _drop_outputs(self) -> None:
        now = monotonic()
        for running in list(self._running.values()):
            why = self._why_late(running.output, now)
            if running.output.cancelled or why:
                self._decoding.remove(running.lane)
                self._free_lane(running.lane)
                if why and not running.output.cancelled:
                    self._send(running, GivenUp(why, len(running.lane.context.new_token_ids)))
        if not self._waiting:  # the usual case takes no lock
            return
        with self._changed:
            waiting = [(one, self._why_late(one[0], now)) for one in self._waiting if not one[0].cancelled]
            self._waiting = deque(one for one, why in waiting if not why)
        for (output, _), why in waiting:
            if why:
                self._notify(output, Update(end=GivenUp(why, 0)))

    def _why_late(self, output: Output, now: float) -> Literal["deadline", "shutdown"] | None:
        if output.deadline <= now:
            return "deadline"
        return "shutdown" if self._give_up_at <= now else None

    def _fill_lanes(self) -> None:
        fed = 0
        while self._waiting and len(self._running) < self.lanes and fed < _PREFILL_TOKENS:
            with self._changed:
                output, since = self._waiting.popleft()
            try:
                fed += self._begin(output, monotonic() - since)
            except Exception:
                log.exception("the prefill of an output failed")
                self._notify(output, Update(end=GivenUp("error", 0)))

    def _begin(self, output: Output, waited: float) -> int:
        """Start an output in a free lane; return the number of prompt tokens that were prefilled."""
        prompt = output.prompt
        parts = self.parts if output.speculative else Parts()
        # a prompt's logits take a third of its prefill, which the few drafts of a loaded server do not repay
        learns = parts.wants_prefill_logits and (self._separate or not (self._running or self._waiting))
        slot, cached = self._slots.take(prompt, at_least=2 if learns else 1)
        try:
            own = self._parts[slot] if output.speculative else Parts()
            own = own._replace(verifier=output.verifier)
            context = own.context(prompt, output.seed, output.sequence)
            context.constraint = output.constraint
            lane = Lane(
                context,
                self.target,
                output.verifier,
                Drafting(own, context, None if output.speculative is True else output.speculative),
                slot=slot,
                max_new_tokens=output.max_new_tokens,
                eos_token_ids=output.eos_token_ids,
                stop=output.text if output.text.stops else None,
            )
            self._decoding.start(lane, learns)
        except BaseException:
            self._slots.free(slot, None)
            raise
        self._slots.occupy(slot, context)
        self._running[context] = _Running(output, lane, cached, waited)
        return len(prompt) - cached

    def _free_lane(self, lane: Lane) -> None:
        del self._running[lane.context]
        self._slots.free(lane.slot, lane.context)

    def _start_over(self) -> None:
        """Drop all running outputs and empty their slots, because the caches are undefined after a failed step."""
        for context, running in list(self._running.items()):
            if running.lane.slot in self._decoding.lanes:
                self._decoding.remove(running.lane)
            del self._running[context]
            self._slots.free(running.lane.slot, None)
            self._notify(running.output, Update(end=GivenUp("error", running.sent)))

    def _count_step(self, outcome: Outcome) -> None:
        running = self._running[outcome.context]
        shape = outcome.tree.shape
        running.steps.append(StepCounts(outcome.tree.num_nodes, shape.max_depth, len(outcome.accepted)))
        if running.output.log_probs is not None:
            running.log_probs += _log_probs(outcome, running.output.log_probs)

    def _send(self, running: _Running, end: Ended | GivenUp | None = None) -> None:
        """Send the tokens generated since the output's last update."""
        # text is decoded here rather than after each step, so that fewer updates cost less
        lane, text = running.lane, running.output.text
        tokens = lane.context.token_ids[lane.context.prompt_length + running.sent :].tolist()
        if not text.stops:  # with stop strings, the lane has already added every token except EOS
            text.extend(tokens[:-1] if lane.result.finish_reason == "eos" else tokens)
        new_text = text.take() + (text.rest() if lane.ended else "")
        update = Update(tuple(tokens), new_text, tuple(running.log_probs), end)
        running.sent += len(tokens)
        running.log_probs.clear()
        self._notify(running.output, update)

    def _notify(self, output: Output, update: Update) -> None:
        try:
            output.notify(update)
        except Exception:  # the event loop of the request is closed
            output.cancelled = True


def _log_probs(outcome: Outcome, best: int) -> list[TokenLogProbs]:
    """Return a step's new tokens with their log-probabilities and those of the target's top tokens."""
    rows = (0, *outcome.accepted)[: len(outcome.new_token_ids)]
    # the rows of the root and the accepted nodes hold the target's logits for the new tokens
    log_probs = outcome.logits[list(rows)].float().log_softmax(dim=-1)  # [t, V]
    values, ids = log_probs.topk(best, dim=-1)
    return [
        TokenLogProbs(token, float(row[token]), tuple(zip(top, probabilities, strict=True)))
        for token, row, top, probabilities in zip(
            outcome.new_token_ids, log_probs, ids.tolist(), values.tolist(), strict=True
        )
    ]
