"""Arms that decode with engines, and the backend that runs them alongside the arms of our own loop."""

from __future__ import annotations

import logging
from collections.abc import Hashable
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import psutil
from typing_extensions import override

from specexp.base.messages import counted
from specexp.bench.arm import LearningArm, eos_of
from specexp.bench.live import LiveBackend
from specexp.bench.record import PromptRecord
from specexp.core.cache import context_limit
from specexp.core.parts import Parts
from specexp.engines.engine import EngineAnswer, EngineError, ForeignEngine, RunningEngine

if TYPE_CHECKING:
    from specexp.bench.arm import Arm
    from specexp.bench.arm_spec import ArmSpec
    from specexp.core.loop import OutcomeObserver
    from specexp.data import Prompt
    from specexp.models.pair import ModelPair


log = logging.getLogger(__name__)
_SPARE = 1.2  # an engine grows while it answers
_FEW = 8  # tokens of a warm-up


class EnginePool:
    """The running engines of a study. Unused ones keep running for later trials until a different engine must start.

    If memory has no room for one more, an engine in use is stopped, and starts again when its turn comes.
    """

    def __init__(self, pair: ModelPair) -> None:
        self.pair = pair
        self._running: dict[Hashable, RunningEngine] = {}  # in the order of use
        self._users: dict[Hashable, set[int]] = {}
        self._stopped: set[Hashable] = set()  # for want of memory

    def take(self, engine: ForeignEngine, user: int) -> RunningEngine:
        """Return the running engine with the restart key of ``engine``, starting it if necessary."""
        key = self._key(engine)
        if key in self._running:
            self._running[key] = self._running.pop(key)
        else:
            self._close_idle()
            self._make_room()
            self._running[key] = engine.start(self.pair)
        self._users.setdefault(key, set()).add(user)
        return self._running[key]

    def restarts(self, engine: ForeignEngine) -> bool:
        """Return whether the next :meth:`take` starts an engine again that was stopped for want of memory."""
        key = self._key(engine)
        return key in self._stopped and key not in self._running

    def leave(self, user: int) -> None:
        """Release all engines that ``user`` has taken."""
        for users in self._users.values():
            users.discard(user)

    def drop(self, engine: ForeignEngine) -> None:
        """Stop an engine that failed. The next :meth:`take` starts it again."""
        running = self._running.pop(self._key(engine), None)
        if running is not None:
            running.close()

    def close(self) -> None:
        """Stop all engines."""
        for running in self._running.values():
            running.close()
        self._running.clear()

    def _close_idle(self) -> None:
        for key in [key for key in self._running if not self._users.get(key)]:
            self._running.pop(key).close()

    def _make_room(self) -> None:
        """Stop the engines used last, since their next turn is the furthest, until one as large as the largest fits."""
        needed = _SPARE * max([one.memory_bytes() or 0 for one in self._running.values()], default=0)
        while self._running and (free := psutil.virtual_memory().available) < needed:
            if not self._stopped:
                sizes = f"memory has {free / 1e9:.1f} GB left and an engine takes {needed / _SPARE / 1e9:.1f} GB"
                log.warning("%s, so engines start anew between prompts: a study with fewer ends sooner", sizes)
            key, running = self._running.popitem()
            self._stopped.add(key)
            running.close()

    def _key(self, engine: ForeignEngine) -> Hashable:
        return type(engine), engine.restart_key


class ServedArm(LearningArm):
    """An arm that decodes with an engine. ``scorer`` is the plain-decoding arm of our loop, which checks near ties."""

    shows_steps = False  # engines report counts, but no draft trees

    def __init__(self, name: str, engine: ForeignEngine, pool: EnginePool, scorer: LearningArm) -> None:
        super().__init__(name, scorer.parts, scorer.generation)
        self.engine = engine
        self.pool = pool
        self.scorer = scorer
        self.dtype = scorer.dtype
        self.device = scorer.device
        model, tokenizer = pool.pair.target, pool.pair.tokenizer
        self._limit = context_limit(model.config)
        self._eos = eos_of(tokenizer, model) if self.generation.stop_at_eos else frozenset()

    @property
    @override
    def stated(self) -> dict[str, Any]:
        one, settings = self.engine, self.engine.deployed_settings()
        return {"engine": {"engine": one.exported_as, "version": one.version, "settings": settings}}

    @override
    def decode(self, prompt: Prompt, sample: int = 0, max_new_tokens: int | None = None) -> PromptRecord:
        found: list[EngineAnswer] = []
        wanted = max_new_tokens or self.generation.max_new_tokens
        context: list[int] = []
        prompt_tokens = 0
        engine = self.engine.under(self.engine.loads[sample % len(self.engine.loads)])
        for turn in range(len(prompt.turns)):
            longer = prompt.turn_ids(self.pool.pair.tokenizer, turn, context)
            prompt_tokens += len(longer) - len(context)
            room = self._limit - len(longer)
            if room < 1:
                raise ValueError(
                    f"the prompt must be shorter than the model's context of {self._limit} tokens, "
                    f"got {len(longer)} tokens"
                )
            try:
                restarts = self.pool.restarts(engine)
                running = self.pool.take(engine, id(self))
                if restarts:  # the first answer is slow, and a drafter must not learn this prompt
                    running.answer(engine, longer[::-1], min(wanted, room, _FEW), self._eos)
                found.append(running.answer(engine, longer, min(wanted, room), self._eos))
            except EngineError:
                self.pool.drop(engine)
                raise
            context = [*longer, *found[-1].token_ids]
        several = len(engine.loads) > 1
        return self.record(
            replace(prompt, category=counted(engine.load, "request")) if several else prompt,
            sample,
            found,
            prompt_tokens=prompt_tokens,
            prefill_seconds=sum(one.prefill_seconds for one in found),
            decode_seconds=sum(one.decode_seconds for one in found),
            decode_tokens=sum(one.decode_tokens for one in found),
        )

    @override
    def place_of(self, prompt: Prompt, record: PromptRecord, index: int) -> tuple[Prompt, int]:
        context, begun = list[int](), 0
        for turn, size in enumerate(record.turn_tokens):
            if begun <= index:
                own = record.token_ids[begun : min(index, begun + size)]
                context = [*prompt.turn_ids(self.pool.pair.tokenizer, turn, context), *own]
            begun += size
        return replace(prompt, turns=prompt.turns[:1], token_ids=tuple(context)), 0

    @override
    def decode_observed(self, prompt: Prompt, sample: int, observe: OutcomeObserver) -> None:
        self.scorer.decode_observed(prompt, sample, observe)

    @override
    def close(self) -> None:
        self.pool.leave(id(self))


class ServedBackend(LiveBackend):
    """A backend for the arms of our loop and of engines, all with the same pair of models."""

    @cached_property
    def pool(self) -> EnginePool:
        """The running engines; the creator of the backend must close it."""
        return EnginePool(self.pair)

    @override
    def arm(self, spec: ArmSpec) -> Arm:
        if spec.engine is None:
            return super().arm(spec)
        scorer = super().arm(replace(spec, engine=None, parts=Parts(verifier=spec.parts.verifier)))
        assert isinstance(scorer, LearningArm)
        return ServedArm(spec.name, spec.engine, self.pool, scorer)
