"""A recording on disk: it holds what the models say, and refuses what it does not hold, saying what to record."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.fake_turns import save_recording
from helpers.small_models import tiny_llama

from specexp.builders import BeamRerank, Chain, DySpecGreedy, KConfig
from specexp.config.schema import Generation
from specexp.core.context import Context
from specexp.core.language_model import LanguageModel
from specexp.core.parts import Parts
from specexp.data import Prompt
from specexp.drafters import DraftModel, TokenRecycling
from specexp.drafters.ranking import Scoring
from specexp.replay.backend import ReplayArm, recorded_turns, source_for
from specexp.replay.format.recording import Recording, hash_of, weights_fingerprint
from specexp.replay.format.trie import RecordingError
from specexp.replay.record.recorder import Coverage, Recorder, RecordingSource
from specexp.testing.fakes import hashed_model
from specexp.verifiers import Greedy, KeyedSampling, RejectionSampling

VOCABULARY, LIMIT, TOKENS = 12, 64, 10
GENERATION = Generation(max_new_tokens=TOKENS, stop_at_repetition=False)
PROMPT = Prompt("p", "math", ("?",), (1, 2, 3), 0)
FINGERPRINT = {
    "tokenizer": {"vocabulary_sha256": "a" * 64, "vocabulary_size": VOCABULARY},
    "model": {"model_type": "llama", "hidden_size": 8},
    "target": {"dtype": "float32", "parameters": 5, "weights_sha256": "b" * 64},
    "draft": {"dtype": "float32", "parameters": 3, "weights_sha256": "c" * 64},
}


def record(builders, verifier, scoring=None, width=4, limit=LIMIT):
    """One conversation of two turns with models whose logits hang on the last three tokens."""
    target, draft = hashed_model(VOCABULARY, 0, LIMIT), hashed_model(VOCABULARY, 1, limit)
    source = RecordingSource(LanguageModel(draft), 1, spine_width=width)
    drafter = DraftModel(**vars(scoring or Scoring()))
    drafter.use_draft_model(source)
    recorder = Recorder(LanguageModel(target), verifier, drafter, Coverage(builders, width, 3))
    return list(
        recorder.conversation(
            replace(PROMPT, turns=("?", "!")),
            0,
            lambda turn, before: [*before, 4, 5] if turn else list(PROMPT.token_ids),
            GENERATION,
            frozenset(),
        )
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A recording with a chain of 3 as its coverage, at temperature 0.7."""
    folder = tmp_path_factory.mktemp("recorded")
    turns = [replace(turn, turns=1) for turn in record([Chain(3)], KeyedSampling(0.7))[:1]]
    save_recording(turns, folder, TOKENS, vocabulary=VOCABULARY)
    return folder


@pytest.fixture
def recording(folder):
    return Recording(folder)


def replayed(recording, builder, verifier=None, drafter=None):
    if drafter is None:
        drafter = DraftModel()
        drafter.use_draft_model(source_for(recording))
    parts = Parts(drafter, builder, verifier or KeyedSampling(0.7))
    return ReplayArm("replayed", recording, parts, Generation(max_new_tokens=TOKENS))


def path_to(turn, node):
    tokens = []
    while node > 0:
        tokens.append(int(turn.trie.tokens[node]))
        node = int(turn.trie.parents[node])
    return [*turn.prompt.tolist(), *tokens[::-1]]


@pytest.mark.variants(2)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("coupled", [False, True])
def test_every_recorded_answer_is_the_models_after_these_tokens(temperature, coupled):
    """Although a pass answers many questions, and most steps run no model at all."""
    verifier = KeyedSampling(temperature) if temperature else Greedy()
    builders = [Chain(5), KConfig([2, 2]), BeamRerank(8, 3, 2), DySpecGreedy(8, candidates="top-k")]
    target, draft = hashed_model(VOCABULARY, 0, LIMIT), hashed_model(VOCABULARY, 1, LIMIT)

    for turn in record(builders, verifier, Scoring(coupled=coupled)):
        trie = turn.trie
        assert len(trie) > 2 * turn.answer.size
        for node in range(len(trie)):
            context = path_to(turn, node)
            tokens, logits = trie.target[node]
            wanted = np.array(target.next_logits(tuple(context)))
            if tokens.size:
                np.testing.assert_array_equal(tokens, np.argsort(-wanted, kind="stable")[:3])
                np.testing.assert_allclose(logits, np.sort(wanted)[::-1][:3], rtol=1e-5)
            tokens, log_probs = trie.draft[node]
            if not tokens.size:
                continue
            scores = torch.tensor(draft.next_logits(tuple(context)), dtype=torch.float64)
            if coupled and temperature:
                noise = Context(context, seed=0, sequence="p#0", noise_temperature=temperature)
                scores = (scores / temperature).log_softmax(-1)
                scores = scores + noise.target_noise(len(context), 1, VOCABULARY)[0]
            ranked = scores.log_softmax(-1).sort(descending=True)
            np.testing.assert_array_equal(tokens, ranked.indices[: tokens.size].numpy())
            np.testing.assert_allclose(log_probs, ranked.values[: tokens.size].numpy(), rtol=1e-4, atol=1e-5)
        nodes = np.arange(turn.answer.size)
        assert all(trie.draft.count(int(node)) >= 4 for node in nodes[:-1])
        assert all(trie.target.count(int(node)) == 3 for node in (*nodes, turn.answer.size))


@pytest.mark.parametrize("limit", [24, 9])
def test_a_draft_has_no_answer_beyond_its_context(limit):
    fed = [
        len(path_to(turn, node))
        for turn in record([Chain(5), KConfig([3, 2]), BeamRerank(8, 3, 2)], KeyedSampling(0.8), limit=limit)
        for node in range(len(turn.trie))
        if turn.trie.draft.count(node)
    ]
    assert 0 < max(fed) <= limit


def test_a_draft_model_is_run_once_for_a_token_of_the_output():
    """The answer after an accepted token is known from the root before, so most of a chain costs no pass."""
    passes = {}
    for length in (1, 6):
        draft = LanguageModel(hashed_model(VOCABULARY, 0, LIMIT))  # the target itself: everything is accepted
        drafter = DraftModel()
        drafter.use_draft_model(RecordingSource(draft, 1, spine_width=2))
        target = LanguageModel(hashed_model(VOCABULARY, 0, LIMIT))
        recorder = Recorder(target, Greedy(), drafter, Coverage([Chain(length)], 2, 2))
        before = draft.passes
        assert len(list(recorder.conversation(PROMPT, 0, lambda turn, before: [1, 2, 3], GENERATION, frozenset()))) == 1
        passes[length] = draft.passes - before
    assert passes[6] <= passes[1] + 1


def test_a_loaded_turn_equals_the_saved_one(folder, recording):
    (saved,) = record([Chain(3)], KeyedSampling(0.7))[:1]
    ((loaded,),) = recording.turns.values()

    assert recording.bytes == (folder / "turns-00000.parquet").stat().st_size
    for name, value in replace(saved, turns=1).to_row().items():
        np.testing.assert_array_equal(loaded.to_row()[name], value, err_msg=name)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", r"is damaged \(Invalid JSON.*record it"),
        ('{"schema_version": 99}', "must have schema_version 1, got 99.*record it"),
        ('{"schema_version": 1}', "must have noise_version 2, got None.*record it"),
        ({"made_of": 5}, r"is damaged \(made_of: Input should be a valid dictionary\); record it"),
        ({"files": {"turns.parquet": {"bytes": 1}}}, r"is damaged \(files.turns.parquet.sha256: Field required"),
    ],
)
def test_a_damaged_manifest_is_refused(recording, tmp_path, content, sentence):
    if isinstance(content, dict):
        fields = json.loads((recording.folder / "recording.json").read_text())
        content = json.dumps({**fields, **content})
    (tmp_path / "recording.json").write_text(content)
    with pytest.raises(RecordingError, match=sentence):
        Recording(tmp_path)


@pytest.mark.parametrize(
    ("section", "key", "value", "sentence"),
    [
        ("tokenizer", "vocabulary_size", 7, "another tokenizer (vocabulary_size 12, and the configured one has 7)"),
        ("target", "weights_sha256", "d" * 64, "another target (weights_sha256 bbbbbbbbbbbb..., and the"),
        ("draft", "dtype", "bfloat16", "another draft (dtype float32, and the configured one has bfloat16)"),
    ],
)
def test_other_models_are_refused(recording, section, key, value, sentence):
    recording.manifest.fingerprint = FINGERPRINT
    given = {**FINGERPRINT, section: {**FINGERPRINT[section], key: value}}
    with pytest.raises(RecordingError) as refused:
        recording.check_fingerprint(given)
    assert sentence in str(refused.value)
    assert str(refused.value).endswith(": record with the configured pair")


def test_another_law_is_refused_and_the_same_law_is_not(recording):
    with pytest.raises(RecordingError, match=r"verifier\.temperature 0\.7, and the configured one is 0\.0: record"):
        replayed(recording, Chain(2), Greedy())
    assert replayed(recording, Chain(2), RejectionSampling(0.7)).decode(PROMPT).steps > 0


@pytest.mark.parametrize(
    ("changes", "sample", "sentence"),
    [
        ({"prompt_id": "q"}, 0, "no sample 0 of prompt 'q'; record all prompts of the experiment"),
        ({}, 3, "no sample 3 of prompt 'p'"),
        ({"token_ids": (3, 2, 1)}, 0, r"prompt 'p' has other tokens than were recorded.*record again"),
        ({"turns": ("?", "and then?")}, 0, r"prompt 'p' has other turns than were recorded.*record again"),
        ({"turns": ("!",)}, 0, r"prompt 'p' has other turns"),  # its tokens depend on the answers before
    ],
)
def test_a_prompt_that_was_not_recorded_is_refused(recording, changes, sample, sentence):
    recording.manifest.made_of["prompts"] = {"p": hash_of(PROMPT)}
    assert recorded_turns(recording, PROMPT)
    with pytest.raises(RecordingError, match=sentence):
        replayed(recording, Chain(2)).decode(replace(PROMPT, **changes), sample)


@pytest.mark.parametrize(
    ("builder", "drafter", "sentence"),
    [
        (
            DySpecGreedy(8, candidates="top-k"),
            lambda: DraftModel(),
            r"new tokens: the draft's \d+ best candidates .*record with a",
        ),
        (
            Chain(2),
            lambda: TokenRecycling(k=5, update="accepted", prefill_update=False),
            r"the target's 5 best tokens after .* target_top_k of at least 5",
        ),
        (
            Chain(2),
            lambda: DraftModel(temperature=0.5),
            r"DraftModel must have temperature None as in the recording, got 0\.5: set the recorded value",
        ),
    ],
)
def test_an_answer_that_was_not_recorded_is_refused(recording, builder, drafter, sentence):
    made = drafter()
    made.use_draft_model(source_for(recording))
    with pytest.raises(RecordingError, match=sentence):
        replayed(recording, builder, drafter=made).decode(PROMPT)


def test_weights_distinguish_a_fine_tuned_model_from_itself():
    model = tiny_llama(0)
    first = weights_fingerprint(model)
    assert first == weights_fingerprint(tiny_llama(0))
    assert first["dtype"] == "float32"
    assert first["parameters"] == sum(values.numel() for values in model.parameters())

    assert weights_fingerprint(tiny_llama(1))["weights_sha256"] != first["weights_sha256"]
    assert weights_fingerprint(tiny_llama(0, torch.bfloat16))["dtype"] == "bfloat16"
    with torch.no_grad():
        for values in model.parameters():
            values += 1e-4
    assert weights_fingerprint(model)["weights_sha256"] != first["weights_sha256"]
