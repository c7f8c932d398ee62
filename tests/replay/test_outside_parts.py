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
        return Candidates(request.tokens[request.rows][:, np.newaxis].repeat(request.k, axis=1))


class LearnsNothing(LastAgain):
    learns_from = "nothing"


class RunsItsModel(LearnsNothing):
    runs_model = True


class EveryOther(Controller):
    """Drafts in every other step."""

    def plan(self, context):
        return Plan(max_depth=None if context.steps % 2 else 0)


class UsesNoSeconds(EveryOther):
    uses_seconds = False


class NeedsForesight(UsesNoSeconds):
    needs_foresight = True


class Highest(DeterministicVerifier):
    """Takes the token with the highest id, whatever that means for the output."""

    def target_token(self, context, logits, position):
        return len(logits) - 1


def grade(drafter=None, verifier=None, controller=None):
    return fidelity(Parts(drafter or PromptLookup(), Chain(1), verifier or KeyedSampling(), controller)).grade


def test_a_part_is_graded_by_its_declarations():
    """And one that declares nothing is never exact."""
    assert grade(LastAgain()) is Grade.APPROXIMATE
    assert grade(Union([PromptLookup(), LastAgain()])) is Grade.APPROXIMATE
    assert grade(LearnsNothing()) is Grade.EXACT
    assert static_shape(Parts(LearnsNothing(), Chain(1))) is None
    assert grade(controller=EveryOther()) is Grade.MODELLED
    assert grade(controller=UsesNoSeconds()) is Grade.EXACT


@pytest.mark.parametrize(
    ("assess", "sentence"),
    [
        (lambda: static_shape(Parts(RunsItsModel(), Chain(1))), "runs its draft model in a way of its own"),
        (lambda: grade(controller=NeedsForesight()), "controller decodes every prompt beforehand"),
        (lambda: grade(verifier=Highest()), "output of Highest may depend on what is drafted"),
    ],
)
def test_a_part_that_cannot_be_replayed_is_refused(assess, sentence):
    with pytest.raises(RecordingError, match=sentence):
        assess()


@pytest.mark.parametrize("controller", [None, UsesNoSeconds()])
def test_what_is_declared_is_replayed_step_by_step(tmp_path, controller):
    answer = [10, 10, 11, 11, 11, 12, 12, 12]
    recording = save_recording([recorded_turn([0] * 8, answer=answer)], tmp_path / "recording", 8)
    parts = Parts(LearnsNothing(), Chain(1), KeyedSampling(0.7), controller)
    arm = ReplayArm("outside", recording, parts, Generation(max_new_tokens=8))

    record = arm.decode(Prompt("p", "fake", ("?",), (5, 6, 7), 0))

    # drafted after 7, 10, 11, 11 and 12: the second, third and last are right; or in steps 1 and 3 alone, both right
    steps, accepted, drafted = (5, 3, 5) if controller is None else (6, 2, 2)
    assert (record.steps, record.accepted_drafts, record.drafted_nodes) == (steps, accepted, drafted)
