"""Replay of what does not learn from unrecorded nodes is exact: fifty prompts, every count of every prompt."""

from dataclasses import replace

import pytest

from specexp.builders import (
    BeamRerank,
    Chain,
    DySpecGreedy,
    DySpecThreshold,
    KConfig,
    ParametricTree,
    Sequoia,
)
from specexp.composition import Parts
from specexp.config.schema import Generation
from specexp.controllers import ConfidenceThreshold, Fixed, Heuristic, QLearning
from specexp.data import Prompt
from specexp.decoder import Decoder
from specexp.drafters import DraftModel, PromptLookup, TokenRecycling, Union
from specexp.drafters._draft_source import ModelSource, Scoring
from specexp.evaluation.arm import sequence_name
from specexp.evaluation.decoder_arm import DecoderArm
from specexp.evaluation.replay_arm import ReplayArm, source_for
from specexp.models.language_model import LanguageModel
from specexp.replay.fidelity import Grade, law_of
from specexp.replay.recorder import Coverage, Recorder
from specexp.replay.recording import Manifest, Recording, write_turns
from specexp.replay.source import RecordingSource
from specexp.testing.fakes import FakeCausalLM, hashed_model
from specexp.verifiers import Greedy, KeyedSampling, RejectionSampling

VOCABULARY, LIMIT, TOKENS, EOS = 10, 48, 10, 9
GENERATION = Generation(max_new_tokens=TOKENS)
PROMPTS = [
    Prompt(
        f"p{number}",
        "math",
        ("?",),
        tuple((number * 7 + place * 3) % 8 for place in range(3 + number % 9)),
        number,
    )
    for number in range(50)
]
COVERAGE = [Chain(8), KConfig([3, 2, 1]), DySpecGreedy(16, candidates="top-k"), BeamRerank(8, 3, 3)]
COVERAGE += [DySpecThreshold(0.05, 16, candidates="top-k")]


class Tokenizer:
    """Ends answers; the prompts are tokens already."""

    eos_token_id = EOS


class Models:
    """A target, and a draft that is right now and then."""

    def __init__(self) -> None:
        self.target = LanguageModel(hashed_model(VOCABULARY, 0, LIMIT), self_check=False)
        other = hashed_model(VOCABULARY, 1, LIMIT)

        def mixed(tokens):
            ours, theirs = self.target.model.next_logits(tokens), other.next_logits(tokens)
            return [0.6 * one + 0.4 * two for one, two in zip(ours, theirs, strict=True)]

        self.draft = LanguageModel(FakeCausalLM(mixed, VOCABULARY, LIMIT), self_check=False)


def recorded(folder, verifier, coupled):
    models = Models()
    source = RecordingSource(ModelSource(models.draft), 1, spine_width=VOCABULARY)
    drafter = DraftModel(coupled=coupled)
    drafter.use_draft_model(source)
    recorder = Recorder(models.target, verifier, drafter, source, Coverage(COVERAGE, VOCABULARY, 4))
    turns = []
    for prompt in PROMPTS:
        turns += recorder.conversation(
            prompt.prompt_id,
            "math",
            prompt.index,
            0,
            lambda turn, before, prompt=prompt: list(prompt.token_ids),
            1,
            sequence=sequence_name(prompt, 0),
            seed=0,
            max_new_tokens=TOKENS,
            eos_token_ids=frozenset({EOS}),
        )
    made_of = {
        "pair": {"target_dtype": "float32", "device": "cpu"},
        "law": law_of(verifier),
        "scoring": vars(Scoring(coupled=coupled)),
        "generation": {"seed": 0, "max_new_tokens": TOKENS},
    }
    files = {"turns.parquet": write_turns(folder / "turns.parquet", turns)}
    Manifest({}, made_of, VOCABULARY, {"target": LIMIT, "draft": LIMIT}, files, complete=True).save(folder)
    return Recording(folder)


@pytest.fixture(scope="module", params=["greedy", "keyed", "keyed, coupled"])
def setting(request, tmp_path_factory):
    verifier = Greedy() if request.param == "greedy" else KeyedSampling(0.7)
    coupled = "coupled" in request.param
    return recorded(tmp_path_factory.mktemp("recording"), verifier, coupled), verifier, coupled


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


def decoded(models, drafter, builder, verifier, controller):
    decoder = Decoder(models.target, drafter, builder, verifier, controller)
    arm = DecoderArm("live", decoder, Tokenizer(), GENERATION)
    arm.reset()
    return [arm.decode(prompt) for prompt in PROMPTS]


COUNTS = ("steps", "accepted_drafts", "bonus_tokens", "drafted_nodes", "draft_passes")


def counts(records):
    return [
        (one.token_ids, one.finish_reasons, one.prompt_tokens, [getattr(one, name) for name in COUNTS])
        for one in records
    ]


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_every_count_of_every_prompt_is_the_live_one(setting, name):
    recording, verifier, coupled = setting
    builder, controller = COMPOSITIONS[name]
    models = Models()
    live_drafter = DraftModel(coupled=coupled)
    live_drafter.use_draft_model(ModelSource(models.draft))
    drafter = DraftModel(coupled=coupled)
    drafter.use_draft_model(source_for(recording))

    live = decoded(models, live_drafter, builder, verifier, controller())
    arm = ReplayArm("replayed", recording, Parts(drafter, builder, verifier, controller()), GENERATION)
    replayed = [arm.decode(prompt) for prompt in PROMPTS]

    assert arm.fidelity.grade is Grade.EXACT
    assert counts(replayed) == counts(live)
    assert sum(one.accepted_drafts for one in live) > 30
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
    recording, verifier, coupled = setting
    builder = ParametricTree(nodes=8, depth=4, width=min(3, make(coupled).max_candidates))

    live = decoded(Models(), make(coupled), builder, verifier, Fixed())
    arm = ReplayArm("replayed", recording, Parts(make(coupled), builder, verifier, Fixed()), GENERATION)

    assert arm.fidelity.grade is Grade.EXACT
    assert counts([arm.decode(prompt) for prompt in PROMPTS]) == counts(live)


def test_ranked_candidates_under_rejection_sampling_are_exact_in_distribution(setting):
    """What is accepted is certain once the output is known, so replay gives the counts of keyed sampling."""
    recording, verifier, coupled = setting
    if coupled or isinstance(verifier, Greedy):
        pytest.skip("rejection sampling draws noise of its own, at a temperature")
    found = []
    for one in (verifier, RejectionSampling(0.7)):
        drafter = DraftModel()
        drafter.use_draft_model(source_for(recording))
        arm = ReplayArm("replayed", recording, Parts(drafter, KConfig([2, 2]), one, Fixed()), GENERATION)
        found.append((arm.fidelity.grade, counts([arm.decode(prompt) for prompt in PROMPTS])))

    assert found[0][0] is Grade.EXACT
    assert found[1][0] is Grade.IN_LAW
    assert found[0][1] == found[1][1]


def test_fewer_tokens_than_were_recorded_may_be_asked_for(setting):
    recording, verifier, coupled = setting
    models = Models()
    live_drafter = DraftModel(coupled=coupled)
    live_drafter.use_draft_model(ModelSource(models.draft))
    drafter = DraftModel(coupled=coupled)
    drafter.use_draft_model(source_for(recording))
    arm = ReplayArm(
        "replayed", recording, Parts(drafter, Chain(4), verifier), replace(GENERATION, max_new_tokens=6)
    )
    decoder = Decoder(models.target, live_drafter, Chain(4), verifier)
    live = DecoderArm("live", decoder, Tokenizer(), replace(GENERATION, max_new_tokens=6))

    for prompt in PROMPTS[:10]:
        assert counts([arm.decode(prompt)]) == counts([live.decode(prompt)])
