"""A composition holds all parts of a winner, and their learned state."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.small_models import small_model

import specexp
from specexp.artifacts.parts import STATE_FILES, state_payloads
from specexp.builders import Chain
from specexp.config.artifacts import load_artifact, save_artifact
from specexp.controllers import ConfidenceThreshold

CHAIN = {
    "drafter": {"class_path": "DraftModel", "init_args": {"coupled": True}},
    "builder": {"class_path": "Chain", "init_args": {"length": 3}},
    "verifier": {"class_path": "KeyedSampling", "init_args": {"temperature": 0.7}},
    "controller": {"class_path": "ConfidenceThreshold", "init_args": {"threshold": 0.3}},
}


def test_every_part_is_made_and_decodes_as_it_was_tuned(tmp_path):
    artifact = load_artifact(save_artifact(tmp_path / "a", "composition", {"parts.json": CHAIN}).folder)
    assert isinstance(artifact.builder, Chain)
    assert isinstance(artifact.controller, ConfidenceThreshold)
    assert artifact.controller.threshold == 0.3

    target, draft = small_model("Qwen2"), small_model("Llama")
    plain = specexp.Decoder(target, None, None, artifact.verifier)
    prompt = [3, 1, 4, 1, 5]
    result = artifact.decoder(target, draft).generate(prompt, max_new_tokens=24, seed=0)
    assert result.token_ids == plain.generate(prompt, max_new_tokens=24, seed=0).token_ids
    assert 0 < result.drafted_nodes <= 3 * result.steps
    with pytest.raises(ValueError, match="DraftModel needs a draft model"):
        load_artifact(artifact.folder).decoder(target)


def test_the_learned_state_of_the_parts_is_saved_with_them(tmp_path):
    recycling = {"class_path": "TokenRecycling", "init_args": {"k": 2, "state": "carry"}}
    heuristic = {"class_path": "Heuristic"}
    matrix = np.array([[1, 2], [2, -1], [0, 1]], dtype=np.int32)
    learned = {"drafter": {"matrix": torch.from_numpy(matrix)}, "controller": {"length": 7}}
    saved = save_artifact(
        tmp_path / "warm",
        "composition",
        {"parts.json": {**CHAIN, "drafter": recycling, "controller": heuristic}, **state_payloads(learned)},
    )
    assert saved.state_bytes == sum((saved.folder / file).stat().st_size for file in STATE_FILES)
    for parts in (load_artifact(saved.folder).parts, saved.new_parts(), saved.new_parts()):
        assert parts.drafter is not None
        assert parts.drafter.state_dict()["matrix"].tolist() == matrix.tolist()
        assert parts.controller.state_dict() == {"length": 7}
