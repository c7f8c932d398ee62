"""Small files in the original formats, and a tokenizer whose every byte is a token."""

import gzip
import json
from pathlib import Path

import pytest
from helpers.small_models import byte_tokenizer

from specexp.models.pair import load_tokenizer

TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ["<s>", "<|end|>", "<|user|>", "<|assistant|>"]


@pytest.fixture
def tokenizer():
    """One token a byte, no chat template, no BOS."""
    return byte_tokenizer(special=SPECIAL, additional_special_tokens=["<|user|>", "<|assistant|>"])


@pytest.fixture
def chat_tokenizer(tokenizer):
    """The same with a chat template, in which every message ends with EOS."""
    tokenizer.chat_template = TEMPLATE
    return tokenizer


@pytest.fixture(scope="session")
def embedded_tokenizer():
    return load_tokenizer("stdlib")


@pytest.fixture
def write(tmp_path: Path):
    """Writes rows to a file in the format of its name and gives its path."""

    def write_rows(name, rows):
        path = tmp_path / name
        lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
        if name.endswith(".json"):
            lines = json.dumps(rows).encode()
        path.write_bytes(gzip.compress(lines) if name.endswith(".gz") else lines)
        return str(path)

    return write_rows


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Remove with the tests what datasets caches of small files."""
    import datasets

    datasets.config.HF_DATASETS_CACHE = tmp_path_factory.mktemp("datasets")
