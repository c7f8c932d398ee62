"""``python -m specexp.export MODEL --to gguf``: a model as a file that llama.cpp runs."""

import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: pip install 'specexp[llama-cpp]'")
pytest.importorskip("gguf", reason="gguf is not installed: pip install 'specexp[llama-cpp]'")

import torch

from specexp import load_pair
from specexp.deploy.export.command import main


def test_the_embedded_pair_is_written_with_its_draft_and_answers_as_it_did(tmp_path, capsys):
    assert main(["stdlib", "--to", "gguf", "--output", str(tmp_path)]) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / f"{role}.gguf") for role in ("target", "draft")]
    whole = load_pair("stdlib", target_dtype="float32")
    files = load_pair(str(tmp_path / "target.gguf"), str(tmp_path / "draft.gguf"), target_dtype="float32")
    prompt = whole.tokenizer("def main(arguments):\n    ").input_ids
    assert files.tokenizer("def main(arguments):\n    ").input_ids == prompt
    for model, file in ((whole.target, files.target), (whole.draft, files.draft)):
        logits = file.prefill(0, prompt, all_logits=True)
        assert torch.allclose(logits, model(torch.tensor([prompt])).logits[0].detach(), rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["stdlib", "--precision", "q8"], "precision 'q8' is not known; did you mean 'q8_0'"),
        (["model.gguf"], "a GGUF file is given already"),
        (["nowhere/none"], "target 'nowhere/none' is no local folder"),
    ],
)
def test_what_cannot_be_written_is_refused_in_a_sentence(arguments, said, tmp_path, capsys):
    assert main([*arguments, "--to", "gguf", "--output", str(tmp_path / "out")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
