from pathlib import Path

import pytest

from specexp.config import load_config


@pytest.fixture
def write(tmp_path):
    def write_file(text: str, name: str = "mine.yaml") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write_file


COMPOSITION = """\
drafter: {class_path: TokenRecycling, init_args: {k: 8}}
builder: {class_path: ParametricTree, init_args: {nodes: 16}}
"""


@pytest.fixture
def composition(write):
    return load_config(write(COMPOSITION))
