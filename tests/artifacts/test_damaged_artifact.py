"""Loading a damaged artifact raises one sentence with the folder and the field."""

import json

import pytest
from helpers.made_artifacts import refuses, rewrite

from specexp.artifacts import ArtifactError, value_of
from specexp.artifacts.manifest import canonical_json, sha256
from specexp.config.artifacts import load_artifact


def forge(artifact, change):
    """Change the fields of an ``artifact.json`` and make its own hash right again."""
    file = artifact.folder / "artifact.json"
    fields = json.loads(file.read_text())
    change(fields)
    fields.pop("sha256", None)
    file.write_text(json.dumps({**fields, "sha256": sha256(canonical_json(fields))}))


SHA = "payload tree.json is changed or damaged: its sha256 differs"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.pop("kind"), "kind is missing"),
        (lambda f: f.update(kind=3), "kind must be a text, got 3"),
        (lambda f: f.update(kind="static-three"), "did you mean 'static-tree'"),
        (lambda f: f.update(schema_version=2), "schema_version must be 1, got 2"),
        (lambda f: f.update(schema_version=True), "schema_version must be 1, got True"),
        (lambda f: f["provenance"].pop("metrics"), "provenance.metrics is missing"),
        (lambda f: f["provenance"]["metrics"]["speedup"].update(low="x"), r"speedup\.low must be a number, got 'x'"),
        (lambda f: f["provenance"].update(runtime=3), "provenance.runtime must be a text, got 3"),
        (lambda f: f["fingerprint"].update(tokeniser={}), "fingerprint.tokeniser is unknown; did you mean 'tokenizer'"),
        (lambda f: f["fingerprint"].update(model=[]), "fingerprint.model must be an object, got \\[\\]"),
        (lambda f: f["payloads"]["tree.json"].pop("sha256"), "payloads.tree.json.sha256 is missing"),
        (lambda f: f["payloads"]["tree.json"].update(sha256="0" * 64), SHA),
        (lambda f: f["payloads"]["tree.json"].update(bytes=1), "payload tree.json has .* bytes; at most 1 are allowed"),
        (lambda f: f["payloads"].pop("tree.json"), "payloads has no 'tree.json'"),
        (lambda f: f["payloads"].update({"../../etc/x.json": {}}), r"payloads\.\.\./\.\./etc/x\.json: must be a plain"),
        (lambda f: f["payloads"].update({"/etc/passwd": {}}), "payloads./etc/passwd: must be"),
    ],
)  # fmt: skip
def test_a_wrong_field_is_named(tree, change, message):
    forge(tree, change)
    refuses(tree.folder, message)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"kind": ' + "[" * 100_000, "\ud800"])
def test_a_manifest_that_is_no_object(tree, text):
    (tree.folder / "artifact.json").write_bytes(text.encode(errors="surrogatepass"))
    refuses(tree.folder, "artifact.json (is not JSON|must be an object|is nested too deeply)")


def test_a_changed_missing_or_truncated_file(tree, matrix):
    file = tree.folder / "artifact.json"
    content = file.read_text()
    file.write_text(content.replace("1.4", "9.4"))
    refuses(tree.folder, "sha256 does not match")
    file.write_text(content)
    (tree.folder / "tree.json").unlink()
    refuses(tree.folder, "payload tree.json is missing")
    file.unlink()
    refuses(tree.folder, "artifact.json is missing")
    file = matrix.folder / "matrix.safetensors"
    data = file.read_bytes()[:-4]
    file.write_bytes(data)
    refuses(matrix.folder, "matrix.safetensors is changed or damaged")
    rewrite(matrix.folder, file.name, data)
    refuses(matrix.folder, "not a complete safetensors file")


def test_another_kind_where_a_tree_is_expected(matrix):
    with pytest.raises(ArtifactError, match="kind must be 'static-tree' here, got 'adjacency-matrix'"):
        value_of("static-tree", str(matrix.folder))


@pytest.mark.parametrize("alias", ["[]", "x", '{"version": "../v1"}', '{"version": "v9"}', '{"version": 1}'])
def test_a_damaged_alias(tree, alias):
    file = tree.folder.parent / "best.json"
    file.write_text(alias)
    with pytest.raises(ArtifactError, match=r"best\.json"):
        load_artifact(tree.folder.parent / "best")


def test_a_missing_version_is_answered_with_the_names_that_exist(tree):
    with pytest.raises(ArtifactError, match="has best, v1"):
        load_artifact(tree.folder.parent / "bset")
    (tree.folder.parent / "best.json").unlink()
    with pytest.raises(ArtifactError, match=r"best\.json is missing; name one of v1"):
        load_artifact(tree.folder.parent)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"class_path": "TokenRecyclin"}, "did you mean 'TokenRecycling'"),
        ({"class_path": "specexp.drafters.TokenRecycling", "init_args": {"k": 0}}, "must be >= 1, got"),
        ({"class_path": "TokenRecycling", "init_args": {"width": 3}}, "width"),
        ({"class_path": "subprocess.Popen", "init_args": {"args": ["true"]}}, "is not a Drafter"),
        ({"class_path": "PromptLookup", "init_args": {"max_ngram": 1, "min_ngram": 3}}, "at most max_ngram 1, got 3"),
    ],
)
def test_a_part_that_cannot_be_made(tree, spec, message):
    rewrite(tree.folder, "parts.json", {"drafter": spec})
    with pytest.raises(ArtifactError, match=message) as caught:
        _ = load_artifact(tree.folder).parts
    assert "parts.json: " in str(caught.value)
    assert "drafter" in str(caught.value)
    assert "\n" not in str(caught.value)
