import numpy as np
import pytest

from specexp.config.artifacts import save_artifact

PATHS = [[0], [1], [0, 0], [0, 1], [0, 0, 0]]
PARTS = {
    "drafter": {"class_path": "TokenRecycling", "init_args": {"k": 4}},
    "builder": {"class_path": "StaticTree", "init_args": {"rank_paths": PATHS}},
    "verifier": {"class_path": "KeyedSampling", "init_args": {"temperature": 0.7}},
    "controller": None,
}


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
    values = np.arange(40, dtype=np.int32).reshape(10, 4) % 10
    return save_artifact(tmp_path / "matrix", "adjacency-matrix", {"matrix.safetensors": {"matrix": values}})
