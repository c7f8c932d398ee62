"""Wrong artifacts that ``tests/artifacts`` does not have: loading reports each in one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import made_artifacts as made
from helpers.small_models import FULL_ATTENTION, build

from specexp.artifacts import ArtifactError
from specexp.config.artifacts import load_artifact


def declared(name: str) -> Callable[[Path], object]:
    """One more payload in the manifest."""

    def change(folder: Path) -> None:
        file = folder / "artifact.json"
        fields = json.loads(file.read_text())
        fields["payloads"][name] = {"sha256": "0" * 64, "bytes": 4}
        file.write_text(json.dumps(fields))
        made.rehash(folder)

    return change


def part(family: str, class_path: str, **init_args: Any) -> Callable[[Path], object]:
    """Another part in ``parts.json``."""

    def change(folder: Path) -> None:
        recorded = json.loads((folder / "parts.json").read_text())
        recorded[family] = {"class_path": class_path, "init_args": init_args}
        made.rewrite(folder, "parts.json", recorded)

    return change


@pytest.mark.parametrize(
    ("kind", "change", "sentence"),
    [
        ("static-tree", declared("drafter.pkl"), "names 'drafter.pkl'; a plain *.json or *.safetensors name"),
        ("static-tree", declared("matrix.safetensors"), "which a static-tree does not hold"),
        ("static-tree", part("builder", "Chain", length=2), "both files must hold the same one"),
        (
            "static-tree",
            lambda folder: made.rewrite(folder, "tree.json", [[-1]]),
            "tree.json: 0.0 must be an integer >= 0, got -1",
        ),
        ("static-tree", lambda folder: made.rewrite(folder, "tree.json", [[0, 1]]), "[0] is missing"),
        (
            "static-tree",
            lambda folder: made.rewrite(folder, "parts.json", {"draftr": None}),
            "mean 'drafter'",
        ),
        ("thresholds", part("builder", "Chain"), "builder is recorded; its own payload alone states it"),
        ("adjacency-matrix", part("drafter", "TokenRecycling", k=7), "k is 7"),
    ],
)
def test_a_changed_artifact(
    kind: str, change: Callable[[Path], object], sentence: str, tmp_path: Path
) -> None:
    folder = made.save(tmp_path, kind)
    change(folder)
    with pytest.raises(ArtifactError) as caught:
        load_artifact(folder)
    assert sentence in str(caught.value)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_name_of_no_version(tmp_path: Path) -> None:
    folders = made.save(tmp_path, "static-tree").parent
    (folders / "best.json").unlink()
    with pytest.raises(ArtifactError, match=r"best\.json is missing; name one of latest, v1"):
        load_artifact(folders)
    with pytest.raises(ArtifactError, match="wandb:"):
        load_artifact("wandb:x")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [(("stdlib",), "'stdlib' is a str"), ((None,), "None is a NoneType"), (("model", "x"), "'x' is a str")],
)
def test_no_model(given: tuple[Any, ...], sentence: str, tmp_path: Path) -> None:
    model = build("Llama", {**FULL_ATTENTION["Llama"], "vocab_size": 40})
    artifact = load_artifact(made.save(tmp_path, "static-tree"))
    with pytest.raises(
        ValueError, match=f"a model was expected and {sentence}: load one with specexp.load_p"
    ):
        artifact.decoder(*(model if one == "model" else one for one in given))


@pytest.mark.parametrize("trust", [3, [1]], ids=str)
def test_trust_in_nothing(trust: Any, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"trust is .*; names of installed packages such as \('my_pack"):
        load_artifact(made.save(tmp_path, "static-tree"), trust=trust)
