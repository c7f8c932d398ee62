"""The embedded pair and small models as GGUF files; tests/models/test_llama_cpp.py compares what they return."""

import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: pip install 'specexp[llama-cpp]'")
pytest.importorskip("gguf", reason="gguf is not installed: pip install 'specexp[llama-cpp]'")

import torch
import transformers
from helpers.small_gguf import tokenizer

from experiments.passes.gguf_writer import main, write_gguf
from specexp import load_pair
from specexp.models.llama_file import LlamaCppError


def test_the_embedded_pair_is_written_with_its_draft_and_answers_as_it_did(tmp_path, capsys):
    assert main(["stdlib", str(tmp_path)]) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / f"{role}.gguf") for role in ("target", "draft")]
    whole = load_pair("stdlib", target_dtype="float32")
    files = load_pair(str(tmp_path / "target.gguf"), str(tmp_path / "draft.gguf"), target_dtype="float32")
    prompt = whole.tokenizer("def main(arguments):\n    ").input_ids
    assert files.tokenizer("def main(arguments):\n    ").input_ids == prompt
    for model, file in ((whole.target, files.target), (whole.draft, files.draft)):
        logits = file.prefill(0, prompt, all_logits=True).logits[0]
        assert torch.allclose(logits, model(torch.tensor([prompt])).logits[0].detach(), rtol=0, atol=1e-3)


def test_a_model_without_such_a_form_is_refused_in_a_sentence(tmp_path):
    gpt2 = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=61, n_embd=32, n_layer=1, n_head=2))
    with pytest.raises(LlamaCppError, match="a gpt2 model with its position encoding cannot be written"):
        write_gguf(gpt2, tokenizer(), tmp_path / "x.gguf")
