"""What a study's candidate is as an artifact, and as none."""

from pathlib import Path
from typing import Any

import pytest

from specexp.artifacts import ArtifactError
from specexp.artifacts.kinds.compositions import StaticTreeArtifact, ThresholdsArtifact
from specexp.artifacts.kinds.learned import AdjacencyMatrixArtifact
from specexp.config.artifacts import load_artifact, save_artifact
from specexp.core.tree import NodeKind

PATHS = [[0], [1], [0, 0]]
PARTS: dict[str, Any] = {
    "drafter": {"class_path": "DraftModel", "init_args": {"temperature": 0.6}},
    "builder": {"class_path": "KConfig", "init_args": {"widths": [2, 1], "candidates": "drawn"}},
    "verifier": None,
    "controller": None,
}


def test_a_drawn_tree_is_drawn_again(tmp_path: Path) -> None:
    payloads = StaticTreeArtifact.payloads_of(PARTS, {"rank_paths": PATHS, "candidates": "drawn"})
    assert payloads is not None
    saved = save_artifact(tmp_path / "a", "static-tree", payloads)
    assert load_artifact(saved.folder).builder.kind is NodeKind.DRAWN


def test_what_a_kind_cannot_say_is_of_another_kind() -> None:
    drawn = {"rank_paths": PATHS, "candidates": "drawn with replacement"}
    assert StaticTreeArtifact.payloads_of(PARTS, drawn) is None
    assert StaticTreeArtifact.payloads_of(PARTS, {"nodes": 64}) is None
    assert ThresholdsArtifact.payloads_of(PARTS, drawn) is None
    assert AdjacencyMatrixArtifact.payloads_of(PARTS, drawn) is None


def test_candidates_that_do_not_exist_are_one_sentence(tmp_path: Path) -> None:
    builder = {"class_path": "StaticTree", "init_args": {"rank_paths": PATHS, "candidates": "sampled"}}
    payloads = {"tree.json": PATHS, "parts.json": {**PARTS, "builder": builder}}
    with pytest.raises(
        ArtifactError, match=r"builder\.init_args\.candidates is 'sampled'; allowed is one of"
    ):
        save_artifact(tmp_path / "a", "static-tree", payloads)
