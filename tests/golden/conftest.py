"""The golden pair and its prompts, as a file that is laid on top of an experiment."""

import json
from pathlib import Path

import pytest
import yaml
from helpers.golden import GOLDEN, write_pair

PROMPTS = GOLDEN / "prompts.jsonl"


@pytest.fixture(scope="session")
def golden_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folders of target and draft."""
    texts = [json.loads(line)["prompt"] for line in PROMPTS.read_text().splitlines()]
    return write_pair(tmp_path_factory.mktemp("golden_pair"), texts)


@pytest.fixture
def setup(tmp_path: Path, golden_pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with the pair and the prompts, in a working directory of the test's own; one thread, no tracking."""
    monkeypatch.chdir(tmp_path)
    target, draft = map(str, golden_pair)
    precisions = {"target_dtype": "float32", "draft_dtype": "float32"}
    prompts = {"class_path": "OwnPrompts", "init_args": {"path": str(PROMPTS)}}
    file = tmp_path / "setup.yaml"
    sections = {
        "pair": {"target": target, "draft": draft, **precisions, "device": "cpu", "mode": "eager"},
        "data": {"prompts": prompts, "max_prompts": 3, "shuffle_seed": None, "chat_template": False},
        "generation": {"max_new_tokens": 24, "seed": 0, "threads": 1},
        "tracking": {"mode": "disabled"},
        "trainer": {"enable_progress_bar": False},
        "output": "runs",
    }
    file.write_text(yaml.safe_dump(sections))
    return file
