"""The phrases of a phrase cache as an artifact, from which another one starts and which a deployment loads."""

import pytest

from specexp import Decoder
from specexp.artifacts import value_of
from specexp.builders import Chain
from specexp.config.artifacts import load_artifact, save_artifact
from specexp.drafters import PhraseCache, TokenRecycling
from specexp.testing.fakes import hashed_model


def learned(**options):
    """A cache that has seen forty tokens."""
    drafter = PhraseCache(phrase_length=4, initialisation="prompt", state="carry", **options)
    Decoder(hashed_model(11), drafter, Chain(3)).generate([1, 2, 3, 1, 2], max_new_tokens=35, seed=0)
    return drafter


def saved(folder, teacher, **parts):
    payloads = {"phrases.safetensors": teacher.store.state_dict()}
    return save_artifact(
        folder / "phrases", "phrase-cache", payloads | ({"parts.json": parts} if parts else {})
    )


def content(drafter):
    return {key: drafter.store.lookup(key, 99) for key in range(11)}


def test_every_prompt_starts_from_the_saved_phrases(tmp_path):
    teacher = learned()
    artifact = saved(tmp_path, teacher)
    drafter = PhraseCache(
        phrase_length=5, state="preloaded", phrases=value_of("phrase-cache", str(artifact.folder))
    )
    assert content(drafter) == content(teacher)
    decoder = Decoder(hashed_model(11, seed=3), drafter, Chain(3))
    for _ in range(2):
        decoder.generate([4], max_new_tokens=9, seed=0)
        assert content(drafter) != content(teacher)
        drafter.reset()
        assert content(drafter) == content(teacher)


def test_the_artifact_makes_the_cache_it_was_recorded_with(tmp_path):
    inner = {"class_path": "TokenRecycling", "init_args": {"k": 3}}
    arguments = {"drafter": inner, "phrase_length": 4, "ride": 2, "state": "carry"}
    recorded = {"class_path": "PhraseCache", "init_args": arguments}
    drafter = saved(tmp_path, learned(), drafter=recorded).drafter
    assert isinstance(drafter.drafter, TokenRecycling)
    assert (drafter.drafter.k, drafter.ride, drafter.state) == (3, 2, "preloaded")


@pytest.mark.parametrize("parts", [{}, {"drafter": {"class_path": "PromptLookup"}}])
def test_phrases_of_no_recorded_cache_draft_alone(tmp_path, parts):
    teacher = learned()
    drafter = saved(tmp_path, teacher, **parts).drafter
    assert drafter.drafter is None
    assert content(drafter) == content(teacher)


def test_a_deployment_loads_it(tmp_path):
    cache = {"drafter": {"class_path": "DraftModel"}, "phrase_length": 4}
    graft = {"builder": {"class_path": "Chain"}, "phrase_length": 4}
    parts = {
        "drafter": {"class_path": "PhraseCache", "init_args": cache},
        "builder": {"class_path": "Graft", "init_args": graft},
    }
    artifact = load_artifact(saved(tmp_path, learned(), **parts).folder)
    target, draft = hashed_model(11), hashed_model(11, seed=0)
    result = artifact.decoder(target, draft).generate([1, 2, 3], max_new_tokens=20, seed=0)
    assert result.token_ids == Decoder(target).generate([1, 2, 3], max_new_tokens=20, seed=0).token_ids
    assert result.accepted_drafts > 0
