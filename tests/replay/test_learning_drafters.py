"""Drafters that learn from every fed node: replayed exactly with what was recorded, closely with anything else."""

import pytest
from helpers.fifty_prompts import GENERATION, PROMPTS, VOCABULARY, Models, counts, decoded, record

from specexp.builders import Chain, Graft, ParametricTree
from specexp.controllers import Fixed
from specexp.core.parts import Parts
from specexp.drafters import DraftModel, PhraseCache, TokenRecycling
from specexp.drafters.draft_source import ModelSource
from specexp.replay.backend import ReplayArm, source_for
from specexp.replay.play.fidelity import Grade
from specexp.replay.record.recorder import RecordingSource
from specexp.verifiers import KeyedSampling

VERIFIER = KeyedSampling(0.7)


def tree(nodes):
    return ParametricTree(nodes=nodes, depth=4, width=3)


@pytest.fixture(scope="module")
def recycled(tmp_path_factory):
    folder, drafter = tmp_path_factory.mktemp("recycled"), TokenRecycling(k=4, state="carry")
    return record(folder, VERIFIER, drafter, None, [tree(4), tree(12)])


def both(recording, make, builder):
    live = decoded(make(), builder, VERIFIER, Fixed())
    arm = ReplayArm("replayed", recording, Parts(make(), builder, VERIFIER, Fixed()), GENERATION)
    arm.reset()
    return arm, live, [arm.decode(prompt) for prompt in PROMPTS]


def tokens_per_step(records):
    return sum(one.new_tokens for one in records) / sum(one.steps for one in records)


@pytest.mark.parametrize("nodes", [4, 12])
def test_with_a_recorded_tree_nothing_is_estimated(recycled, nodes):
    arm, live, replayed = both(recycled, lambda: TokenRecycling(k=4, state="carry"), tree(nodes))

    assert arm.fidelity.grade is Grade.APPROXIMATE
    assert counts(replayed) == counts(live)


@pytest.mark.parametrize(
    "update", ["last", *(pytest.param(rule, marks=pytest.mark.slow) for rule in ("first", "merge"))]
)
def test_trees_and_rules_that_were_not_recorded_come_close(recycled, update):
    _, live, replayed = both(recycled, lambda: TokenRecycling(k=4, state="carry", update=update), tree(8))

    assert counts(replayed) != counts(live)
    assert tokens_per_step(replayed) == pytest.approx(tokens_per_step(live), rel=0.05)


@pytest.mark.parametrize(
    ("prompts", "within"), [(12, 0.15), pytest.param(50, 0.05, marks=pytest.mark.slow)], ids=["few", "all"]
)
def test_phrases_stored_from_partly_recorded_answers_come_close(tmp_path, prompts, within):
    asked = PROMPTS[:prompts]

    def make(source):
        inner = DraftModel()
        inner.use_draft_model(source)
        return PhraseCache(inner, phrase_length=3, state="carry")

    source = RecordingSource(Models().draft, 1, spine_width=VOCABULARY)
    coverage = [Graft(Chain(6), phrases_per_anchor=2, phrase_length=3)]
    recording = record(tmp_path, VERIFIER, make(source), source, coverage, prompts=asked)
    builder = Graft(Chain(4), phrases_per_anchor=2, phrase_length=3)
    live = decoded(make(ModelSource(Models().draft)), builder, VERIFIER, Fixed(), prompts=asked)
    arm = ReplayArm(
        "replayed", recording, Parts(make(source_for(recording)), builder, VERIFIER, Fixed()), GENERATION
    )
    replayed = [arm.decode(prompt) for prompt in asked]

    assert arm.fidelity.grade is Grade.APPROXIMATE
    assert tokens_per_step(replayed) == pytest.approx(tokens_per_step(live), rel=within)
