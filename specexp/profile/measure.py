"""Times a pair on this device: passes of both models, interleaved with steps of live decoding."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from specexp.base.messages import counted, first_line
from specexp.bench.arm import LearningArm, ModelledSeconds
from specexp.bench.arm_spec import make_arm
from specexp.config import ConfigError
from specexp.drafters import DraftModel
from specexp.profile.passes import DraftPass, PassSamples, TargetPass, longest_prefix, sizes_up_to
from specexp.profile.roofline import limit_samples

if TYPE_CHECKING:
    from specexp.bench.arm_spec import ArmSpec
    from specexp.bench.live import LiveBackend
    from specexp.config.check import Checker
    from specexp.config.schema import Profile
    from specexp.core.latency import LatencyProfile
    from specexp.core.outcome import Outcome
    from specexp.data import Prompt

SKIPPED = 2
"""Number of steps at the start of an answer that are not measured because the prefill disturbs them."""
_WARM_UP_TOKENS = 8
_MOST_OF_A_LANE = 32  # maximum tokens per lane in a pass over several lanes


@dataclass(frozen=True)
class StepTiming:
    """The size and time of one decoding step."""

    tokens: int  # tokens fed to the target, including the root
    pass_tokens: tuple[int, ...]  # tokens fed in each draft pass
    new_tokens: int
    prefix: int  # tokens in the cache before the step
    seconds: float  # from the end of the previous step to the end of this one, including learning


class TimedDecoding(ABC):
    """Decodes prompts and keeps the timed steps of each prompt in ``answers``."""

    def __init__(self) -> None:
        self.answers: list[list[Any]] = []

    @abstractmethod
    def decode(self, prompt: Prompt, max_new_tokens: int) -> None:
        """Decode a prompt and keep its steps."""

    def warm_up(self, prompt: Prompt, max_new_tokens: int) -> None:
        """Decode a prompt and discard its steps."""
        self.decode(prompt, max_new_tokens)
        self.answers.clear()


class TimedSteps(TimedDecoding):
    """Times an arm's steps. ``composition`` is the :attr:`~specexp.core.parts.Parts.label` of its parts."""

    answers: list[list[StepTiming]]

    def __init__(self, arm: LearningArm) -> None:
        super().__init__()
        arm.latency = None
        arm.observers = (self._note,)
        self.arm = arm
        self.composition = arm.parts.label
        self._taken = 0
        self._answer = -1
        self._left = 0.0

    @property
    def steps(self) -> list[StepTiming]:
        """The steps of all answers."""
        return [step for answer in self.answers for step in answer]

    @override
    def decode(self, prompt: Prompt, max_new_tokens: int) -> None:
        self._answer = -1
        self.answers.append([])
        self.arm.decode(prompt, max_new_tokens=max_new_tokens)

    @override
    def warm_up(self, prompt: Prompt, max_new_tokens: int) -> None:
        super().warm_up(prompt, max_new_tokens)
        self.arm.reset()

    def priced(self, prompt: Prompt, max_new_tokens: int, profile: LatencyProfile) -> tuple[float, float]:
        """Decode a prompt, and return its milliseconds per token as predicted by the profile and as measured."""
        modelled = ModelledSeconds(profile.of(self.composition))
        self.arm.observers = (modelled,)
        record = self.arm.decode(prompt, max_new_tokens=max_new_tokens)
        self.arm.observers = (self._note,)
        ms_per_token = 1e3 / record.decode_tokens
        return ms_per_token * sum(modelled.seconds.values()), ms_per_token * record.decode_seconds

    def timing(self, outcome: Outcome, seconds: float) -> StepTiming:
        """Return the size of a step, with its time."""
        new_tokens = len(outcome.new_token_ids)
        prefix = len(outcome.context) - new_tokens - 1
        return StepTiming(outcome.tree.num_nodes + 1, outcome.pass_tokens, new_tokens, prefix, seconds)

    def _note(self, outcome: Outcome) -> None:
        now = perf_counter()
        if outcome.context.prompt_length != self._answer:  # a new prompt or turn starts
            self._answer = outcome.context.prompt_length
            self._taken = 0
        self._taken += 1
        step = self.timing(outcome, now - self._left)
        if self._taken > SKIPPED:
            self.answers[-1].append(step)
        self._left = perf_counter()


@dataclass
class TimedBackend:
    """The passes and arms to time for a pair of models in one backend, with the measurements so far."""

    backend: LiveBackend
    dtypes: tuple[str, str | None]  # dtypes of the weights of target and draft
    passes: dict[str, PassSamples]  # keys: ``target``, ``N lanes`` and, if present, ``draft`` and ``limits``
    arms: list[TimedSteps]  # plain decoding, then each composition of the file
    name: str = ""  # name of the backend if several are compared


def time_backend(
    section: Profile, seed: int, specs: Sequence[ArmSpec], backend: LiveBackend, text: NDArray[np.int64]
) -> TimedBackend:
    """Return the passes and arms to time for a pair, ready to be measured; of ``specs``, plain decoding is the first.

    Raises ConfigError if the parts do not work with the models.
    """
    prefixes = sorted(set(section.prefixes))
    samples = PassSamples(TargetPass(backend.model, text), prefixes, sizes_up_to(section.max_tokens), seed)
    passes = {"target": samples}
    for lanes in section.lanes:
        middle = sorted(section.prefixes)[(len(section.prefixes) - 1) // 2]
        sizes = sizes_up_to(min(section.max_tokens, _MOST_OF_A_LANE))
        passes[f"{lanes} lanes"] = PassSamples(TargetPass(backend.model, text, lanes), [middle], sizes, seed)
    if backend.draft is not None:
        passes["draft"] = replace(samples, timed=DraftPass(DraftModel(backend.draft), text))
    if (limits := limit_samples(backend.pair.target, backend.model)) is not None:
        passes["limits"] = limits
    plain, *others = specs
    timed_specs = [replace(plain, name="plain decoding")]
    timed_specs += [one for one in others if one.reference is None and one.parts.drafter is not None]
    arms = [make_arm(replace(spec, latency=None), backend) for spec in timed_specs]
    timed = [TimedSteps(arm) for arm in arms if isinstance(arm, LearningArm)]
    target, draft = backend.pair.target, backend.pair.draft
    return TimedBackend(backend, (dtype_of(target), draft and dtype_of(draft)), passes, timed)


def dtype_of(model: Any) -> str:
    """Return the dtype of a model's weights, e.g. ``bfloat16``."""
    return str(model.dtype).removeprefix("torch.")


def text_of(prompts: Iterable[Prompt], longest: int) -> NDArray[np.int64]:
    """Return the prompts' tokens ``[p]``, repeated or cut to one more than the longest prefix."""
    known = np.fromiter(chain.from_iterable(prompt.token_ids for prompt in prompts), dtype=np.int64)
    return np.resize(known, longest + 1)


def check_prefixes(section: Profile, backend: LiveBackend, checker: Checker) -> None:
    """Raise ConfigError if a prefix is too long for a model's context. The weights are not needed."""
    limit = min(model.context_limit for model in (backend.model, backend.draft) if model is not None)
    try:
        longest = longest_prefix(limit, section.max_tokens)
    except ValueError as error:
        source = checker.source_of(("profile", "max_tokens"))
        raise ConfigError(f"{source}: {first_line(error)}") from error
    for number, prefix in enumerate(section.prefixes):
        if prefix > longest:
            raise checker.error(
                ("profile", "prefixes", str(number)),
                f" must be at most {longest}, so that a pass of {counted(section.max_tokens, 'token')} "
                f"(profile.max_tokens) fits the context of {limit} tokens, got {prefix}",
            )


def measure(
    section: Profile,
    seed: int,
    samples: Sequence[PassSamples],
    arms: Sequence[TimedDecoding],
    prompts: Sequence[Prompt],
    tell: Callable[[str], None] = lambda line: None,
) -> None:
    """Interleave passes and decoding in random order, so that disturbances affect all of them alike."""
    with torch.inference_mode():
        for one in samples:
            one.warm_up()
        for arm in arms:
            arm.warm_up(prompts[0], min(_WARM_UP_TOKENS, section.max_new_tokens))
        tell(f"profiling: warm-up done, measuring each pass {counted(section.repeats, 'time')}")
        measuring: list[Callable[[], None]] = []
        for repetition in range(section.repeats):
            blocks = [block for one in samples for block in one.blocks(repetition)]
            order = np.random.default_rng([seed, repetition]).permutation(len(blocks))
            measuring += [blocks[place] for place in order]
        done = 0
        for number, prompt in enumerate(prompts):
            order = np.random.default_rng([seed, number]).permutation(len(arms))
            for place, chosen in enumerate(order, start=number * len(arms) + 1):
                arms[chosen].decode(prompt, section.max_new_tokens)
                until = len(measuring) * place // (len(prompts) * len(arms))
                for measure_block in measuring[done:until]:
                    measure_block()
                done = until
            decoded = f"decoded {number + 1} of {counted(len(prompts), 'prompt')}"
            tell(f"profiling: {decoded} with {counted(len(arms), 'arm')}")
