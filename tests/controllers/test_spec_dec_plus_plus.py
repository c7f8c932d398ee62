"""The learned heads: their initial decisions, their gradients, and the odds that they learn."""

from math import log

import numpy as np
import pytest
import torch
from helpers.contracts import contract_of
from helpers.small_models import FULL_ATTENTION, build

from specexp import Decoder
from specexp.builders import Chain, DySpecThreshold
from specexp.config.artifacts import load_artifact, save_artifact
from specexp.controllers import ConfidenceThreshold, SpecDecPlusPlus
from specexp.controllers.spec_dec_plus_plus import AcceptanceHead, StateHead
from specexp.core.context import Context
from specexp.core.dialogue import DraftState
from specexp.core.language_model import LanguageModel
from specexp.core.outcome import Outcome
from specexp.core.parts import Parts, check_composition
from specexp.core.tree import TokenTree, TreeShape
from specexp.drafters import DraftModel, SuffixAutomaton
from specexp.models.compiled import CompiledModel
from specexp.replay.format.trie import RecordingError
from specexp.replay.play.fidelity import fidelity
from specexp.testing.controllers import ControllerContract, FrozenControllerContract
from specexp.testing.fakes import counting_model

TestSpecDecPlusPlus = contract_of(ControllerContract, lambda: SpecDecPlusPlus())
TestCold = contract_of(ControllerContract, lambda: SpecDecPlusPlus(0.6, max_depth=3, rejection_weight=6, state="cold"))
TestFrozen = contract_of(FrozenControllerContract, lambda: SpecDecPlusPlus(learn=False))
TestHidden = contract_of(ControllerContract, lambda: SpecDecPlusPlus(features="hidden"))


@pytest.mark.parametrize("share", [0.1, 0.29, 0.31, 0.8])
def test_initially_it_decides_by_the_drafts_own_probability(share):
    state = DraftState(2, 2, (1, 1), log_prob=log(share), last_log_prob=log(0.9))
    expected = ConfidenceThreshold(0.3).keep_drafting(Context([1]), state)
    assert SpecDecPlusPlus(0.3).keep_drafting(Context([1]), state) == expected


def features(count, generator):
    share = generator.uniform(0.05, 0.95, count)
    columns = (np.log(share), np.log(generator.uniform(0.3, 1, count)), np.zeros(count), np.full(count, 0.5))
    return share, np.stack(columns, axis=1)


@pytest.mark.parametrize(("weight", "expected"), [(1.0, 0.25), (3.0, 0.1)])
def test_it_learns_how_far_the_draft_is_wrong(weight, expected):
    """Half of the draft's own probability is accepted, at 0.5 a quarter. Weight 3 turns odds of 1 to 3 into 1 to 9."""
    head, generator = AcceptanceHead(16, weight), np.random.default_rng(0)
    for _ in range(1500):
        share, seen = features(8, generator)
        head.learn(seen, generator.uniform(size=8) < share / 2)
    half = np.array([[log(0.5), log(0.6), 0.0, 0.5]])
    assert head.probability(half)[0] == pytest.approx(expected, abs=0.07)


@pytest.mark.parametrize("head", [AcceptanceHead(3, 2.0), StateHead(2, 2.0)])
def test_its_gradient_is_that_of_the_weighted_cross_entropy(head):
    generator = np.random.default_rng(1)
    _, seen = features(5, generator)
    if isinstance(head, StateHead):  # layers of 4 x (4 + 1) weights, and 4 + 1 of the output
        head.weights = head.squares = np.zeros(45)
    accepted = np.array([True, False, True, False, False])
    head.weights += generator.normal(0, 0.3, head.weights.size)

    def loss(weights):
        head.weights = weights
        p = head.probability(seen)
        losses = -np.where(accepted, np.log(p), 2.0 * np.log(1 - p))
        return losses.sum() if isinstance(head, StateHead) else losses.mean()  # each token counts once, or each path

    start, step = head.weights.copy(), 1e-6
    each = np.eye(start.size) * step
    expected = np.array([(loss(start + one) - loss(start - one)) / (2 * step) for one in each])
    head.weights = start.copy()
    head.squares = np.zeros(start.size)
    head.learn(seen, accepted)
    assert np.sqrt(head.squares) * np.sign(start - head.weights) == pytest.approx(expected, abs=1e-6)


def test_an_artifact_holds_the_head(tmp_path):
    controller = SpecDecPlusPlus()
    controller._head.learn(features(4, np.random.default_rng(0))[1], np.array([True, False, True, True]))
    payload = {"head.safetensors": {name: np.asarray(one) for name, one in controller.state_dict().items()}}
    save_artifact(tmp_path / "head", "acceptance-head", payload)
    made = load_artifact(tmp_path / "head").controller
    assert not made.learns
    assert (made.state_dict()["weights"] == controller.state_dict()["weights"]).all()
    with pytest.raises(ValueError, match="the saved head must have arrays"):
        SpecDecPlusPlus(width=4, head=payload["head.safetensors"])


def hidden(*weights, layers=0, **arguments):
    """Return a controller that reads hidden states, with these weights of its head."""
    head = {"weights": np.float32(weights), "squares": np.zeros(len(weights), np.float32), "recent": np.array([0.5])}
    return SpecDecPlusPlus(features="hidden", layers=layers, head=head, **arguments)


@pytest.mark.parametrize(("threshold", "goes_on"), [(0.59, True), (0.61, False)])
def test_it_stops_if_a_rejection_among_the_tokens_read_so_far_is_too_probable(threshold, goes_on):
    """Log-odds of log 3 and log 4 are probabilities of 3/4 and 4/5: all are accepted with 3/5."""
    states = np.float32([[log(3)], [log(4)]])
    state = DraftState(3, 3, (1, 1, 1), log_prob=-9.0, last_log_prob=-3.0, states=states)
    assert hidden(1, 0, threshold=threshold).keep_drafting(Context([1]), state) is goes_on
    assert hidden(1, 0, threshold=0.99).keep_drafting(Context([1]), DraftState(1, 1, (1,), -9.0, -9.0, states[:0]))


def test_a_layer_adds_the_silu_of_a_linear_map():
    """x = 1: W x + b = 2 - 2 = 0 and SiLU(0) = 0. x = 2: W x + b = 2, SiLU(2) = 2 / (1 + exp(-2)) = 1.7616."""
    head = hidden(2, -2, 1, -1, layers=1)._head
    odds = head.probability(np.float32([[1], [2]])) ** -1 - 1
    assert -np.log(odds) == pytest.approx([1 - 1, 2 + 1.7616 - 1], abs=1e-3)


def test_it_learns_from_read_tokens_up_to_the_first_rejection():
    """Errors are weight * (1/2 - label): -1/2 for the accepted token with state 1, 6/2 for the rejected one with 2."""
    controller = hidden(0, 0, rejection_weight=6.0)
    context, log_probs = Context([1, 2]), np.log(np.float32([1, 0.5, 0.5, 0.5]))
    tree = TokenTree(TreeShape([-1, 0, 1, 2], [-1, 0, 0, 0]), np.array([2, 5, 6, 7]), log_probs)
    context.append([5, 8])
    outcome = Outcome(context, tree, torch.zeros(4, 9), (1,), (5, 8), draft_states=np.float32([[1], [2], [4]]))
    controller.observe(outcome)
    gradient = np.array([-0.5 * 1 + 3 * 2, -0.5 + 3])
    assert controller.state_dict()["squares"] == pytest.approx(gradient**2)
    assert controller.state_dict()["weights"] == pytest.approx([-controller._head.rate] * 2, rel=1e-4)


class Noting(SpecDecPlusPlus):
    def __init__(self):
        super().__init__(features="hidden")
        self.decisions, self.steps = [], []

    def keep_drafting(self, context, state):
        self.decisions.append((state.depth, state.states.tolist()))
        return True

    def observe(self, outcome):
        self.steps.append((outcome.context.token_ids.tolist(), outcome))


def test_states_are_those_of_the_best_path_as_far_as_it_was_read():
    """The target counts 5, 6, 7, ...; a fake's state is a token and its position."""
    controller = Noting()
    draft = DraftModel(counting_model(11))
    Decoder(counting_model(11), draft, Chain(3), controller=controller).generate([5], max_new_tokens=4)
    assert controller.decisions == [(0, []), (1, []), (2, [[6, 1]])]
    assert [step.draft_states.tolist() for _, step in controller.steps] == [[[6, 1], [7, 2]]]


@pytest.mark.parametrize("runtime", [LanguageModel, CompiledModel])
def test_states_in_a_tree_are_the_draft_models_inputs_of_its_output_layer(runtime):
    settings = FULL_ATTENTION["Llama"] | {"head_dim": 16}
    target, draft = (build("Llama", settings, dtype=torch.float32) for _ in "ab")
    controller = Noting()
    builder = DySpecThreshold(threshold=0.001, max_nodes=12, candidates="top-k")
    Decoder(target, DraftModel(runtime(draft)), builder, controller=controller).generate([5, 6], max_new_tokens=9)
    checked = 0
    for text, step in controller.steps:
        before = text[: len(text) - len(step.new_token_ids)]
        path = step.tree.tokens[[*step.tree.best_path()]].tolist()
        states = draft(torch.tensor([before + path]), output_hidden_states=True).hidden_states[-1][0]
        found = torch.from_numpy(step.draft_states)
        assert torch.allclose(found, states[len(before) :][: len(found)], atol=1e-4)
        checked += len(found)
    assert checked > 4


def test_a_drafter_without_states_is_one_sentence():
    with pytest.raises(ValueError, match="reads a draft model's states, but SuffixAutomaton gives none: draft with"):
        check_composition(SuffixAutomaton(), Chain(3), None, SpecDecPlusPlus(features="hidden"))


def test_a_recording_without_states_is_one_sentence():
    parts = Parts(DraftModel(), Chain(3), controller=SpecDecPlusPlus(features="hidden"))
    with pytest.raises(RecordingError, match="reads a draft model's states, which no recording holds"):
        fidelity(parts)


def test_a_head_for_other_states_is_one_sentence():
    with pytest.raises(ValueError, match="must have 3 weights, got 2: set layers to its own"):
        hidden(1, 0)._head.probability(np.float32([[1, 2]]))
