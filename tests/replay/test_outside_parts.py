"""Parts that this project does not know are worth what they declare, and nothing they do not declare is exact."""

import numpy as np
import pytest
from helpers.fake_turns import recorded_turn, save_recording

from specexp.builders import Chain
from specexp.config import Generation
from specexp.core.contracts import Controller, DeterministicVerifier, Drafter
from specexp.core.dialogue import Candidates, Plan
from specexp.core.parts import Parts
from specexp.data import Prompt
from specexp.drafters import PromptLookup, Union
from specexp.replay.backend import ReplayArm
from specexp.replay.format.trie import RecordingError
from specexp.replay.play.fidelity import Grade, fidelity, static_shape
from specexp.verifiers import KeyedSampling


class LastAgain(Drafter):
    """Guesses the last token again."""

    max_candidates = 1

    def propose(self, context, request):
        tokens = request.tokens[request.rows][:, np.newaxis].repeat(request.k, axis=1)
        return Candidates(tokens)


class SaidToLearnNothing(LastAgain):
    learns_from = "nothing"


class WithItsOwnModel(SaidToLearnNothing):
    runs_model = True


class EveryOther(Controller):
    """Drafts in every other step."""

    def plan(self, context):
        return Plan(max_depth=None if context.steps % 2 else 0)


class SaidToNeedNoSeconds(EveryOther):
    uses_seconds = False


class NeedsForesight(SaidToNeedNoSeconds):
    needs_foresight = True


class Highest(DeterministicVerifier):
    """Takes the token with the highest id, whatever that means for the output."""

    def target_token(self, context, logits, position):
        return len(logits) - 1


def grade(drafter=None, verifier=None, controller=None):
    return fidelity(Parts(drafter or PromptLookup(), Chain(1), verifier or KeyedSampling(), controller)).grade


def test_a_drafter_that_declares_nothing_is_approximate():
    assert grade(LastAgain()) is Grade.APPROXIMATE
    assert grade(Union([PromptLookup(), LastAgain()])) is Grade.APPROXIMATE
    assert grade(SaidToLearnNothing()) is Grade.EXACT
    assert static_shape(Parts(SaidToLearnNothing(), Chain(1))) is None


def test_a_draft_model_asked_in_another_way_is_refused():
    with pytest.raises(RecordingError, match=r"WithItsOwnModel runs its draft model in a way of its own"):
        static_shape(Parts(WithItsOwnModel(), Chain(1)))


def test_a_controller_that_declares_nothing_decides_by_seconds():
    assert grade(controller=EveryOther()) is Grade.MODELLED
    assert grade(controller=SaidToNeedNoSeconds()) is Grade.EXACT
    with pytest.raises(RecordingError, match=r"NeedsForesight controller decodes every prompt beforehand"):
        grade(controller=NeedsForesight())


def test_a_verifier_whose_law_is_not_known_is_not_replayed():
    with pytest.raises(RecordingError, match=r"output of Highest may depend on what is drafted"):
        grade(verifier=Highest())


@pytest.mark.parametrize("controller", [None, SaidToNeedNoSeconds()])
def test_what_is_declared_is_replayed_step_by_step(tmp_path, controller):
    answer = [10, 10, 11, 11, 11, 12, 12, 12]
    recording = save_recording([recorded_turn([0] * 8, answer=answer)], tmp_path / "recording", 8)
    parts = Parts(SaidToLearnNothing(), Chain(1), KeyedSampling(0.7), controller)
    arm = ReplayArm("outside", recording, parts, Generation(max_new_tokens=8))

    record = arm.decode(Prompt("p", "fake", ("?",), (5, 6, 7), 0))

    # drafted after 7, 10, 11, 11 and 12: the second, third and last are right; or in steps 1 and 3 alone, both right
    steps, accepted, drafted = (5, 3, 5) if controller is None else (6, 2, 2)
    assert (record.steps, record.accepted_drafts, record.drafted_nodes) == (steps, accepted, drafted)
