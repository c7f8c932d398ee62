"""Thresholds are loaded as the parts they were measured with; a field that is missing or wrong is one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.small_models import small_model

import specexp
from specexp.builders import DySpecThreshold
from specexp.config.artifacts import load_artifact, save_artifact
from specexp.controllers import ThresholdTracker
from specexp.drafters import DraftModel
from specexp.verifiers import RejectionSampling

DRAFT = {"temperature": 0.6, "top_k": None, "top_p": 0.9, "coupled": False}
THRESHOLDS = {
    "threshold": 0.03,
    "max_nodes": 48,
    "max_depth": 7,
    "candidates": "drawn",
    "acceptance_power": 0.4,
    "draft": DRAFT,
}
PARTS = {
    "verifier": {"class_path": "RejectionSampling", "init_args": {"temperature": 0.6}},
    "controller": {"class_path": "ThresholdTracker", "init_args": {"budget": 24, "initial": 0.03}},
}


def save(folder: Path, thresholds: Any = THRESHOLDS) -> specexp.artifacts.Artifact:
    return save_artifact(folder / "a", "thresholds", {"thresholds.json": thresholds, "parts.json": PARTS})


def test_every_field_reaches_its_part(tmp_path: Path) -> None:
    drafter, builder, verifier, controller = load_artifact(save(tmp_path).folder).parts

    assert isinstance(builder, DySpecThreshold)
    assert (builder.threshold, builder.max_nodes, builder.max_depth) == (0.03, 48, 7)
    assert builder.acceptance_power == 0.4
    assert builder.kind.name == "DRAWN"
    assert isinstance(drafter, DraftModel)
    assert (drafter.temperature, drafter.top_k, drafter.top_p, drafter.coupled) == (0.6, None, 0.9, False)
    assert isinstance(verifier, RejectionSampling)
    assert isinstance(controller, ThresholdTracker)
    assert (controller.budget, controller.threshold) == (24, pytest.approx(0.03))


def test_it_decodes_with_the_deployments_own_draft_and_not_without(tmp_path: Path) -> None:
    target, draft = small_model("Qwen2"), small_model("Llama")
    saved = save(tmp_path)
    with pytest.raises(ValueError, match=r"DraftModel needs a draft model"):
        saved.decoder(target)

    result = saved.decoder(target, draft).generate([3, 1, 4, 1, 5], max_new_tokens=24, seed=0)
    parts = load_artifact(saved.folder).parts
    assert parts.drafter is not None
    parts.drafter.use_draft_model(draft)
    again = specexp.Decoder(target, *parts).generate([3, 1, 4, 1, 5], max_new_tokens=24, seed=0)
    assert result.drafted_nodes > 0
    assert again.token_ids == result.token_ids
