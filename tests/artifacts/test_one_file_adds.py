"""A further kind of artifact, and a further format, is one new file and nothing else."""

from pathlib import Path

import pytest

from specexp.artifacts import formats, kinds
from specexp.config.artifacts import load_artifact, save_artifact
from specexp.export.__main__ import export

KIND = """
from specexp.artifacts.artifact import Artifact
from specexp.artifacts.error import ArtifactError


class ThresholdsArtifact(Artifact):
    kind = "confidence-thresholds"
    required = ("thresholds.json",)

    def read(self, payloads):
        self.thresholds = payloads["thresholds.json"]
        if not isinstance(self.thresholds, list):
            raise ArtifactError(f"{self.folder}: thresholds.json is no list")
"""
FORMAT = """
from specexp.artifacts.export_format import Export, ExportFormat


class Csv(ExportFormat):
    kinds = ("confidence-thresholds",)

    def export(self, artifact):
        return Export(",".join(map(str, artifact.thresholds)))
"""


def test_one_file_adds_a_kind_and_one_a_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "confidence_thresholds.py").write_text(KIND)
    (tmp_path / "comma_separated.py").write_text(FORMAT)
    monkeypatch.setattr(kinds, "__path__", [*kinds.__path__, str(tmp_path)])
    monkeypatch.setattr(formats, "__path__", [*formats.__path__, str(tmp_path)])

    save_artifact(tmp_path / "a", "confidence-thresholds", {"thresholds.json": [0.5, 0.25]})
    assert load_artifact(tmp_path / "a").kind == "confidence-thresholds"
    assert export(tmp_path / "a", "comma-separated") == ("0.5,0.25", "")
    with pytest.raises(ValueError, match=r"thresholds\.json is no list"):
        save_artifact(tmp_path / "b", "confidence-thresholds", {"thresholds.json": 3})
