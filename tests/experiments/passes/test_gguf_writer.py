"""The embedded pair and small models as GGUF files; tests/models/test_llama_cpp.py compares what they return."""

import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: pip install 'specexp[llama-cpp]'")
pytest.importorskip("gguf", reason="gguf is not installed: pip install 'specexp[llama-cpp]'")

import transformers
from helpers.small_gguf import tokenizer

from experiments.passes.gguf_writer import write_gguf
from specexp.models.llama_file import LlamaCppError


def test_a_model_without_such_a_form_is_refused_in_a_sentence(tmp_path):
    gpt2 = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=61, n_embd=32, n_layer=1, n_head=2)
    )
    with pytest.raises(LlamaCppError, match="a gpt2 model with its position encoding cannot be written"):
        write_gguf(gpt2, tokenizer(), tmp_path / "x.gguf")
