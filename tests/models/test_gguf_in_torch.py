"""A GGUF file of the Llama family is also a PyTorch model, with the weights that the file has."""

import logging

import numpy as np
import pytest
import torch
from gguf import GGUFReader, GGUFWriter, LlamaFileType
from gguf.quants import dequantize
from helpers.small_gguf import small_llama, tokenizer, written

from specexp import Decoder, load_pair
from specexp.artifacts.fingerprint import fingerprint
from specexp.builders import Chain
from specexp.drafters import PromptLookup
from specexp.models import gguf
from specexp.models.runtime import tell_once
from specexp.models.sources import PairError

PROMPT = tokenizer()("ab ab cd ab").input_ids


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tell_once.cache_clear()
    return tmp_path / "cache/specexp/models"


@pytest.mark.parametrize("name", ["Llama", "Qwen2", "Qwen3"])
@pytest.mark.parametrize("settings", [{}, {"tie_word_embeddings": True}], ids=str)
def test_a_written_model_comes_back_bit_by_bit(name, settings):
    pair = load_pair(str(written(name, **settings)), target_dtype="float32", mode="eager")
    with torch.inference_mode():
        got, wanted = (
            model(torch.tensor([PROMPT])).logits for model in (pair.target, small_llama(name, **settings))
        )
    assert torch.equal(got, wanted)


def test_blocks_of_four_bits_are_multiplied_out_exactly():
    file = written("Llama", "q8_0", hidden_size=64, intermediate_size=96)
    model = load_pair(str(file), target_dtype="float32", mode="eager").target
    read = {one.name: dequantize(one.data, one.tensor_type) for one in GGUFReader(file).tensors}
    down = torch.tensor(read["blk.1.ffn_down.weight"])
    assert torch.equal(model.model.layers[1].mlp.down_proj.weight, down)
    assert model.config.weights_from == "Q8_0"


def test_the_mode_chooses_the_runtime_and_one_sentence_states_it(monkeypatch, caplog):
    pytest.importorskip("llama_cpp")
    file = str(written("Llama"))
    for mode in ("auto", "eager"):
        load_pair(file, mode=mode)
    monkeypatch.setattr(gguf, "find_spec", lambda name: None)
    load_pair(file)
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        f"llama.cpp runs {file}; with pair.mode eager or compiled, specexp's own passes run it",
        f"specexp's own passes run {file}",
        f"specexp's own passes run {file}, since llama-cpp-python is not installed",
    ]


def test_it_decodes_losslessly_and_takes_the_artifacts_of_its_model():
    pair = load_pair(str(written("Llama")), target_dtype="float32", mode="eager")
    plain = Decoder(pair.target).generate(PROMPT, max_new_tokens=24)
    drafted = Decoder(pair.target, PromptLookup(), Chain(3)).generate(PROMPT, max_new_tokens=24)
    assert drafted.token_ids == plain.token_ids
    assert fingerprint(pair.target) == fingerprint(small_llama("Llama"))


def test_a_dry_run_reads_no_weights(cache):
    file = str(written("Llama"))
    load_pair(file, mode="eager")
    (folder,) = cache.iterdir()
    (folder / "model.safetensors").unlink()
    assert load_pair(file, mode="eager", weights=False).target.device.type == "meta"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda file: file.write_bytes(written("Llama").read_bytes()[:400]), "is not a whole GGUF file"),
        (lambda file: file.write_text("hello"), "is not a GGUF file: it does not begin with GGUF"),
        (lambda file: other_architecture(file), "GGUF model with architecture rwkv6 is not supported yet"),
        (lambda file: misshapen(file), "its tensors do not have the shapes of a mamba model"),
        (lambda file: file.write_bytes(stretched().read_bytes()), "its rotary positions are scaled, so only"),
    ],
    ids=["truncated", "text", "architecture", "shapes", "stretched"],
)
def test_another_architecture_is_one_sentence(make, said, cache, tmp_path):
    file = tmp_path / "x.gguf"
    make(file)
    with pytest.raises(PairError, match=said) as caught:
        load_pair(str(file), mode="eager")
    assert caught.value.argument == "target"
    assert "\n" not in str(caught.value)
    assert not cache.exists() or not list(cache.iterdir())


def other_architecture(file):
    writer = GGUFWriter(file, "rwkv6")
    writer.add_name("another")
    writer.add_file_type(LlamaFileType.ALL_F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def misshapen(file):
    writer = GGUFWriter(file, "mamba")
    writer.add_block_count(1)
    writer.add_embedding_length(8)
    writer.add_tensor("token_embd.weight", np.zeros((16, 8), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def stretched():
    rope = {"rope_type": "llama3", "rope_theta": 100.0, "factor": 8.0, "low_freq_factor": 1.0}
    more = {"high_freq_factor": 4.0, "original_max_position_embeddings": 32}
    return written("Llama", rope_parameters={**rope, **more})
