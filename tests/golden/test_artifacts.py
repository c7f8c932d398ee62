"""Artifacts of every kind are written as before, and those written before are read.

``artifacts/`` holds one of each kind. ``SPECEXP_GOLDEN=write`` leaves these files alone: later code must read them.
"""

import json
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.golden import GOLDEN, check, differences
from safetensors.numpy import load_file

import specexp
from specexp.config.artifacts import save_artifact

FOLDERS = sorted((GOLDEN / "artifacts").iterdir())
FAMILIES = ("drafter", "builder", "verifier", "controller")
VOLATILE = ("created", "sha256")
GIVEN = ("study", "trial", "metrics")
"""Fields of the provenance that the caller gives; the others depend on machine and time."""
assert FOLDERS
each_kind = pytest.mark.parametrize("folder", FOLDERS, ids=[folder.name for folder in FOLDERS])


def _payloads(folder: Path) -> dict[str, Any]:
    files = (file for file in sorted(folder.iterdir()) if file.name != "artifact.json")
    return {file.name: load_file(file) if file.suffix == ".safetensors" else _json(file) for file in files}


def _json(file: Path) -> Any:
    return json.loads(file.read_text())


def _manifest(folder: Path) -> dict[str, Any]:
    manifest = _json(folder / "artifact.json")
    for name in VOLATILE:
        manifest.pop(name)
    manifest["provenance"] = {name: manifest["provenance"][name] for name in GIVEN}
    return dict(manifest)


def _plain(value: Any) -> Any:
    """Arrays, tensors and dataclasses as lists and mappings."""
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value.tolist() if hasattr(value, "tolist") else value


@each_kind
def test_an_artifact_of_today_is_read(folder: Path) -> None:
    loaded = specexp.load_artifact(folder)

    parts = {name: getattr(loaded, name) for name in FAMILIES if name in loaded.recorded}
    content = {
        "kind": loaded.kind,
        "recorded": dict(loaded.recorded),
        "execution": loaded.execution_spec,
        "value": _plain(getattr(loaded, "value", None)),
        "parts": {name: part and type(part).__name__ for name, part in parts.items()},
        "state": {name: _plain(part.state_dict()) for name, part in parts.items() if hasattr(part, "state_dict")},
    }
    check(f"artifacts/{folder.name}", content)


@each_kind
def test_an_artifact_is_written_as_today(folder: Path, tmp_path: Path) -> None:
    expected, payloads = _manifest(folder), _payloads(folder)

    given = payloads, expected["provenance"], expected["fingerprint"]
    written = save_artifact(tmp_path / folder.name, folder.name, *given).folder

    assert list(differences(expected, _manifest(written))) == []
    again = _payloads(written)
    assert again.keys() == payloads.keys()
    for name, content in payloads.items():
        if name.endswith(".safetensors"):
            np.testing.assert_equal(again[name], content)
        else:
            assert again[name] == content
