"""One trial as a Lightning test: every prompt decoded by the strategy, every fourth also by AR."""

from __future__ import annotations

import math
from collections.abc import Callable

from lightning import LightningModule

from specexp.bench.arm import Arm
from specexp.bench.record import PromptRecord
from specexp.data import Prompt
from specexp.sweep.candidates import Report
from specexp.sweep.drift import EVERY, Reference, seconds_per_token


class TrialModule(LightningModule):
    """Measures one strategy on the prompts of a study.

    Args:
        strategy: the candidate.
        engine: plain decoding in the same loop; None under a modelled clock, which does not drift.
        reference: AR's seconds per token, rescaled by its runs here.
        samples: continuations of every prompt.
        report: told log(AR seconds per token / strategy seconds per token) of every prompt; true ends the
            trial.
        tick: called after every prompt, for a progress bar.

    Attributes:
        records: of the strategy, and of AR where it ran.
        log_speedups: by prompt index.
    """

    def __init__(
        self,
        strategy: Arm,
        engine: Arm | None,
        reference: Reference,
        samples: int,
        report: Report,
        tick: Callable[[], None],
    ) -> None:
        super().__init__()
        self.strategy = strategy
        self.engine = engine
        self.reference = reference
        self.samples = samples
        self.report = report
        self.tick = tick
        self.records: list[PromptRecord] = []
        self.log_speedups: dict[int, float] = {}
        self._stopped = False

    def on_test_start(self) -> None:
        """Start from the stated initial state."""
        self.strategy.reset()

    def test_step(self, batch: Prompt, batch_idx: int) -> None:
        """Decode one prompt."""
        if self._stopped:  # Lightning has no way to end a test early that is not an error
            return
        if self.engine is not None and batch_idx % EVERY == 0:
            self.reference.observe(batch.prompt_id, self._seconds_per_token(self.engine, batch))
        seconds = self._seconds_per_token(self.strategy, batch)
        self.log_speedups[batch_idx] = math.log(self.reference.now(batch.prompt_id) / seconds)
        self.tick()
        self._stopped = self.report(batch_idx, self.log_speedups[batch_idx])

    def _seconds_per_token(self, arm: Arm, prompt: Prompt) -> float:
        records = [arm.decode(prompt, sample) for sample in range(self.samples)]
        self.records += records
        return seconds_per_token(records)
