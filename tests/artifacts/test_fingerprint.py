"""An artifact knows the tokenizer and the model it belongs to, and does not mind what makes no difference."""

import warnings
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from specexp.artifacts import Artifact, ArtifactError, fingerprint
from specexp.config.artifacts import load_artifact, save_artifact


def tokenizer(words: str, eos: str = "b") -> PreTrainedTokenizerFast:
    core = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="a"))
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token=eos)


def model(hidden_size: int = 16) -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=4,
            hidden_size=hidden_size,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=32,
        )
    )


@pytest.fixture
def artifact(tmp_path: Path) -> Artifact:
    marks = fingerprint(model(), tokenizer("abcd"))
    return load_artifact(
        save_artifact(tmp_path / "t", "static-tree", {"tree.json": [[0]]}, None, marks).folder
    )


def test_its_own_model_and_tokenizer_pass_in_silence(artifact: Artifact) -> None:
    own = tokenizer("abcd")
    own.pad_token = own.eos_token  # a habit of users, and no other tokenizer
    with warnings.catch_warnings(action="error"):
        artifact.check(model().to(torch.bfloat16), own)


@pytest.mark.parametrize(
    ("words", "eos", "field"),
    [
        ("abce", "b", "vocabulary_sha256"),
        ("acbd", "b", "vocabulary_sha256"),
        ("abcd", "c", "eos_token_id is 1"),
    ],
)
def test_a_foreign_tokenizer_is_refused(artifact: Artifact, words: str, eos: str, field: str) -> None:
    with pytest.raises(ArtifactError, match=rf"fingerprint\.tokenizer\.{field}.*another tokenizer"):
        artifact.check(tokenizer=tokenizer(words, eos))


def test_a_foreign_model_is_refused(artifact: Artifact) -> None:
    with pytest.raises(ArtifactError, match="hidden_size is 16 and the given model's 32"):
        artifact.check(model(32))


def test_what_was_not_recorded_is_not_compared(tmp_path: Path) -> None:
    save_artifact(tmp_path / "t", "static-tree", {"tree.json": [[0]]}).check(
        model(32), tokenizer("xyz"[::-1] + "ab")
    )
