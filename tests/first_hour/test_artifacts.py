"""Wrong artifacts that ``tests/artifacts`` does not have: loading reports each in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers import made_artifacts as made
from helpers.small_models import FULL_ATTENTION, build

from specexp.artifacts import ArtifactError
from specexp.config.artifacts import load_artifact


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
