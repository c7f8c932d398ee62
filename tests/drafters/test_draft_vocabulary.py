"""A reduced head drafts only the tokens of its vocabulary, with the whole head's probabilities scaled to one."""

import json
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
from helpers.contracts import contract_of
from helpers.on_llama import OnLlama, begun_on
from helpers.requests import begun, chain_request
from helpers.small_heads import eagle_head, medusa_head
from helpers.small_models import VOCABULARY, small_model

from specexp.core.language_model import LanguageModel
from specexp.core.tree import NodeKind
from specexp.drafters import DraftModel, Eagle, Medusa
from specexp.drafters.draft_vocabulary import DraftVocabulary
from specexp.testing.drafters import DrafterContract, DrawingDrafterContract

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
    return begun_on(LanguageModel(small_model("Llama")), drafter, [1, 2, 3, 4])


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
