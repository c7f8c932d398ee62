"""Arms of a comparison. Each arm answers prompts and records tokens, counts and seconds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from specexp.base.messages import type_and_line
from specexp.bench.record import COUNTS, LEARNED, MEASURED, MOST_RANDOM, PromptRecord, by_position, describe as describe
from specexp.config.schema import Generation as Generation
from specexp.core.context import loop_of
from specexp.core.outcome import PHASES, Outcome
from specexp.core.parts import Parts, parts_in

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from specexp.core.contracts import Drafter, Verifier
    from specexp.core.latency import LatencyProfile
    from specexp.core.loop import OutcomeObserver
    from specexp.data import Prompt
    from specexp.scheduling import TimeLine

MOST_ROUNDS = 40
"""Most rounds over the prompts from which an arm learns before a run."""

TimeLineObserver = Callable[[str, "TimeLine"], None]
"""A callback that receives a prompt id and its time line."""


class Arm(ABC):
    """One method in a comparison. It decodes one prompt at a time."""

    name: str
    generation: Generation
    verifier: Verifier
    dtype: str  # the target's dtype, e.g. ``bfloat16``
    device: str
    latency: LatencyProfile | None = None  # profile that models the seconds; None if they are measured
    state: str = "stateless"  # the drafter's state policy
    constrains = False  # whether answers satisfy the prompts' structured_outputs

    @property
    def clock(self) -> str:
        """The clock behind the arm's timings: ``measured``, or the label of its latency profile."""
        return MEASURED if self.latency is None else self.latency.label

    @property
    def stated(self) -> dict[str, Any]:
        """Additional attributes for a study's tables, by default the clock if seconds are modelled."""
        return {} if self.latency is None else {"clock": self.latency.label}

    @property
    def fidelity_note(self) -> str | None:
        """A clause about the fidelity of replayed counts; None if nothing is replayed."""
        return None

    @abstractmethod
    def decode(self, prompt: Prompt, sample: int = 0, max_new_tokens: int | None = None) -> PromptRecord:
        """Answer all turns of a prompt. The context of each turn contains the arm's own earlier answers.

        The same ``sample`` always gives the same output. ``max_new_tokens`` overrides the arm's limit in warm-up runs.
        Raises ValueError if the prompt does not fit in the context.
        """

    def reset(self) -> None:
        """Restore the initial state, if the arm keeps state between prompts."""
        return None

    def close(self) -> None:
        """Stop the processes that the arm keeps running between prompts."""
        return None

    def record(
        self,
        prompt: Prompt,
        sample: int,
        counts: Sequence[Any],
        *,
        seconds: Mapping[str, float] | None = None,
        **given: Any,
    ) -> PromptRecord:
        """Return the record of an answered prompt. All such records are created here.

        Args:
            counts: One object for each turn, or for each sequence decoded together, such as a
                :class:`~specexp.core.outcome.GenerationResult`. Each has ``token_ids``, ``finish_reason`` and
                :data:`~specexp.bench.record.COUNTS`, and may have ``drafted_at``, ``accepted_at``,
                ``prefill_seconds``, ``memory_bytes`` and ``start_seconds``.
            seconds: Decode seconds by phase; None if they are not split.
            given: Additional fields of the record, which override the computed ones.
        """

        def optional(name: str) -> list[Any]:
            return [found for one in counts if (found := getattr(one, name, None)) is not None]

        if prompt.structured_outputs is not None and not self.constrains:
            raise ValueError(
                f"prompt {prompt.prompt_id!r} has structured_outputs, which the arm {self.name!r} does not apply"
            )
        answers = [one.token_ids for one in counts]
        phases = dict(seconds or {})
        found: dict[str, Any] = {
            "token_ids": tuple(token for answer in answers for token in answer),
            "turn_tokens": tuple(map(len, answers)),
            "finish_reasons": tuple(str(one.finish_reason) for one in counts),
            **{name: sum(getattr(one, name) for one in counts) for name in COUNTS},
            "drafted_at": by_position(optional("drafted_at")),
            "accepted_at": by_position(optional("accepted_at")),
            "prefill_seconds": sum(optional("prefill_seconds")) if self.clock == MEASURED else 0.0,
            "decode_seconds": sum(phases.values()),
            "decode_tokens": sum(map(len, answers)),
            "seconds": phases,
            **{name: getattr(self, name) for name in ("dtype", "device", "state", "clock")},
            "verifier": describe(self.verifier),
            "lossless": self.verifier.lossless,
            "keyed": self.verifier.sampling == "deterministic",
            "seed": self.generation.seed,
            "memory_bytes": max(optional("memory_bytes"), default=None),
            "start_seconds": max(optional("start_seconds"), default=None),
        }
        return PromptRecord(self.name, prompt.prompt_id, prompt.category, sample, **found | given)


class LearningArm(Arm):
    """An arm that decodes with our parts. It can learn from prompt to prompt, and analyses can observe it.

    Each reset restores the controller to ``controller_state`` or, without one, to its own initial state.
    """

    shows_steps = True  # False for an engine behind a server, which hides its steps

    def __init__(
        self,
        name: str,
        parts: Parts,
        generation: Generation,
        controller_state: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.parts = parts
        self.generation = generation
        self.verifier = parts.verifier
        self.state = state_of(parts.drafter)
        self.controller_state = dict(controller_state or {})
        self.drafter_state: dict[str, Any] = {}
        self.observers: Sequence[OutcomeObserver] = ()  # called with every step's outcome; not timed
        # called after every prompt with its time line, by arms that have one
        self.timeline_observers: Sequence[TimeLineObserver] = ()
        self._decisions = (0, 0)  # the controllers' decisions before the next prompt, and the random ones

    @override
    def record(self, *decoded: Any, **given: Any) -> PromptRecord:
        made, random = self._decisions
        found = [one.decisions for one in parts_in(self.parts.controller)]
        self._decisions = sum(one for one, _ in found), sum(one for _, one in found)
        decisions = self._decisions[0] - made, self._decisions[1] - random
        return super().record(*decoded, **{"decisions": decisions, "epsilon": self.exploring, **given})

    @property
    def exploring(self) -> float:
        """The share of the controller's decisions that are random at present."""
        return max(one.exploring for one in parts_in(self.parts.controller))

    def learn(self, prompts: Sequence[Prompt], decode: Callable[[Prompt], object] | None = None) -> None:
        """Decode prompts to learn from them, again until the controller hardly explores, or explores at its minimum.

        After :data:`MOST_ROUNDS` rounds it ends in any case. ``decode`` is :meth:`decode` by default.
        """
        for _ in range(MOST_ROUNDS):
            before = self.exploring
            for prompt in prompts:
                (decode or self.decode)(prompt)
            if self.exploring <= LEARNED or self.exploring == before <= MOST_RANDOM:
                break

    def place_of(self, prompt: Prompt, record: PromptRecord, index: int) -> tuple[Prompt, int]:
        """Return the prompt and the index in our answer at which a token is scored. Engines return another prompt."""
        return prompt, index

    def decode_observed(self, prompt: Prompt, sample: int, observe: OutcomeObserver) -> None:
        """Decode a prompt again, without timing it.

        ``observe`` is called with every step's outcome, in the order of the record's tokens. To stop early, it
        can raise an exception.
        """
        earlier = self.observers
        self.observers = (observe,)
        try:
            self.decode(prompt, sample)
        finally:
            self.observers = earlier

    @override
    def reset(self) -> None:
        drafter, controller = self.parts.drafter, self.parts.controller
        if drafter is not None:
            drafter.reset()
            if self.drafter_state:
                drafter.load_state_dict(deepcopy(self.drafter_state))
        controller.reset()
        if self.controller_state:
            controller.load_state_dict(deepcopy(self.controller_state))

    def remember(self) -> None:
        """Save the current state of drafter and controller, so that every later :meth:`reset` restores it."""
        self.controller_state = deepcopy(self.parts.controller.state_dict())
        drafter = self.parts.drafter
        self.drafter_state = {} if drafter is None else deepcopy(drafter.state_dict())


def state_of(drafter: Drafter | None) -> str:
    """Return the state policies of a drafter and its inner ones, joined with ``+``; ``stateless`` if there are none."""
    if drafter is None:
        return "stateless"
    kept = {drafter.state or "stateless", *map(state_of, drafter.inner)}
    return "+".join(sorted(kept - {"stateless"})) or "stateless"


class ModelledSeconds:
    """Adds up step durations modelled by a latency profile. It can be used as the loop's clock or as an observer."""

    def __init__(self, latency: LatencyProfile) -> None:
        self.latency = latency
        self.seconds = dict.fromkeys(PHASES, 0.0)  # by phase; everything but the passes is under ``update``
        self.beyond = 0  # target passes that fed more tokens than the profile covers

    def __call__(self, outcome: Outcome) -> Any:
        """Add a step and return its seconds by phase. The loop ignores what observers return."""
        target, draft, beside = self.latency.outcome_parts(outcome)
        step = {"draft": draft, "target": target, "update": beside}
        for phase, spent in step.items():
            self.seconds[phase] += spent
        self.beyond += self.latency.exceeded_by(outcome.tree.num_nodes + 1)
        return step


class StepTimes:
    """An observer that keeps the tokens and seconds of each step. ``modelled`` models the seconds if it is given."""

    def __init__(self, modelled: ModelledSeconds | None = None) -> None:
        self.steps: list[tuple[int, float]] = []
        self._modelled = modelled

    def __call__(self, outcome: Outcome) -> None:
        """Keep one step."""
        seconds = outcome.seconds if self._modelled is None else self._modelled(outcome)
        self.steps.append((len(outcome.new_token_ids), sum(seconds.values())))


def in_loops(
    answers: Sequence[Sequence[int]], steps: Sequence[tuple[int, float]], decode_seconds: float
) -> dict[str, Any]:
    """Return a record's tokens, steps and seconds of the repetitions in which answers end.

    A step with tokens before and within a repetition counts, but not its tokens of the repetition.

    Args:
        steps: New tokens and seconds of each step of all answers.
        decode_seconds: Seconds of all steps. They may include more than the steps' own, divided in proportion.
    """
    ends = [*accumulate(map(len, answers), initial=0)]
    loops = [
        range(start + found[0], end)
        for answer, start, end in zip(answers, ends, ends[1:], strict=False)
        if (found := loop_of(answer)) is not None
    ]
    starts = accumulate((tokens for tokens, _ in steps), initial=0)
    inside = [spent for first, (_, spent) in zip(starts, steps, strict=False) if any(first in one for one in loops)]
    whole = sum(spent for _, spent in steps)
    seconds = decode_seconds * sum(inside) / whole if whole else 0.0
    return {"loop_tokens": sum(map(len, loops)), "loop_steps": len(inside), "loop_seconds": seconds}


def sequence_name(prompt: Prompt | PromptRecord, sample: int) -> str:
    """Return the random key of a prompt's sample, which is the same for all arms."""
    return f"{prompt.prompt_id}#{sample}"


def eos_of(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> frozenset[int]:
    """Return the tokens that end an answer: the model's (a chat model may have several), the tokenizer's, and the token
    that ends an assistant's turn in the chat template.
    """
    own = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    several = own if isinstance(own, list | tuple) else [own]
    ends = [*several, tokenizer.eos_token_id, _turn_end(tokenizer)]
    return frozenset(int(token) for token in ends if token is not None)


def _turn_end(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Return the special token that follows an answer in the chat template; None if there is none."""
    if not getattr(tokenizer, "chat_template", None):
        return None
    answer = "specexp"
    chat = [{"role": "user", "content": "?"}, {"role": "assistant", "content": answer}]
    try:
        text = str(tokenizer.apply_chat_template(chat, tokenize=False))
    except Exception:  # templates raise their own errors, for example if they need a system prompt
        return None
    rest = text.rpartition(answer)[2].lstrip()
    known: Mapping[int, Any] = tokenizer.added_tokens_decoder
    found = [one for one in known if known[one].special and rest.startswith(known[one].content)]
    return max(found, key=lambda one: len(known[one].content), default=None)


def decode_safely(arm: Arm, prompt: Prompt, sample: int = 0, max_new_tokens: int | None = None) -> PromptRecord:
    """Decode a prompt and return its record. If decoding fails, the record contains the ``error``."""
    try:
        return arm.decode(prompt, sample, max_new_tokens)
    except Exception as error:
        return PromptRecord(arm.name, prompt.prompt_id, prompt.category, sample, error=type_and_line(error))
