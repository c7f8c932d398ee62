"""Tests of learned state, inherited by the drafter and controller contracts."""

import json
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal

import pytest

from specexp.artifacts.parts import STATE, state_in, state_payloads
from specexp.core.context import Context
from specexp.core.outcome import Outcome


def deployed(family: Literal["drafter", "controller"], state: dict[str, Any]) -> dict[str, Any]:
    """Round-trip a state through an artifact's payloads and return it as a deployment would load it."""
    payloads = state_payloads({family: state})
    if STATE in payloads:
        payloads[STATE] = json.loads(json.dumps(payloads[STATE], allow_nan=False))
    return state_in(payloads, STATE).get(family, {})


class LearnedStateContract(ABC):
    """Tests for a part that learns. Subclasses create the part, let it observe steps, and return its answers."""

    family: ClassVar[Literal["drafter", "controller"]]

    @abstractmethod
    def new(self) -> Any:
        """Return a new part; a drafter is already connected to its target."""

    @abstractmethod
    def observe_steps(self, part: Any, seed: int = 1) -> Context:
        """Let a part observe some steps that depend only on ``seed``, and return the context."""

    @abstractmethod
    def answers(self, part: Any, context: Context) -> Any:
        """Return a part's decisions in a form that can be compared."""

    def prefill(self, part: Any, context: Context) -> Outcome | None:
        return None

    def test_the_same_history_gives_the_same_answers(self) -> None:
        first, second = self.new(), self.new()
        expected = self.answers(first, self.observe_steps(first))
        assert self.answers(second, self.observe_steps(second)) == expected

    def test_reset_returns_to_the_initial_state(self) -> None:
        part = self.new()
        expected = self.answers(part, self.observe_steps(part, seed=1))
        part.reset()
        self.observe_steps(part, seed=2)
        part.reset()
        assert self.answers(part, self.observe_steps(part, seed=1)) == expected

    @pytest.mark.parametrize("in_an_artifact", [False, True])
    def test_a_saved_state_gives_the_same_answers(self, in_an_artifact: bool) -> None:
        """``state_dict`` and an artifact's files contain everything learned, except the committed tokens."""
        part, restored = self.new(), self.new()
        context = self.observe_steps(part)
        restored.begin(context, self.prefill(restored, context))
        state = part.state_dict()
        restored.load_state_dict(deployed(self.family, state) if in_an_artifact else state)
        assert self.answers(restored, context) == self.answers(part, context)

    def test_a_state_of_another_part_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"\S"):
            self.new().load_state_dict({"no such entry": 1})
