import pytest
from helpers import made_artifacts as made

from specexp.config.artifacts import load_artifact, save_artifact

PATHS = [[0], [1], [0, 0], [0, 1], [0, 0, 0]]
PARTS = {**made.PARTS, "builder": {"class_path": "StaticTree", "init_args": {"rank_paths": PATHS}}}


@pytest.fixture
def tree(tmp_path):
    """A whole static tree."""
    return save_artifact(
        tmp_path / "tree_shape",
        "static-tree",
        {"tree.json": PATHS, "parts.json": PARTS},
        {"study": "tree_shape", "trial": 7, "metrics": {"speedup": {"value": 1.4, "low": 1.3, "high": 1.5}}},
        {"tokenizer": {"vocabulary_sha256": "a" * 64, "eos_token_id": 2}, "model": {"hidden_size": 32}},
    )


@pytest.fixture
def matrix(tmp_path):
    """A whole adjacency matrix of 10 tokens."""
    return load_artifact(made.save(tmp_path, "adjacency-matrix"))
