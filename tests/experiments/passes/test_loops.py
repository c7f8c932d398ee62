"""Other engines' own loops continue a prompt as the model they were made from does, and time each step."""

import pytest
import torch
from helpers.small_gguf import small_llama, tokenizer, written

PROMPT = tokenizer()("ab ab cd ab").input_ids


def continuation(model, count):
    asked = torch.tensor([PROMPT])
    found = model.generate(asked, max_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=0)
    return found[0, len(PROMPT) :].tolist()


@pytest.fixture
def llama_loop():
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: pip install 'specexp[llama-cpp]'")
    pytest.importorskip("gguf", reason="gguf is not installed: pip install 'specexp[llama-cpp]'")
    from experiments.passes.loops import LlamaCppLoop
    from specexp.models.llama_file import LlamaFile

    return LlamaCppLoop(LlamaFile(written("Llama"), "float32", flash_attention=False), 64)


def test_llama_cpps_loop_gives_the_models_own_tokens_again_and_again(llama_loop):
    expected = continuation(small_llama("Llama"), 12)
    for _ in range(2):
        tokens, seconds = llama_loop.continuation(PROMPT, 12)
        assert tokens == expected
        assert len(seconds) == 11
        assert min(seconds) > 0


def test_a_pass_of_llama_cpp_leaves_its_cache_unchanged(llama_loop):
    llama_loop.feed(PROMPT)
    assert llama_loop.pass_seconds([3, 4, 5]) > 0
    assert llama_loop.length == len(PROMPT)
    assert llama_loop.pass_seconds([3]) > 0  # the places behind the prompt are free again


@pytest.mark.slow  # converting the model takes seconds; tests/engines runs the same pipeline
def test_openvinos_pipeline_gives_the_models_own_tokens_again_and_again():
    pytest.importorskip("openvino_genai", reason="OpenVINO GenAI is not installed: pip install 'specexp[openvino]'")
    from experiments.passes.loops import OpenVinoLoop

    model = small_llama("Llama")
    loop = OpenVinoLoop(model, threads=1)
    for _ in range(2):
        tokens, seconds = loop.continuation(PROMPT, 12)
        assert tokens == continuation(model, 12)
        assert len(seconds) == 11
        assert min(seconds) > 0
