"""Steps of live decoding, each with its own time: what a profile's fixed costs are fitted to."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specexp.bench.arm import EngineArm
    from specexp.core.outcome import Outcome
    from specexp.data import Prompt

SKIPPED = 2
"""First steps of an answer that are not measured: they come right after the prefill."""


@dataclass(frozen=True)
class StepTiming:
    """One step of decoding.

    Attributes:
        tokens: Fed to the target, the root among them.
        pass_tokens: Fed in each draft pass.
        new_tokens: committed.
        prefix: Tokens in the cache before it.
        seconds: Time from the end of the step before to its own, learning included.
    """

    tokens: int
    pass_tokens: tuple[int, ...]
    new_tokens: int
    prefix: int
    seconds: float


class TimedSteps:
    """Watches an arm decode.

    Args:
        arm: Arm of the engine; its clock is the device's own from now on.

    Attributes:
        arm: The same.
        composition: The :attr:`~specexp.core.parts.Parts.label` of its parts.
        steps: Taken so far.
    """

    def __init__(self, arm: EngineArm) -> None:
        arm.latency = None
        arm.observers = (self._note,)
        self.arm = arm
        self.composition = arm.parts.label
        self.steps: list[StepTiming] = []
        self._taken = 0
        self._answer = -1
        self._left = 0.0

    def decode(self, prompt: Prompt, max_new_tokens: int) -> None:
        """Note the steps of a prompt's answers."""
        self._answer = -1
        self.arm.decode(prompt, max_new_tokens=max_new_tokens)

    def warm_up(self, prompt: Prompt, max_new_tokens: int) -> None:
        """Decode, forget the steps, and begin anew."""
        self.decode(prompt, max_new_tokens)
        self.steps.clear()
        self.arm.reset()

    def _note(self, outcome: Outcome) -> None:
        now = perf_counter()
        if outcome.context.prompt_length != self._answer:  # of another turn
            self._answer, self._taken = outcome.context.prompt_length, 0
        self._taken += 1
        if self._taken > SKIPPED:
            new_tokens = len(outcome.new_token_ids)
            self.steps.append(
                StepTiming(
                    outcome.tree.num_nodes + 1,
                    outcome.pass_tokens,
                    new_tokens,
                    len(outcome.context) - new_tokens - 1,
                    now - self._left,
                )
            )
        self._left = perf_counter()
