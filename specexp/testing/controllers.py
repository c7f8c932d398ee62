"""What every controller promises, as tests that an implementation inherits, also one outside this project."""

import numpy as np
import pytest
import torch

from specexp.builders import Chain, DySpecThreshold, TreeBuilder
from specexp.context import Context
from specexp.controllers import Controller, DraftState, Plan
from specexp.decoder import Decoder
from specexp.drafters import Drafter, DraftModel
from specexp.outcome import Outcome
from specexp.testing.fakes import FakeDrafter, counting_model, hashed_model
from specexp.tree import TokenTree, TreeShape

_CHAIN = TreeShape.from_rank_paths([[0], [0, 0], [0, 0, 0]])
_VALUES = np.array([1.0, 0.5, 0.2, 0.06])
_STATES = [
    DraftState(nodes, depth, (1,) * passes, log_prob=-0.3 * depth, last_log_prob=-0.3)
    for nodes in (0, 1, 5)
    for depth in (0, 1, 3)
    for passes in (0, 2)
]


class ControllerContract:
    """Inherit, and say how to make one; pytest finds the rest.

    Example::

        class TestFixed(ControllerContract):
            def make_controller(self):
                return Fixed(max_depth=3)
    """

    def make_controller(self) -> Controller:
        """A new controller in its initial state; every call gives an equal one."""
        raise NotImplementedError(f"{type(self).__name__} has to override make_controller().")

    @pytest.fixture
    def controller(self) -> Controller:
        """A new controller."""
        return self.make_controller()

    def test_plans_limits_that_are_not_negative(self, controller: Controller) -> None:
        """None leaves the builder's own limit."""
        plan, _ = self._decisions(controller, self._teach(controller))
        assert isinstance(plan, Plan)
        assert plan.max_depth is None or plan.max_depth >= 0
        assert plan.max_nodes is None or plan.max_nodes >= 0

    def test_asking_does_not_change_later_decisions(self, controller: Controller) -> None:
        """It learns only in ``begin`` and ``observe``."""
        context = self._teach(controller)
        assert self._decisions(controller, context) == self._decisions(controller, context)

    def test_the_same_history_gives_the_same_decisions(self) -> None:
        """Nothing depends on the clock or a global generator."""
        first, second = self.make_controller(), self.make_controller()
        assert self._decisions(first, self._teach(first)) == self._decisions(second, self._teach(second))

    def test_reset_returns_to_the_initial_state(self, controller: Controller) -> None:
        """After ``reset`` it decides as a new one."""
        expected = self._decisions(controller, self._teach(controller, seed=1))
        controller.reset()
        self._teach(controller, seed=2)
        controller.reset()
        assert self._decisions(controller, self._teach(controller, seed=1)) == expected

    def test_a_saved_state_gives_the_same_decisions(self, controller: Controller) -> None:
        """``state_dict`` holds all that was learned."""
        context = self._teach(controller)
        restored = self.make_controller()
        restored.begin(context, None)
        restored.load_state_dict(controller.state_dict())
        assert self._decisions(restored, context) == self._decisions(controller, context)

    def test_a_state_of_something_else_is_refused(self, controller: Controller) -> None:
        """With a ``ValueError`` of one sentence."""
        with pytest.raises(ValueError, match=r"\S"):
            controller.load_state_dict({"no such entry": 1})

    def test_the_output_is_that_of_plain_decoding(self, controller: Controller) -> None:
        """A controller changes the speed and nothing else."""
        model = counting_model(11)
        expected = Decoder(model).generate([4], max_new_tokens=30).token_ids
        drafter: Drafter = FakeDrafter(lambda tokens: [(tokens[-1] + 1) % 11 if len(tokens) % 3 else 0])
        builder: TreeBuilder = Chain(4)
        if controller.plans_threshold:
            drafter, builder = DraftModel(hashed_model(11)), DySpecThreshold(threshold=0.1, max_nodes=12)
        drafted = Decoder(model, drafter, builder, controller=controller).generate([4], max_new_tokens=30)
        assert drafted.token_ids == expected

    def _teach(self, controller: Controller, seed: int = 1) -> Context:
        generator = np.random.default_rng(seed)
        context = Context([1, 2, 3], sequence=seed)
        controller.begin(context, None)
        for _ in range(5):
            tokens = np.array([context.root, 4, 5, 6], dtype=np.int64)
            logits = torch.from_numpy(generator.standard_normal((4, 9)))
            accepted = tuple(range(1, 1 + int(generator.integers(4))))
            new = (*(int(tokens[row]) for row in accepted), int(logits[len(accepted)].argmax()))
            context.append(new)
            controller.observe(
                Outcome(
                    context,
                    TokenTree(_CHAIN, tokens, values=_VALUES),
                    logits,
                    accepted,
                    new,
                    (1,) * len(accepted),
                )
            )
        return context

    def _decisions(self, controller: Controller, context: Context) -> tuple[Plan, list[bool]]:
        return controller.plan(context), [controller.keep_drafting(context, state) for state in _STATES]
