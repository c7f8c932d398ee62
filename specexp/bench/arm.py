"""What an arm of a comparison is: something that answers a prompt and says what it took."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from inspect import signature
from typing import TYPE_CHECKING, Any

from specexp.bench.record import PromptRecord
from specexp.config.schema import Generation

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from specexp.core.decoder import OutcomeObserver
    from specexp.core.parts import Parts
    from specexp.data import Prompt


class Arm(ABC):
    """Answers prompts, one at a time.

    Attributes:
        name: Name in every table.
    """

    name: str

    @property
    def fidelity_note(self) -> str | None:
        """What its counts are worth, as a clause, where they are not of models; None where they are."""
        return None

    @abstractmethod
    def decode(self, prompt: Prompt, sample: int = 0, max_new_tokens: int | None = None) -> PromptRecord:
        """Answer all turns of a prompt, each with the arm's own earlier answers in its context.

        Args:
            prompt: to answer.
            sample: which continuation; the same one gives the same output again.
            max_new_tokens: per turn, instead of the arm's own (for warming up).

        Raises:
            ValueError: the prompt does not fit.
        """

    def reset(self) -> None:
        """Return to the stated initial state; needed only by arms that carry state from prompt to prompt."""
        return None

    def close(self) -> None:
        """Stop what the arm started; needed only by arms that keep something running from prompt to prompt."""
        return None


class EngineArm(Arm):
    """An arm of our own engine, whose steps can be watched.

    Attributes:
        strategy: its parts.
        observers: called with every step's outcome when a prompt is decoded, where the arm can do so outside the clock.
        controller_state: that every reset returns the controller to; its initial one where this is empty.
        drafter_state: the same of the drafter.
    """

    observers: Sequence[OutcomeObserver] = ()
    controller_state: dict[str, Any]
    drafter_state: dict[str, Any]
    parts: Parts

    @abstractmethod
    def replay(self, prompt: Prompt, sample: int, observe: OutcomeObserver) -> None:
        """Decode a prompt once more, untimed.

        Args:
            prompt: to answer.
            sample: which continuation.
            observe: called with every step's outcome in the order of the record's tokens; may raise to stop.
        """

    def remember(self) -> None:
        """Let every later :meth:`reset` return to what drafter and controller know now."""
        self.controller_state = deepcopy(self.parts.controller.state_dict())
        drafter = self.parts.drafter
        self.drafter_state = {} if drafter is None else deepcopy(drafter.state_dict())


def sequence_name(prompt: Prompt | PromptRecord, sample: int) -> str:
    """The place that the randomness of a continuation is keyed by, the same for all arms."""
    return f"{prompt.prompt_id}#{sample}"


def turns(
    prompt: Prompt, tokenizer: PreTrainedTokenizerBase, answer: Callable[[list[int], int], list[int]]
) -> Iterator[tuple[int, list[int]]]:
    """Run a conversation: ``answer(context, turn)`` gives the new tokens of a turn.

    Yields:
        For each turn how many prompt tokens it added, and its answer.
    """
    context: list[int] = []
    for turn in range(len(prompt.turns)):
        asked = prompt.turn_ids(tokenizer, turn, context)
        tokens = answer(asked, turn)
        yield len(asked) - len(context), tokens
        context = [*asked, *tokens]


def describe(part: object) -> str:
    """A part with its arguments, e.g. ``KeyedSampling(temperature=0.7)``; what is None is left out."""
    arguments = ((name, getattr(part, name, None)) for name in signature(type(part)).parameters)
    inner = ", ".join(f"{name}={value}" for name, value in arguments if value is not None)
    return f"{type(part).__name__}({inner})" if inner else type(part).__name__


def eos_of(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> frozenset[int]:
    """Tokens that end an answer: the model's own (a chat model may have several) and the tokenizer's."""
    model_config_eos = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    found = {tokenizer.eos_token_id} if tokenizer.eos_token_id is not None else set()
    if isinstance(model_config_eos, int):
        found.add(model_config_eos)
    elif model_config_eos is not None:
        found.update(model_config_eos)
    return frozenset(int(token) for token in found)


__all__ = ["Arm", "EngineArm", "Generation", "describe", "eos_of", "sequence_name", "turns"]
