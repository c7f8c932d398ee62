"""Whatever is wrong with an artifact, loading it says so in one sentence with the folder and the field."""

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from helpers.examples import examples
from helpers.made_artifacts import places, replaced
from hypothesis import HealthCheck, given, strategies as st
from safetensors.numpy import save

from specexp.artifacts import Artifact, ArtifactError, value_of
from specexp.artifacts.manifest import sha256
from specexp.config.artifacts import load_artifact

Edit = Callable[[Artifact, Callable[[dict[str, Any]], object]], None]
SETTINGS = examples(150, suppress_health_check=[HealthCheck.function_scoped_fixture])
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def refuses(artifact: Artifact, message: str) -> None:
    with pytest.raises(ArtifactError, match=message) as caught:
        load_artifact(artifact.folder)
    assert "\n" not in str(caught.value)
    assert str(artifact.folder) in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.pop("kind"), "kind is missing"),
        (lambda f: f.update(kind=3), "kind must be a text, got 3"),
        (lambda f: f.update(kind="static-three"), "did you mean 'static-tree'"),
        (lambda f: f.update(schema_version=2), "schema_version is 2"),
        (lambda f: f.update(schema_version=True), "schema_version is True"),
        (lambda f: f["provenance"].pop("metrics"), "provenance.metrics is missing"),
        (
            lambda f: f["provenance"]["metrics"]["speedup"].update(low="x"),
            "metrics.speedup.low must be a number, got 'x'",
        ),
        (lambda f: f["provenance"].update(runtime=3), "provenance.runtime must be a text, got 3"),
        (
            lambda f: f["payloads"]["tree.json"].update(sha256="0"),
            "tree.json does not have the recorded sha256",
        ),
        (
            lambda f: f["fingerprint"].update(tokeniser={}),
            "fingerprint.tokeniser must be 'tokenizer' or 'model'",
        ),
        (lambda f: f["fingerprint"].update(model=[]), "fingerprint.model must be an object, got \\[\\]"),
        (lambda f: f["payloads"]["tree.json"].pop("sha256"), "payloads.tree.json.sha256 is missing"),
        (
            lambda f: f["payloads"]["tree.json"].update(sha256="0" * 64),
            "tree.json does not have the recorded sha256",
        ),
        (lambda f: f["payloads"]["tree.json"].update(bytes=1), "1 are recorded"),
        (lambda f: f["payloads"].pop("tree.json"), "payloads has no 'tree.json'"),
        (
            lambda f: f["payloads"].update({"../../etc/x.json": {}}),
            r"payloads\.\.\./\.\./etc/x\.json: must be a plain",
        ),
        (lambda f: f["payloads"].update({"/etc/passwd": {}}), "payloads./etc/passwd: must be"),
        (lambda f: f["payloads"].update({"c:\\x.json": {}}), "must be a plain"),
    ],
)
def test_a_wrong_field_is_named(
    tree: Artifact, edit: Edit, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    edit(tree, change)
    refuses(tree, message)


def test_a_missing_manifest(tree: Artifact) -> None:
    (tree.folder / "artifact.json").unlink()
    refuses(tree, "artifact.json is missing")


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"kind": ' + "[" * 100_000, "\ud800"])
def test_a_manifest_that_is_no_object(tree: Artifact, text: str) -> None:
    (tree.folder / "artifact.json").write_bytes(text.encode(errors="surrogatepass"))
    refuses(tree, "artifact.json (is not JSON|must be an object|is nested)")


def test_a_changed_manifest(tree: Artifact) -> None:
    file = tree.folder / "artifact.json"
    file.write_text(file.read_text().replace("1.4", "9.4"))
    refuses(tree, "sha256 does not match")


def test_a_missing_payload(tree: Artifact) -> None:
    (tree.folder / "tree.json").unlink()
    refuses(tree, "payload tree.json is missing")


def test_a_truncated_matrix(matrix: Artifact, edit: Edit) -> None:
    file = matrix.folder / "matrix.safetensors"
    file.write_bytes(file.read_bytes()[:-4])
    refuses(matrix, "truncated")

    data = file.read_bytes()
    edit(matrix, lambda f: f["payloads"].update({file.name: {"sha256": sha256(data), "bytes": len(data)}}))
    refuses(matrix, "not a whole safetensors file")


def test_another_kind_where_a_tree_is_expected(tree: Artifact, matrix: Artifact) -> None:
    with pytest.raises(ArtifactError, match="'static-tree' is expected"):
        value_of("static-tree", str(matrix.folder))
    with pytest.raises(ArtifactError, match="'adjacency-matrix' is expected"):
        value_of("adjacency-matrix", str(tree.folder))


@pytest.mark.parametrize(
    "alias", ["{}", "[]", "x", '{"version": "../v1"}', '{"version": "v9"}', '{"version": 1}']
)
def test_a_damaged_alias(tree: Artifact, alias: str) -> None:
    file = tree.folder.parent / "best.json"
    file.write_text(alias)
    with pytest.raises(ArtifactError, match=r"best\.json"):
        load_artifact(tree.folder.parent / "best")


def test_a_folder_that_is_not_there_names_what_is(tree: Artifact) -> None:
    with pytest.raises(ArtifactError, match="has best, latest, v1"):
        load_artifact(tree.folder.parent / "bset")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"class_path": "TokenRecyclin"}, "did you mean 'TokenRecycling'"),
        (
            {"class_path": "specexp.drafters.TokenRecycling", "init_args": {"k": 0}},
            "must be >= 1, got",
        ),
        ({"class_path": "TokenRecycling", "init_args": {"width": 3}}, "width"),
        ({"class_path": "subprocess.Popen", "init_args": {"args": ["true"]}}, "is not a Drafter"),
        ({"class_path": "PromptLookup", "init_args": {"max_ngram": 1, "min_ngram": 3}}, "above max_ngram"),
    ],
)
def test_a_part_that_cannot_be_made(tree: Artifact, edit: Edit, spec: dict[str, Any], message: str) -> None:
    data = json.dumps({"drafter": spec}).encode()
    (tree.folder / "parts.json").write_bytes(data)
    edit(tree, lambda f: f["payloads"].update({"parts.json": {"sha256": sha256(data), "bytes": len(data)}}))

    with pytest.raises(ArtifactError, match=message) as caught:
        _ = load_artifact(tree.folder).parts
    assert "parts.json: " in str(caught.value)
    assert "drafter" in str(caught.value)
    assert "\n" not in str(caught.value)


def copy(artifact: Artifact) -> Path:
    damaged = artifact.folder.parent / "damaged"
    shutil.rmtree(damaged, ignore_errors=True)
    return Path(shutil.copytree(artifact.folder, damaged))


@SETTINGS
@given(data=st.data())
def test_any_damaged_byte_is_refused_or_without_effect(
    tree: Artifact, matrix: Artifact, data: st.DataObject
) -> None:
    artifact = data.draw(st.sampled_from([tree, matrix]))
    damaged = copy(artifact)
    file = data.draw(st.sampled_from(sorted(damaged.iterdir())))
    content = bytearray(file.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content[at] = data.draw(st.integers(0, 255))
    else:
        del content[at:]
    file.write_bytes(content)
    try:
        loaded = load_artifact(damaged)
    except ArtifactError:
        return
    assert loaded.provenance == artifact.provenance
    assert loaded.fingerprint == artifact.fingerprint
    assert loaded.recorded == artifact.recorded


@SETTINGS
@given(data=st.data())
def test_any_forged_value_is_refused_or_harmless(tree: Artifact, edit: Edit, data: st.DataObject) -> None:
    damaged = load_artifact(copy(tree))
    name = data.draw(st.sampled_from(["artifact.json", "tree.json", "parts.json"]))
    content = json.loads((damaged.folder / name).read_text())
    content = replaced(content, data.draw(st.sampled_from(places(content))), data.draw(JSON_VALUES))
    raw = json.dumps(content).encode()
    if name == "artifact.json":
        (damaged.folder / name).write_bytes(raw)
        if isinstance(content, dict):
            try:
                edit(damaged, lambda fields: None)
            except ValueError:  # NaN: cannot be hashed, stays as written
                (damaged.folder / name).write_bytes(raw)
    else:
        (damaged.folder / name).write_bytes(raw)
        edit(damaged, lambda f: f["payloads"].update({name: {"sha256": sha256(raw), "bytes": len(raw)}}))
    with suppress(ArtifactError):  # any other exception fails
        _ = load_artifact(damaged.folder).parts


@SETTINGS
@given(raw=st.binary(max_size=200), valid=st.booleans())
def test_any_bytes_as_a_matrix_are_refused(matrix: Artifact, edit: Edit, raw: bytes, valid: bool) -> None:
    import numpy as np

    data = save({"matrix": np.frombuffer(raw, np.uint8)}) if valid and raw else raw
    damaged = load_artifact(copy(matrix))
    file = damaged.folder / "matrix.safetensors"
    file.write_bytes(data)
    edit(damaged, lambda f: f["payloads"].update({file.name: {"sha256": sha256(data), "bytes": len(data)}}))
    with pytest.raises(ArtifactError):
        load_artifact(damaged.folder)
