"""The benches of a study on models: in our loop, with several sequences for each prompt, or in an engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from typing_extensions import override

from specexp.base.messages import first_line, restated
from specexp.bench.arm import LearningArm
from specexp.bench.equality import InFloat32
from specexp.bench.experiment import longest_context
from specexp.bench.live import LiveBackend
from specexp.bench.record import PromptRecord
from specexp.core.latency import LatencyProfile
from specexp.data import Prompt
from specexp.engines.engine import ForeignEngine
from specexp.engines.served_arm import ServedBackend
from specexp.models.pair import ModelPair
from specexp.scheduling import Serial
from specexp.sweep.bench import Bench
from specexp.sweep.study_config import Composition, StudyConfig
from specexp.sweep.trials import Confirmed
from specexp.tracking.names import PLAIN


def live_bench(config: StudyConfig, pair: ModelPair, latency: LatencyProfile | None) -> Bench:
    """Return a bench on an engine, or on models loaded once for all candidates; raises ConfigError on failure."""
    if config.multi_sequence and latency is not None:
        why = f" must be left out if several sequences are decoded for a prompt, got {latency.name!r}"
        raise config.checker.error(("latency",), why)
    if config.of_engine:
        return EngineBench(config, pair)
    if config.multi_sequence:
        return SequencesBench(config, pair)
    return Bench(config, LiveBackend(pair), latency)


class EngineBench(Bench):
    """A bench on an engine, which gets its own settings for each candidate."""

    is_comparable = False  # engines count steps in their own way

    def __init__(self, config: StudyConfig, pair: ModelPair) -> None:
        engine = config.engine  # rejects wrong settings before models are loaded
        super().__init__(config, ServedBackend(pair), None)
        self.samples *= len(engine.loads)

    @override
    def _composed(self, name: str, composition: Composition) -> LearningArm:
        engine = composition.engine
        assert engine is not None
        # what plain decoding lacks ends the whole study
        if (why := engine.lacks()) and not self.config.engine.plain().lacks():
            raise ValueError(f"{type(engine).__name__} {why}")
        if not why:
            self._check(engine)
        return self.arm(name, composition.parts, engine=engine)

    @override
    def plain(self) -> LearningArm:
        with restated(ValueError, lambda error: self.config.checker.error(("engine",), f": {first_line(error)}")):
            engine = self.config.engine.plain()
            if not engine.lacks():
                self._check(engine)
        return self.arm(PLAIN, self.config.plain_parts, engine=engine)

    def _check(self, engine: ForeignEngine) -> None:
        """Raise EngineError if the engine cannot decode the prompts of all stages with these models."""
        assert self.pair is not None
        for stage in (None, *self.config.sweep.stages):
            most = self.config.generation.max_new_tokens
            engine.check(self.pair, longest_context(self.data(stage).prompts, self.pair, most))

    @override
    def in_float32(self, confirmed: Sequence[Confirmed], records: Sequence[PromptRecord]) -> InFloat32 | None:
        return None

    @override
    def provenance(self, best: Confirmed) -> dict[str, Any]:
        return {}


class SequencesBench(Bench):
    """A bench that decodes several sequences for each prompt, which share the passes of the models."""

    is_comparable = False  # several sequences share passes

    def __init__(self, config: StudyConfig, pair: ModelPair) -> None:
        solver = config.solver(pair)
        super().__init__(config, LiveBackend(pair, solver), None)
        if not solver.problems:
            self.samples = 1

    @override
    def _composed(self, name: str, composition: Composition) -> LearningArm:
        return self.arm(name, composition.parts, composition.execution)

    @override
    def plain(self) -> LearningArm:
        return self.arm(PLAIN, self.config.plain_parts, Serial())

    @override
    def _learn(self, arm: LearningArm, prompts: Sequence[Prompt]) -> None:
        # One sequence at a time, so that the learned state does not depend on timing.
        arm.learn(prompts, lambda prompt: arm.decode_observed(prompt, sample=0, observe=lambda outcome: None))
        arm.remember()
