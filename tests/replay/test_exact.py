"""Replay of what does not learn from unrecorded nodes is exact, every count of every prompt.

Of twenty prompts by default, of all fifty under ``-m slow``.
"""

from functools import cache

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

COVERAGE = [Chain(8), KConfig([3, 2, 1]), DySpecGreedy(16, candidates="top-k"), BeamRerank(8, 3, 3)]
COVERAGE += [DySpecThreshold(0.05, 16, candidates="top-k")]


def recorded(folder, verifier, coupled, prompts):
    source = RecordingSource(Models().draft, 1, spine_width=VOCABULARY)
    drafter = DraftModel(coupled=coupled)
    drafter.use_draft_model(source)
    return record(folder, verifier, drafter, source, COVERAGE, coupled, prompts)


SETTINGS = ["greedy", "keyed", "keyed, coupled"]


@pytest.fixture(scope="session")
def recordings(tmp_path_factory):
    """The recording of a setting by its name and how many prompts, made when it is first asked for."""

    @cache
    def recording_of(name, few):
        prompts = PROMPTS[:20] if few else PROMPTS
        verifier = Greedy() if name == "greedy" else KeyedSampling(0.7)
        coupled = "coupled" in name
        recording = recorded(tmp_path_factory.mktemp("recording"), verifier, coupled, prompts)
        return recording, verifier, coupled, prompts

    return recording_of


@pytest.fixture(params=[(name, True) for name in SETTINGS], ids=SETTINGS)
def setting(request, recordings):
    return recordings(*request.param)


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


def draft(source, coupled):
    drafter = DraftModel(coupled=coupled)
    drafter.use_draft_model(source)
    return drafter


ALWAYS = ["chain", "k-config", "DySpec greedy", "Q-learning"]
"""With every verifier by default; the others with one whose output varies, and with all under ``-m slow``."""
CASES = [
    pytest.param(
        (one, few), name, marks=[] if few else pytest.mark.slow, id=f"{one}-{name}-{'few' if few else 'all'}"
    )
    for one in SETTINGS
    for name in COMPOSITIONS
    for few in (True, False)
    if not few or one == "keyed" or name in ALWAYS
]


@pytest.mark.parametrize(("setting", "name"), CASES, indirect=["setting"])
def test_every_count_of_every_prompt_is_the_live_one(setting, name):
    recording, verifier, coupled, prompts = setting
    builder, controller = COMPOSITIONS[name]

    drafter = draft(ModelSource(Models().draft), coupled)
    live = decoded(drafter, builder, verifier, controller(), prompts=prompts)
    parts = Parts(draft(source_for(recording), coupled), builder, verifier, controller())
    arm = ReplayArm("replayed", recording, parts, GENERATION)
    replayed = [arm.decode(prompt) for prompt in prompts]

    assert arm.fidelity.grade is Grade.EXACT
    assert counts(replayed) == counts(live)
    assert sum(one.accepted_drafts for one in live) > 0.6 * len(prompts)
    assert {reason for one in live for reason in one.finish_reasons} == {"eos", "length"}


def lookup():
    return PromptLookup(min_ngram=1)


def recycling(coupled, state="carry"):
    return TokenRecycling(k=4, update="accepted", state=state, coupled=coupled)


@pytest.mark.parametrize(
    "make",
    [
        lambda coupled: lookup(),
        recycling,
        lambda coupled: recycling(coupled, "cold"),
        lambda coupled: Union([lookup(), recycling(coupled)]),
    ],
    ids=["lookup", "recycling", "cold recycling", "both"],
)
def test_drafters_that_learn_from_accepted_tokens_alone_are_exact(setting, make):
    recording, verifier, coupled, prompts = setting
    builder = ParametricTree(nodes=8, depth=4, width=min(3, make(coupled).max_candidates))

    live = decoded(make(coupled), builder, verifier, Fixed(), prompts=prompts)
    arm = ReplayArm("replayed", recording, Parts(make(coupled), builder, verifier, Fixed()), GENERATION)

    assert arm.fidelity.grade is Grade.EXACT
    assert counts([arm.decode(prompt) for prompt in prompts]) == counts(live)


def test_a_tree_wider_than_what_was_recorded_is_refused(tmp_path):
    """Candidates beyond the recorded ones may be the output's next token, so none is made up along the output."""
    source = RecordingSource(Models().draft, 1, spine_width=3)
    drafter = draft(source, False)
    recording = record(tmp_path, KeyedSampling(0.7), drafter, source, [Chain(4)], prompts=PROMPTS[:1])
    parts = Parts(draft(source_for(recording), False), KConfig([4]), KeyedSampling(0.7))
    arm = ReplayArm("replayed", recording, parts, GENERATION)

    with pytest.raises(
        NotRecordedError, match=r"4 best candidates are asked for and 3 were recorded; .* of at least 4"
    ):
        arm.decode(PROMPTS[0])
