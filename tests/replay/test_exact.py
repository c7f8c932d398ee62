"""Replay of parts that do not learn from unrecorded nodes is exact: every count of every prompt is the live one."""

import pytest
from helpers.fifty_prompts import GENERATION, PROMPTS, VOCABULARY, Models, counts, decoded, record

from specexp.builders import (
    BeamRerank,
    Chain,
    DySpecGreedy,
    DySpecThreshold,
    KConfig,
    ParametricTree,
    Sequoia,
)
from specexp.controllers import ConfidenceThreshold, Fixed, Heuristic, QLearning
from specexp.core.parts import Parts
from specexp.drafters import DraftModel, PromptLookup, TokenRecycling, Union
from specexp.drafters.draft_source import ModelSource
from specexp.replay.backend import ReplayArm, source_for
from specexp.replay.format.trie import NotRecordedError
from specexp.replay.play.fidelity import Grade
from specexp.replay.record.recorder import RecordingSource
from specexp.verifiers import Greedy, KeyedSampling

FEW = PROMPTS[:20]
COVERAGE = [Chain(8), KConfig([3, 2, 1]), DySpecGreedy(16, candidates="top-k"), BeamRerank(8, 3, 3)]
COVERAGE += [DySpecThreshold(0.05, 16, candidates="top-k")]
SETTINGS = {
    "greedy": (Greedy(), False),
    "keyed": (KeyedSampling(0.7), False),
    "coupled": (KeyedSampling(0.7), True),
}
COMPOSITIONS = {
    "chain": (Chain(4), Fixed),
    "longest chain": (Chain(8), Fixed),
    "static tree": (ParametricTree(nodes=11, depth=4, width=5), Fixed),
    "Sequoia": (Sequoia(9, acceptance=[0.5, 0.2, 0.1, 0.2], candidates="top-k"), Fixed),
    "k-config": (KConfig([3, 2, 1]), Fixed),
    "narrower k-config": (KConfig([2, 2]), lambda: Fixed(max_depth=3)),
    "DySpec greedy": (DySpecGreedy(16, candidates="top-k"), Fixed),
    "smaller DySpec greedy": (DySpecGreedy(6, candidates="top-k"), Fixed),
    "DySpec threshold": (DySpecThreshold(0.05, 16, candidates="top-k"), Fixed),
    "beam": (BeamRerank(8, 3, 3), Fixed),
    "narrower beam": (BeamRerank(6, 2, 2), Fixed),
    "confidence": (Chain(8), lambda: ConfidenceThreshold(0.3)),
    "heuristic": (Chain(8), Heuristic),
    "Q-learning": (Chain(8), lambda: QLearning(draft_cost=0.2)),
    "Q-learning, useful tokens": (Chain(8), lambda: QLearning(draft_cost=0.2, reward="useful")),
}
EVERYWHERE = ["chain", "k-config", "DySpec greedy", "Q-learning"]
"""Compositions that are tested with every verifier; the others with keyed sampling, whose output varies."""


def draft(source, coupled=False):
    drafter = DraftModel(coupled=coupled)
    drafter.use_draft_model(source)
    return drafter


@pytest.fixture(params=SETTINGS, scope="module")
def setting(request, tmp_path_factory):
    """A recording with its verifier, and whether the draft is coupled to it."""
    verifier, coupled = SETTINGS[request.param]
    source = RecordingSource(Models().draft, 1, spine_width=VOCABULARY)
    folder = tmp_path_factory.mktemp("recording")
    recording = record(folder, verifier, draft(source, coupled), source, COVERAGE, coupled, FEW)
    return recording, verifier, coupled


def check_equal(setting, make, builder, controller=Fixed):
    """Compare live and replayed counts; ``make`` returns a drafter for a source. Returns the live records."""
    recording, verifier, _ = setting
    live = decoded(make(ModelSource(Models().draft)), builder, verifier, controller(), prompts=FEW)
    parts = Parts(make(source_for(recording)), builder, verifier, controller())
    arm = ReplayArm("replayed", recording, parts, GENERATION)
    assert arm.fidelity.grade is Grade.EXACT
    assert counts([arm.decode(prompt) for prompt in FEW]) == counts(live)
    return live


@pytest.mark.parametrize(
    ("setting", "name"),
    [(one, name) for one in SETTINGS for name in COMPOSITIONS if one == "keyed" or name in EVERYWHERE],
    indirect=["setting"],
)
def test_every_count_of_every_prompt_is_the_live_one(setting, name):
    live = check_equal(setting, lambda source: draft(source, setting[2]), *COMPOSITIONS[name])
    assert sum(one.accepted_drafts for one in live) > 0.6 * len(FEW)
    assert {reason for one in live for reason in one.finish_reasons} == {"eos", "length"}


def lookup(coupled):
    return PromptLookup(min_ngram=1)


def recycling(coupled, state="carry"):
    return TokenRecycling(k=4, update="accepted", state=state, coupled=coupled)


@pytest.mark.parametrize(
    "make",
    [
        lookup,
        recycling,
        lambda coupled: recycling(coupled, "cold"),
        lambda coupled: Union([lookup(coupled), recycling(coupled)]),
    ],
    ids=["lookup", "recycling", "cold recycling", "both"],
)
def test_drafters_that_learn_from_accepted_tokens_alone_are_exact(setting, make):
    coupled = setting[2]
    builder = ParametricTree(nodes=8, depth=4, width=min(3, make(coupled).max_candidates))
    check_equal(setting, lambda source: make(coupled), builder)


def test_a_tree_wider_than_the_recording_is_refused(tmp_path):
    """Candidates beyond the recorded ones may be the output's next token, so none is made up along the output."""
    source = RecordingSource(Models().draft, 1, spine_width=3)
    recording = record(tmp_path, KeyedSampling(0.7), draft(source), source, [Chain(4)], prompts=FEW[:1])
    parts = Parts(draft(source_for(recording)), KConfig([4]), KeyedSampling(0.7))
    arm = ReplayArm("replayed", recording, parts, GENERATION)

    wanted = r"4 best candidates are asked for and 3 were recorded; .* of at least 4"
    with pytest.raises(NotRecordedError, match=wanted):
        arm.decode(FEW[0])
