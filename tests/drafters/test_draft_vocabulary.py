"""A reduced head drafts only the tokens of its vocabulary, with the whole head's probabilities scaled to one."""

import json
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
import torch
from helpers.contracts import contract_of
from helpers.on_llama import OnLlama, prefill_with_hidden
from helpers.requests import begun, chain_request
from helpers.small_heads import eagle_head, medusa_head
from helpers.small_models import VOCABULARY, build, small_model

from specexp.builders import Chain, ParametricTree
from specexp.core.context import Context
from specexp.core.language_model import LanguageModel
from specexp.core.loop import Decoder
from specexp.core.tree import NodeKind
from specexp.drafters import DraftModel, Eagle, Medusa
from specexp.drafters.draft_vocabulary import DraftVocabulary
from specexp.models.compiled import CompiledModel
from specexp.testing.drafters import DrafterContract, DrawingDrafterContract
from specexp.verifiers import KeyedSampling

IDS = [40, 3, 5, 8, 1, 13, 21, 34, 55, 2]
"""Most frequent first."""


@cache
def file():
    path = Path(mkdtemp()) / "vocabulary.json"
    path.write_text(json.dumps(IDS), encoding="utf-8")
    return str(path)


def reduced(**options):
    return DraftModel(small_model("Qwen3"), vocabulary=file(), **options)


TestDraftModel = contract_of(DrawingDrafterContract, reduced, OnLlama)
TestCoupled = pytest.mark.slow(contract_of(DrafterContract, lambda: reduced(coupled=True), OnLlama))
TestEagle = contract_of(DrawingDrafterContract, lambda: Eagle(eagle_head(), vocabulary=file()), OnLlama)
TestMedusa = contract_of(DrawingDrafterContract, lambda: Medusa(medusa_head(), vocabulary=file()), OnLlama)


def begun_with(drafter):
    """Return a sequence that a drafter has begun on a small target."""
    target, text = LanguageModel(small_model("Llama")), [1, 2, 3, 4]
    drafter.use_target(target)
    context = Context(text)
    drafter.begin(context, prefill_with_hidden(target, text))
    return context


@pytest.mark.parametrize(
    "make",
    [
        lambda **options: DraftModel(small_model("Qwen3"), **options),
        lambda **options: Eagle(eagle_head(), **options),
        lambda **options: Medusa(medusa_head(), **options),
    ],
    ids=["DraftModel", "Eagle", "Medusa"],
)
@pytest.mark.parametrize("kind", [NodeKind.POINT_MASS, NodeKind.DRAWN])
def test_probabilities_are_those_of_the_whole_head_scaled_to_one(make, kind):
    whole, part = make(), make(vocabulary=file(), vocabulary_size=6)
    kept, answers = sorted(IDS[:6]), []
    for drafter in (whole, part):
        context = begun_with(drafter)
        answers.append(drafter.propose(context, chain_request(context, (5,), VOCABULARY, [0, 1], kind=kind)))
    for row in range(2):
        given = dict(zip(answers[0].tokens[row].tolist(), answers[0].log_probs[row].tolist(), strict=True))
        found = dict(zip(answers[1].tokens[row].tolist(), answers[1].log_probs[row].tolist(), strict=True))
        found.pop(-1, None)
        if kind is NodeKind.POINT_MASS:
            assert sorted(found) == kept
            total = np.log(sum(np.exp(given[token]) for token in kept))
            for token, log_prob in found.items():
                assert log_prob == pytest.approx(given[token] - total, abs=1e-5)
        else:
            assert set(found) <= set(kept)
            wanted = np.zeros(VOCABULARY)
            wanted[kept] = answers[0].q[row][kept] / answers[0].q[row][kept].sum()
            assert answers[1].q[row] == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize("temperature", [None, 0.8])
@pytest.mark.parametrize("tree", [Chain(4), ParametricTree(nodes=8, depth=3)])
def test_a_tree_drafted_in_one_compiled_call_is_that_of_single_passes(tree, temperature, monkeypatch):
    settings = {
        "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 160, "initializer_range": 0.3,
    }  # fmt: skip
    model = build("Llama", settings, dtype=torch.float32)
    trees = []
    for in_one in (True, False):
        if not in_one:
            monkeypatch.setattr(CompiledModel, "draft_tree", lambda *given: None)
        drafter = DraftModel(CompiledModel(model), vocabulary=file(), coupled=temperature is not None)
        verifier = None if temperature is None else KeyedSampling(temperature)
        decoder, seen = Decoder(CompiledModel(model), drafter, tree, verifier), []
        result = decoder.generate([5, 6, 7], max_new_tokens=40, seed=3, observers=[seen.append])
        plain = Decoder(CompiledModel(model), verifier=verifier)
        assert result.token_ids == plain.generate([5, 6, 7], max_new_tokens=40, seed=3).token_ids
        trees.append([outcome.tree.tokens.tolist() for outcome in seen])
    assert trees[0] == trees[1]
    assert {token for tokens in trees[0] for token in tokens[1:]} <= set(IDS)
    assert result.accepted_drafts > 0


@pytest.mark.parametrize(
    "make",
    [
        lambda **options: DraftModel(small_model("Qwen3"), **options),
        lambda **options: Eagle(eagle_head(), **options),
    ],
)
def test_a_size_without_a_file_keeps_the_lowest_ids(make):
    drafter = make(vocabulary_size=7)
    context = begun_with(drafter)
    found = drafter.propose(context, chain_request(context, (5,), VOCABULARY, [0, 1], kind=NodeKind.POINT_MASS))
    assert {token for row in found.tokens.tolist() for token in row} - {-1} == set(range(7))


def test_a_reduced_head_leaves_the_models_own_head_unchanged():
    model = small_model("Qwen3")
    before = model.get_output_embeddings()
    begun(reduced(), [1, 2])
    assert model.get_output_embeddings() is before
    assert model.config.vocab_size == VOCABULARY


@pytest.mark.parametrize("content", ["{}", "[]", "[1, 1]", "[61]", "[-1]", '["a"]', "[1", "[true]"])
def test_a_file_without_ids_is_refused(tmp_path, content):
    (tmp_path / "ids.json").write_text(content)
    with pytest.raises(ValueError, match=r"ids.json: a draft vocabulary must be a"):
        DraftModel(small_model("Qwen3"), vocabulary=str(tmp_path / "ids.json"))
    with pytest.raises(ValueError, match=r"ids.json: a draft vocabulary must be a"):
        begun_with(Medusa(medusa_head(), vocabulary=str(tmp_path / "ids.json")))


def test_more_tokens_than_the_model_has_are_refused():
    with pytest.raises(ValueError, match="vocabulary_size must be at most 7, the model's number of tokens, got 8"):
        DraftVocabulary.read(None, 8, 7)
    assert DraftVocabulary.read(None, 7, 7).kept.tolist() == [*range(7)]
