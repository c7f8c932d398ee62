"""Replay against live: exact where parts declare it, close where drafters learn from unrecorded nodes."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from helpers.fake_turns import recorded_draft, recorded_turn, save_recording
from helpers.fifty_prompts import GENERATION, PROMPTS, VOCABULARY, Models, Tokenizer, counts, decoded, record

from specexp.bench.live import DecoderArm
from specexp.builders import (
    BeamRerank,
    Chain,
    DySpecGreedy,
    DySpecThreshold,
    Graft,
    KConfig,
    ParametricTree,
    Sequoia,
    StaticTree,
)
from specexp.config import Generation
from specexp.controllers import ConfidenceThreshold, Fixed, Heuristic, QLearning
from specexp.core.contracts import Controller, DeterministicVerifier, Drafter
from specexp.core.dialogue import Candidates, Plan
from specexp.core.language_model import LanguageModel
from specexp.core.loop import Decoder
from specexp.core.parts import Parts
from specexp.data import Prompt
from specexp.drafters import DraftModel, PhraseCache, PromptLookup, TokenRecycling, Union
from specexp.drafters.draft_source import ModelSource
from specexp.replay.backend import ReplayArm, source_for
from specexp.replay.format.trie import NotRecordedError, Ranked, RecordingError
from specexp.replay.play.fidelity import Grade, fidelity, static_shape
from specexp.replay.play.player import Player
from specexp.replay.record.recorder import RecordingSource
from specexp.testing.fakes import FakeCausalLM, hashed_model
from specexp.verifiers import Greedy, KeyedSampling, RejectionSampling

FEW, VERIFIER = PROMPTS[:20], KeyedSampling(0.7)
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
    "Sequoia": (Sequoia([0.5, 0.2, 0.1, 0.2], 9, candidates="top-k"), Fixed),
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


def both(recording, make, builder, verifier=VERIFIER, controller=Fixed, prompts=PROMPTS):
    """The arm of a replay, and the live and the replayed records; ``make`` returns a drafter for a source."""
    live = decoded(make(ModelSource(Models().draft)), builder, verifier, controller(), prompts=prompts)
    parts = Parts(make(source_for(recording)), builder, verifier, controller())
    arm = ReplayArm("replayed", recording, parts, GENERATION)
    arm.reset()
    return arm, live, [arm.decode(prompt) for prompt in prompts]


def check_equal(setting, make, builder, controller=Fixed):
    """Compare live and replayed counts; returns the live records."""
    recording, verifier, _ = setting
    arm, live, replayed = both(recording, make, builder, verifier, controller, FEW)
    assert arm.fidelity.grade is Grade.EXACT
    assert counts(replayed) == counts(live)
    return live


@pytest.mark.parametrize(
    ("setting", "name"),
    [(one, name) for one in SETTINGS for name in COMPOSITIONS if one == "keyed" or name in EVERYWHERE],
    indirect=["setting"],
)
@pytest.mark.variants(1)
def test_every_count_of_every_prompt_is_the_live_one(setting, name):
    live = check_equal(setting, lambda source: draft(source, setting[2]), *COMPOSITIONS[name])
    assert sum(one.accepted_drafts for one in live) > 0.6 * len(FEW)
    assert {reason for one in live for reason in one.finish_reasons} == {"eos", "length"}


def test_a_replayed_answer_ends_where_the_live_one_begins_to_repeat(tmp_path):
    def model():
        following = [1, 2, 3, 4, 0, 2, 2, 2, 2, 2]
        logits = np.eye(VOCABULARY)[following].tolist()  # after each token
        return LanguageModel(FakeCausalLM(lambda tokens: logits[tokens[-1]], VOCABULARY), self_check=False)

    source, wanted = RecordingSource(model(), 1, spine_width=VOCABULARY), {"max_new_tokens": 40}
    recording = record(
        tmp_path, Greedy(), draft(source), source, [Chain(7)], prompts=FEW[:3], target=model(),
        stop_at_repetition=True, **wanted,
    )  # fmt: skip
    parts = Parts(draft(source_for(recording)), Chain(7), Greedy(), Fixed())
    arm = ReplayArm("replayed", recording, parts, Generation(**wanted))
    decoder = Decoder(model(), draft(ModelSource(model())), Chain(7), Greedy(), Fixed())
    live = DecoderArm("live", decoder, Tokenizer(), Generation(**wanted))
    replayed, expected = ([one.decode(prompt) for prompt in FEW[:3]] for one in (arm, live))
    assert counts(replayed) == counts(expected)
    assert {(one.finish_reasons, one.new_tokens, one.steps) for one in replayed} == {(("repetition",), 24, 3)}


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
@pytest.mark.slow
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

    wanted = r"4 best candidates are needed, but 3 were recorded; .* of at least 4"
    with pytest.raises(NotRecordedError, match=wanted):
        arm.decode(FEW[0])


def tree(nodes):
    return ParametricTree(nodes=nodes, depth=4, width=3)


@pytest.fixture(scope="module")
def recycled(tmp_path_factory):
    folder, drafter = tmp_path_factory.mktemp("recycled"), TokenRecycling(k=4, state="carry")
    return record(folder, VERIFIER, drafter, None, [tree(4), tree(12)])


def tokens_per_step(records):
    return sum(one.new_tokens for one in records) / sum(one.steps for one in records)


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [4, 12])
def test_with_a_recorded_tree_nothing_is_estimated(recycled, nodes):
    arm, live, replayed = both(recycled, lambda source: TokenRecycling(k=4, state="carry"), tree(nodes))

    assert arm.fidelity.grade is Grade.APPROXIMATE
    assert counts(replayed) == counts(live)


@pytest.mark.parametrize("update", ["last", *(pytest.param(one, marks=pytest.mark.slow) for one in ("first", "merge"))])
def test_trees_and_rules_that_were_not_recorded_come_close(recycled, update):
    _, live, replayed = both(recycled, lambda source: TokenRecycling(k=4, state="carry", update=update), tree(8))

    assert counts(replayed) != counts(live)
    assert tokens_per_step(replayed) == pytest.approx(tokens_per_step(live), rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(("prompts", "within"), [(12, 0.15), (50, 0.05)], ids=["few", "all"])
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
    arm, live, replayed = both(recording, make, builder, prompts=asked)

    assert arm.fidelity.grade is Grade.APPROXIMATE
    assert tokens_per_step(replayed) == pytest.approx(tokens_per_step(live), rel=within)


TOY_SIZE, ANSWER, PROMPT = 12, 14, (3, 1, 4)


@cache
def models():
    """A target and a draft that agrees with it now and then."""
    return hashed_model(TOY_SIZE, seed=1), hashed_model(TOY_SIZE, seed=2, spread=1.0)


@torch.inference_mode()
def live_turn(builder, drafter, seed):
    """A run of the real decoder, and its output as a recording would hold it."""
    target, draft = models()
    decoder = Decoder(target, drafter, builder, RejectionSampling(temperature=1.0))
    result = decoder.generate(list(PROMPT), max_new_tokens=ANSWER, seed=seed)
    answer = result.token_ids
    seen = [(*PROMPT, *answer[:place]) for place in range(len(answer))]
    said = torch.tensor([draft.next_logits(tokens) for tokens in seen]).log_softmax(dim=-1)
    values, ranked = said.sort(dim=-1, descending=True, stable=True)
    turn = recorded_turn([0] * len(answer), prompt=PROMPT)
    turn = replace(turn, answer=np.array(answer, dtype=np.int32))
    turn.trie.tokens[1:] = answer
    counts = np.full(len(answer) + 1, TOY_SIZE, dtype=np.int32)
    counts[-1] = 0
    candidates = Ranked(counts, ranked.numpy().astype(np.int32).ravel(), values.numpy().ravel())
    trie = type(turn.trie)(turn.trie.parents, turn.trie.tokens, candidates, turn.trie.target, len(answer))
    return result, replace(turn, trie=trie)


@pytest.mark.variants(1)
@pytest.mark.parametrize(
    "builder", [Chain(3), KConfig([3, 2]), StaticTree([[1], [0], [1, 0], [1, 3], [0, 2], [1, 0, 0]])]
)
def test_of_ranked_candidates_the_output_alone_decides_the_counts(builder):
    """Rejection sampling of point masses: a child is accepted exactly where it is the output's token."""
    drafter = DraftModel(models()[1])
    replayed, source = recorded_draft()
    player = Player(Parts(replayed, builder, RejectionSampling(), Fixed()), source, 512, 0)
    several = set()
    for seed in range(15):
        result, turn = live_turn(builder, drafter, seed)
        (counts,) = player.play([turn], ANSWER, "s")
        found = (counts.steps, counts.accepted_drafts, counts.drafted_nodes, counts.draft_passes)
        assert found == (result.steps, result.accepted_drafts, result.drafted_nodes, result.draft_passes)
        several.add(counts.steps)
    assert len(several) > 1


@pytest.mark.parametrize("verifier", [RejectionSampling(), Greedy()])
def test_drawn_candidates_are_refused(verifier):
    with pytest.raises(RecordingError, match=r"Chain draws its candidates.*set candidates to top-k"):
        fidelity(Parts(DraftModel(), Chain(4, candidates="drawn"), verifier, Fixed()))
    parts = Parts(DraftModel(), Chain(4), verifier, Fixed())
    assert fidelity(parts).grade is (Grade.EXACT if isinstance(verifier, Greedy) else Grade.IN_LAW)


class LastAgain(Drafter):
    max_candidates = 1

    def propose(self, context, request):
        return Candidates(request.tokens[request.rows][:, np.newaxis].repeat(request.k, axis=1))


class LearnsNothing(LastAgain):
    learns_from = "nothing"


class RunsItsModel(LearnsNothing):
    runs_model = True


class EveryOther(Controller):
    def plan(self, context):
        return Plan(max_depth=None if context.steps % 2 else 0)


class UsesNoSeconds(EveryOther):
    uses_seconds = False


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
        (lambda: static_shape(Parts(RunsItsModel(), Chain(1))), "runs its draft model without a scoring and source"),
        (lambda: grade(verifier=Highest()), "output of Highest may depend on the drafts"),
    ],
)
def test_a_part_that_cannot_be_replayed_is_refused(assess, sentence):
    with pytest.raises(RecordingError, match=sentence):
        assess()


@pytest.mark.parametrize("controller", [None, UsesNoSeconds()])
def test_declared_parts_are_replayed_step_by_step(tmp_path, controller):
    answer = [10, 10, 11, 11, 11, 12, 12, 12]
    recording = save_recording([recorded_turn([0] * 8, answer=answer)], tmp_path / "recording", 8)
    parts = Parts(LearnsNothing(), Chain(1), KeyedSampling(0.7), controller)
    arm = ReplayArm("outside", recording, parts, Generation(max_new_tokens=8))

    record = arm.decode(Prompt("p", "fake", ("?",), (5, 6, 7), 0))

    # drafted after 7, 10, 11, 11 and 12: the second, third and last are right; or in steps 1 and 3 alone, both right
    steps, accepted, drafted = (5, 3, 5) if controller is None else (6, 2, 2)
    assert (record.steps, record.accepted_drafts, record.drafted_nodes) == (steps, accepted, drafted)
