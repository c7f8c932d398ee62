"""Steps of live decoding, each with its own time: what a profile's fixed costs are fitted to."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

from specexp.bench.arm import ModelledSeconds
from specexp.profile.clocked import clocked

if TYPE_CHECKING:
    from specexp.bench.arm import EngineArm
    from specexp.core.latency import LatencyProfile
    from specexp.core.outcome import Outcome
    from specexp.data import Prompt
    from specexp.engines.plain_loop import PlainLoop

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
        pass_seconds: Of them in passes of target and draft; on a GPU what a draft pass still does when the host goes on
            is not in it.
        draft_seconds: Of them in drafter and builder, the draft's passes included.
    """

    tokens: int
    pass_tokens: tuple[int, ...]
    new_tokens: int
    prefix: int
    seconds: float
    pass_seconds: float
    draft_seconds: float


class TimedSteps:
    """Watches an arm decode.

    Args:
        arm: Arm of the engine; its clock is the device's own from now on.

    Attributes:
        arm: The same.
        composition: The :attr:`~specexp.core.parts.Parts.label` of its parts.
        answers: Steps taken so far, a list a prompt.
    """

    def __init__(self, arm: EngineArm) -> None:
        arm.latency = None
        arm.observers = (self._note,)
        self.arm = arm
        self.composition = arm.parts.label
        self.answers: list[list[StepTiming]] = []
        drafter = arm.parts.drafter
        self._draft_passes = [clocked(model, "grow") for model in (() if drafter is None else drafter.models)]
        self._taken = 0
        self._answer = -1
        self._left = 0.0

    @property
    def steps(self) -> list[StepTiming]:
        """All of them."""
        return [step for answer in self.answers for step in answer]

    def decode(self, prompt: Prompt, max_new_tokens: int) -> None:
        """Note the steps of a prompt's answers."""
        self._answer = -1
        self.answers.append([])
        self.arm.decode(prompt, max_new_tokens=max_new_tokens)

    def priced(self, prompt: Prompt, max_new_tokens: int, profile: LatencyProfile) -> tuple[float, float]:
        """Decode a prompt; milliseconds per token of all its steps by the profile, and by the clock of live runs."""
        modelled = ModelledSeconds(profile.of(self.composition))
        self.arm.observers = (modelled,)
        record = self.arm.decode(prompt, max_new_tokens=max_new_tokens)
        self.arm.observers = (self._note,)
        ms_per_token = 1e3 / record.decode_tokens
        return ms_per_token * sum(modelled.seconds.values()), ms_per_token * record.decode_seconds

    def warm_up(self, prompt: Prompt, max_new_tokens: int) -> None:
        """Decode, forget the steps, and begin anew."""
        self.decode(prompt, max_new_tokens)
        self.answers.clear()
        self.arm.reset()

    def _note(self, outcome: Outcome) -> None:
        now = perf_counter()
        if outcome.context.prompt_length != self._answer:  # of another turn
            self._answer, self._taken = outcome.context.prompt_length, 0
        self._taken += 1
        in_draft = sum(clock.taken() for clock in self._draft_passes)
        if self._taken > SKIPPED:
            new_tokens, phases = len(outcome.new_token_ids), outcome.seconds
            self.answers[-1].append(
                StepTiming(
                    outcome.tree.num_nodes + 1,
                    outcome.pass_tokens,
                    new_tokens,
                    len(outcome.context) - new_tokens - 1,
                    now - self._left,
                    phases["target"] + in_draft,
                    phases["draft"] + phases["build"],
                )
            )
        self._left = perf_counter()


class TimedLoop:
    """Watches another engine decode.

    Args:
        loop: its own.

    Attributes:
        name: of the engine.
        answers: Seconds of its steps so far, a list a prompt.
    """

    def __init__(self, loop: PlainLoop) -> None:
        self.name = loop.name
        self.answers: list[list[float]] = []
        self._loop = loop

    def decode(self, prompt: Prompt, max_new_tokens: int) -> None:
        """Note the steps of an answer to a prompt's first turn."""
        _, seconds = self._loop.decode(prompt.token_ids, max_new_tokens)
        self.answers.append(seconds[SKIPPED:])

    def warm_up(self, prompt: Prompt, max_new_tokens: int) -> None:
        """Decode, and forget the steps."""
        self.decode(prompt, max_new_tokens)
        self.answers.clear()
