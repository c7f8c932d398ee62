"""Which candidates of a study leave a table or phrases."""

import pytest

from specexp.artifacts.kinds.learned import PhraseCacheArtifact, QTableArtifact
from specexp.controllers import QLearning
from specexp.drafters.phrases import PhraseStore


@pytest.mark.parametrize(("name", "leaves"), [("QLearning", True), ("Fixed", False)])
def test_a_table_is_left_by_q_learning_that_learned(name, leaves):
    parts = {"controller": {"class_path": name, "init_args": {}}}
    learned = {"learned": {"controller": QLearning(draft_cost=0.1).state_dict(), "drafter": {}}}
    assert (QTableArtifact.payloads_of(parts, learned) is not None) == leaves
    assert QTableArtifact.payloads_of(parts, {}) is None


@pytest.mark.parametrize(("name", "leaves"), [("PhraseCache", True), ("DraftModel", False)])
def test_phrases_are_left_by_a_cache_that_learned(name, leaves):
    store = PhraseStore(5, 10, 3)
    store.insert(1, [2, 3])
    parts = {"drafter": {"class_path": name, "init_args": {}}}
    payloads = PhraseCacheArtifact.payloads_of(parts, {"learned": {"drafter": store.state_dict()}})
    assert (payloads is not None) == leaves
    if payloads is not None:
        assert payloads["phrases.safetensors"]["keys"].tolist() == [1]
