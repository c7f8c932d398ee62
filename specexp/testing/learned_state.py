"""Tests of the learned state of drafters and controllers, which both contracts inherit."""

import json
from typing import Any, ClassVar, Literal

import pytest

from specexp.artifacts.parts import STATE, state_in, state_payloads
from specexp.core.context import Context
from specexp.core.outcome import Outcome


def deployed(family: Literal["drafter", "controller"], state: dict[str, Any]) -> dict[str, Any]:
    """Return a state as a deployment reads it, after it was written into an artifact."""
    payloads = state_payloads({family: state})
    if STATE in payloads:
        payloads[STATE] = json.loads(json.dumps(payloads[STATE], allow_nan=False))
    return state_in(payloads, STATE).get(family, {})


class LearnedStateContract:
    """Tests of a part that learns; the subclass makes it, lets it observe steps and reads its answers."""

    family: ClassVar[Literal["drafter", "controller"]]

    def new(self) -> Any:
        raise NotImplementedError

    def observe_steps(self, part: Any, seed: int = 1) -> Context:
        """Let a part live through some steps, whose numbers depend on ``seed`` alone."""
        raise NotImplementedError

    def answers(self, part: Any, context: Context) -> Any:
        raise NotImplementedError

    def prefill(self, part: Any, context: Context) -> Outcome | None:
        return None

    def test_the_same_history_gives_the_same_answers(self) -> None:
        first, second = self.new(), self.new()
        assert self.answers(first, self.observe_steps(first)) == self.answers(
            second, self.observe_steps(second)
        )

    def test_reset_returns_to_the_initial_state(self) -> None:
        part = self.new()
        expected = self.answers(part, self.observe_steps(part, seed=1))
        part.reset()
        self.observe_steps(part, seed=2)
        part.reset()
        assert self.answers(part, self.observe_steps(part, seed=1)) == expected

    @pytest.mark.parametrize("in_an_artifact", [False, True])
    def test_a_saved_state_gives_the_same_answers(self, in_an_artifact: bool) -> None:
        """``state_dict`` and an artifact's files hold all that was learned, apart from the committed tokens."""
        part, restored = self.new(), self.new()
        context = self.observe_steps(part)
        restored.begin(context, self.prefill(restored, context))
        state = part.state_dict()
        restored.load_state_dict(deployed(self.family, state) if in_an_artifact else state)
        assert self.answers(restored, context) == self.answers(part, context)

    def test_a_state_of_something_else_is_refused(self) -> None:
        """The ``ValueError`` is one sentence."""
        with pytest.raises(ValueError, match=r"\S"):
            self.new().load_state_dict({"no such entry": 1})
