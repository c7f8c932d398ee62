"""A study belongs to the content of the files that it names, not to their paths."""

import pytest
import yaml

from specexp.config import load_config
from specexp.sweep.study_config import PIECE, StudyConfig, digest_of, digest_of_files


@pytest.fixture
def config(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model/model.safetensors").write_bytes(b"w" * 1000)
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "one"}\n', encoding="utf-8")
    content = {
        "pair": {"target": str(tmp_path / "model")},
        "data": {"prompts": {"class_path": "OwnPrompts", "init_args": {"path": str(tmp_path / "prompts.jsonl")}}},
        "drafter": {"class_path": "PromptLookup"},
        "builder": {"class_path": "Chain"},
        "verifier": {"class_path": "Greedy"},
        "sweep": {"n_trials": 1, "space": {"builder.init_args.length": {"type": "int", "low": 1, "high": 2}}},
    }
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    return StudyConfig(load_config(tmp_path / "study.yaml"))


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("prompts.jsonl", b'{"prompt": "two"}\n'),
        ("model/model.safetensors", b"w" * 999 + b"v"),
        ("model/new", b""),
    ],
)
def test_another_content_at_the_same_path_is_another_workload(config, tmp_path, file, content):
    before = digest_of(config.workload())
    assert digest_of(config.workload()) == before
    (tmp_path / file).write_bytes(content)
    assert digest_of(config.workload()) != before


def test_a_file_in_the_home_folder_is_content_too(tmp_path, config, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    content = yaml.safe_load((tmp_path / "study.yaml").read_text())
    content["data"]["prompts"]["init_args"]["path"] = "~/prompts.jsonl"
    (tmp_path / "home.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    config = StudyConfig(load_config(tmp_path / "home.yaml"))
    before = digest_of(config.workload())
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "two"}\n', encoding="utf-8")
    assert digest_of(config.workload()) != before


def test_new_weights_of_a_large_file_change_its_digest(tmp_path):
    file = tmp_path / "weights"
    file.write_bytes(bytes(80 * PIECE))
    before = digest_of_files(file)
    file.write_bytes(bytes(79 * PIECE) + b"\1" * PIECE)
    assert digest_of_files(file) != before
