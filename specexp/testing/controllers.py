"""Conformance tests for controllers, to be inherited by the tests of any implementation."""

from abc import abstractmethod

import numpy as np
import pytest
import torch

from specexp.builders import Chain, Choice, DySpecThreshold
from specexp.controllers import Fixed, RuleBandit
from specexp.core.context import Context
from specexp.core.contracts import Controller, Drafter, TreeBuilder
from specexp.core.dialogue import DraftState, Plan
from specexp.core.latency import LatencyProfile
from specexp.core.loop import Decoder
from specexp.core.outcome import Outcome
from specexp.core.tree import TokenTree, TreeShape
from specexp.drafters import DraftModel
from specexp.testing.fakes import FakeCausalLM, counting_model
from specexp.testing.learned_state import LearnedStateContract

_COSTS = LatencyProfile("made up", {1: 10.0, 8: 11.0}, {1: 1.0, 8: 1.2}, step_ms=0.1)
_DEAR_DRAFTS = LatencyProfile("drafts cost more than they bring", {1: 10.0}, {1: 100.0})
_CHAIN = TreeShape.from_rank_paths([[0], [0, 0], [0, 0, 0]])
_VALUES = np.array([1.0, 0.5, 0.2, 0.06])
_STATES = [
    DraftState(nodes, depth, (1,) * passes, log_prob=-0.3 * depth, last_log_prob=-0.3)
    for nodes in (0, 1, 5)
    for depth in (0, 1, 3)
    for passes in (0, 2)
]


class ControllerContract(LearnedStateContract):
    """Base class for controller tests. Subclasses define :meth:`make_controller`; pytest then collects the tests."""

    family = "controller"

    @abstractmethod
    def make_controller(self) -> Controller:
        """Return a new controller in its initial state, identical on every call."""

    def new(self) -> Controller:
        return self.make_controller()

    @pytest.fixture
    def controller(self) -> Controller:
        return self.make_controller()

    def test_plans_limits_that_are_not_negative(self, controller: Controller) -> None:
        plan, _ = self.answers(controller, self.observe_steps(controller))
        assert isinstance(plan, Plan)
        assert plan.max_depth is None or plan.max_depth >= 0
        assert plan.max_nodes is None or plan.max_nodes >= 0

    def test_decisions_do_not_change_later_ones(self, controller: Controller) -> None:
        context = self.observe_steps(controller)
        assert self.answers(controller, context) == self.answers(controller, context)

    def test_the_output_is_that_of_plain_decoding(self, controller: Controller) -> None:
        expected = Decoder(counting_model(11)).generate([4], max_new_tokens=30, seed=0).token_ids
        decoder = Decoder(counting_model(11), *_drafting_for(controller), controller=controller)
        assert decoder.generate([4], max_new_tokens=30, seed=0).token_ids == expected

    def test_with_given_latencies_measured_seconds_do_not_matter(self) -> None:
        assert self._decided(speed=1.0, latency=_COSTS) == self._decided(speed=7.0, latency=_COSTS)

    def test_whether_it_learns_is_tested(self, controller: Controller) -> None:
        """The tests of a controller that does not learn inherit :class:`FrozenControllerContract`."""
        assert controller.learns != isinstance(self, FrozenControllerContract)

    def test_whether_seconds_matter_is_declared(self, controller: Controller) -> None:
        """A controller that does not use seconds makes the same decisions at any speed."""
        if controller.uses_seconds:
            pytest.skip("it uses seconds")
        assert self._decided(speed=1.0) == self._decided(speed=7.0)

    def test_whether_it_reads_the_targets_answers_is_declared(self) -> None:
        one, other = self.make_controller(), self.make_controller()
        if one.learns and one.reads_answers:
            pytest.skip("it learns from the target's answers")
        contexts = self.observe_steps(one), self.observe_steps(other, answers=False)
        assert self.answers(one, contexts[0]) == self.answers(other, contexts[1])

    def test_whether_every_step_has_one_plan_is_declared(self, controller: Controller) -> None:
        """A controller with ``same_plan`` returns the same plan for every step and never ends a draft early. With
        ``changes_nothing``, its plan has no limits either.
        """
        assert controller.same_plan or not controller.changes_nothing
        if not controller.same_plan:
            pytest.skip("its plans may differ from step to step")
        before = controller.plan(Context([1, 2, 3]))
        plan, kept = self.answers(controller, self.observe_steps(controller))
        assert plan == before
        assert all(kept)
        assert not controller.changes_nothing or plan == Plan()

    def test_it_can_be_switched_off(self, controller: Controller) -> None:
        """In steps where drafting does not pay off, nothing is drafted and no draft pass runs."""
        wrapped = RuleBandit([controller, Fixed(max_depth=0)], exploration=0.0)
        wrapped.use_latency(_DEAR_DRAFTS)
        decoder = Decoder(counting_model(11), *_drafting_for(controller), controller=wrapped)
        observed: list[Outcome] = []
        expected = Decoder(counting_model(11)).generate([4], max_new_tokens=60, seed=0).token_ids
        assert decoder.generate([4], max_new_tokens=60, observers=[observed.append], seed=0).token_ids == expected
        late = observed[len(observed) // 2 :]
        assert late
        assert all(outcome.tree.num_nodes == outcome.draft_passes == 0 for outcome in late)

    def _decided(self, speed: float, latency: LatencyProfile | None = None) -> tuple[Plan, list[bool]]:
        controller = self.make_controller()
        if latency is not None:
            controller.use_latency(latency)
        return self.answers(controller, self.observe_steps(controller, speed=speed))

    def observe_steps(self, controller: Controller, seed: int = 1, speed: float = 1.0, answers: bool = True) -> Context:
        """Plan and observe ten steps as a decoder would, each with a chain of three nodes, and return the context."""
        generator = np.random.default_rng(seed)
        context = Context([1, 2, 3], sequence=seed)
        controller.begin(context, None)
        for _ in range(10):
            controller.plan(context)
            tokens = np.array([context.root, 4, 5, 6], dtype=np.int64)  # [n + 1]
            logits = torch.from_numpy(generator.standard_normal((4, 9)))  # [n + 1, V]
            log_probs = np.log([1.0, *generator.uniform(0.1, 1.0, 3)]).astype(np.float32)
            accepted = tuple(range(1, 1 + int(generator.integers(4))))  # 0 to 3 of the chain
            new = (*(int(tokens[row]) for row in accepted), int(logits[len(accepted)].argmax()))
            context.append(new)
            controller.observe(
                Outcome(
                    context,
                    TokenTree(_CHAIN, tokens, log_probs, values=_VALUES),
                    logits if answers else logits[:, :0],
                    accepted,
                    new,
                    (1,) * len(accepted),
                    {"draft": 0.003 / speed, "target": 0.01},
                )
            )
        return context

    def answers(self, controller: Controller, context: Context) -> tuple[Plan, list[bool]]:
        return controller.plan(context), [controller.keep_drafting(context, state) for state in _STATES]


class FrozenControllerContract(ControllerContract):
    """Additional tests for controllers that do not learn."""

    def test_it_does_not_change(self, controller: Controller) -> None:
        before = repr(controller.state_dict())
        decided = self.answers(controller, self.observe_steps(controller))
        assert repr(controller.state_dict()) == before
        assert self.answers(controller, self.observe_steps(controller)) == decided


def _drafting_for(controller: Controller) -> tuple[Drafter, TreeBuilder]:
    def next_logits(tokens: tuple[int, ...]) -> list[float]:
        logits = [0.0] * 11
        logits[(tokens[-1] + 1) % 11 if len(tokens) % 3 else 0] = 4.0  # wrong at every third position
        return logits

    builder: TreeBuilder = Chain(4)
    if controller.plans_threshold:
        builder = DySpecThreshold(threshold=0.1, max_nodes=12)
    elif controller.num_choices > 1:
        builder = Choice([Chain(length) for length in range(1, controller.num_choices + 1)])
    return DraftModel(FakeCausalLM(next_logits, 11)), builder
