"""Small files in the original formats, and a tokenizer whose every byte is a token."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.small_models import byte_tokenizer
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from specexp.models.pair import load_tokenizer

TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ["<s>", "<|end|>", "<|user|>", "<|assistant|>"]


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, no chat template, no BOS."""
    return byte_tokenizer(special=SPECIAL, additional_special_tokens=["<|user|>", "<|assistant|>"])


@pytest.fixture
def chat_tokenizer(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """The same with a chat template, in which every message ends with EOS."""
    tokenizer.chat_template = TEMPLATE
    return tokenizer


@pytest.fixture(scope="session")
def embedded_tokenizer() -> PreTrainedTokenizerBase:
    """The tokenizer of the embedded models."""
    return load_tokenizer("stdlib")


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    """Writes rows to a file in the format its name says and gives its path."""

    def write_rows(name: str, rows: list[dict[str, object]]) -> str:
        path = tmp_path / name
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        if name.endswith(".json"):
            path.write_text(json.dumps(rows))
        elif name.endswith(".gz"):
            path.write_bytes(gzip.compress(lines.encode()))
        else:
            path.write_text(lines)
        return str(path)

    return write_rows


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What datasets caches of the small files goes away with the tests."""
    import datasets

    datasets.config.HF_DATASETS_CACHE = tmp_path_factory.mktemp("datasets")
