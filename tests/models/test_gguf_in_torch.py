"""A GGUF file of the Llama family is also a PyTorch model, with the weights that the file has."""

import logging
import os

import numpy as np
import pytest
import torch
from gguf import GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import dequantize
from helpers.small_families import family_model
from helpers.small_gguf import VOCABULARY, small_llama, tokenizer, written, written_model

from specexp import Decoder, load_pair
from specexp.artifacts.fingerprint import fingerprint
from specexp.bench.arm import eos_of
from specexp.models import gguf
from specexp.models.compiled import CompiledModel
from specexp.models.pair import load_tokenizer
from specexp.models.runtime import tell_once
from specexp.models.sources import PairError

PROMPT = tokenizer()("ab ab cd ab").input_ids


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tell_once.cache_clear()
    return tmp_path / "cache/specexp/models"


@pytest.mark.variants(2)
@pytest.mark.parametrize("name", ["Llama", "Qwen2", "Qwen3"])
@pytest.mark.parametrize("settings", [{}, {"tie_word_embeddings": True}], ids=str)
def test_a_written_model_comes_back_bit_by_bit(name, settings):
    read = load_pair(str(written(name, **settings)), target_dtype="float32", mode="eager").target
    own = small_llama(name, **settings)
    with torch.inference_mode():
        got, wanted = (model(torch.tensor([PROMPT])).logits for model in (read, own))
    assert torch.equal(got, wanted)
    assert fingerprint(read) == fingerprint(own)


NEW = {
    "Gemma2": {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0, "query_pre_attn_scalar": 16},
    "Gemma3Text": {
        **{"num_hidden_layers": 6, "layer_types": None, "query_pre_attn_scalar": 16},
        "final_logit_softcapping": None,
    },
    "Phi3": {"hidden_size": 64, "head_dim": 16, "rope_parameters": None},
}


@pytest.mark.variants(1)
@pytest.mark.parametrize("name", NEW)
def test_a_file_of_a_new_family_has_the_logits_of_its_model(name, tmp_path):
    model = family_model(name, vocab_size=VOCABULARY, **NEW[name])
    file = written_model(model, tmp_path / "x.gguf")
    read = load_pair(str(file), target_dtype="float32", mode="eager").target
    text = torch.tensor([[*PROMPT, *range(20, 60)]])  # longer than the windows
    with torch.inference_mode():
        torch.testing.assert_close(read(text).logits, model(text).logits, rtol=0, atol=1e-4)
    CompiledModel(read)


def test_partly_rotated_heads_of_phi_are_refused(tmp_path):
    model = family_model("Phi3", vocab_size=VOCABULARY, **NEW["Phi3"])
    keys = {"phi3.rope.dimension_count": 8}
    file = edited(written_model(model, tmp_path / "a.gguf"), tmp_path / "x.gguf", architecture="phi3", **keys)
    with pytest.raises(PairError, match="it rotates 8 of 16 numbers of a head, which transformers does not read"):
        load_pair(str(file), mode="eager")


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
        f"llama-cpp-python is not installed, so specexp's own passes run {file}",
    ]


def test_a_dry_run_has_no_weights():
    target = load_pair(str(written("Llama")), mode="eager", weights=False).target
    assert {weight.device.type for weight in target.parameters()} == {"meta"}


def test_a_tokenizer_is_read_without_unpacking_the_weights(cache, monkeypatch):
    monkeypatch.setattr(gguf, "find_spec", lambda name: None)  # llama.cpp would not unpack them either
    assert load_tokenizer(str(written("Llama")))("ab").input_ids == tokenizer()("ab").input_ids
    assert not cache.exists()


def edited(source, to, tensors=lambda name: True, added=None, architecture="llama", **values):
    """Copy a GGUF file with some of its tensors and, where a value is None, without a key."""
    reader = GGUFReader(source)
    writer = GGUFWriter(to, architecture)
    for key, field in reader.fields.items():
        if (
            not key.startswith("GGUF.")
            and key != "general.architecture"
            and not {key, key.partition(".")[2]} & {*values}
        ):
            kind, inner = field.types[0], field.types[-1]
            array = kind == GGUFValueType.ARRAY
            if key.startswith("llama."):
                key = key.replace("llama", architecture, 1)
            writer.add_key_value(key, field.contents(), kind, sub_type=inner if array else None)
    for key, value in values.items():
        if value is not None:
            writer.add_uint32(key, value)
    for one in reader.tensors:
        if tensors(one.name):
            writer.add_tensor(one.name, one.data, raw_dtype=one.tensor_type)
    for name, data in (added or {}).items():
        writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return to


@pytest.mark.variants(6)
@pytest.mark.parametrize("dry", [False, True], ids=["run", "dry run"])
@pytest.mark.parametrize("mode", ["eager", "packed"])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tensors": lambda name: name != "blk.1.ffn_up.weight"}, "1 tensor is missing .*layers.1.mlp.up_proj"),
        ({"tensors": lambda name: "blk" not in name}, "18 tensors are missing"),
        (
            {"added": {"blk.0.attn_q.bias": np.ones(32, dtype=np.float32)}},
            "32 numbers that a LlamaForCausalLM does not use, .*blk.0.attn_q.bias",
        ),
        ({"block_count": None}, "its metadata has no llama.block_count: name the model's own file"),
        ({"embedding_length": None}, "its metadata has no llama.embedding_length"),
    ],
    ids=["one", "all layers", "a bias", "no layers", "no width"],
)
def test_every_tensor_of_a_file_is_present_and_used_or_nothing_is_kept(change, said, mode, dry, cache, tmp_path):
    file = edited(written("Llama"), tmp_path / "x.gguf", **change)
    with pytest.raises(PairError, match=said) as caught:
        load_pair(str(file), mode=mode, weights=not dry)
    assert caught.value.argument == "target"
    assert not cache.exists() or not list(cache.iterdir())


@pytest.mark.variants(2)
@pytest.mark.parametrize("mode", ["eager", "auto"])
@pytest.mark.parametrize("role", ["eos", "eot", "eom"])
def test_answers_end_at_every_token_that_the_file_calls_an_end(role, mode, tmp_path):
    whole = Decoder(small_llama("Llama")).generate(PROMPT, max_new_tokens=24).token_ids
    end = whole[5]
    key = f"tokenizer.ggml.{role}_token_id"
    file = edited(written("Llama"), tmp_path / "x.gguf", **{key: end})
    pair = load_pair(str(file), target_dtype="float32", attn_implementation="eager", mode=mode)
    ends = eos_of(pair.tokenizer, pair.target)
    assert end in ends
    answer = Decoder(pair.target).generate(PROMPT, max_new_tokens=24, eos_token_id=ends).token_ids
    assert answer == whole[: whole.index(end) + 1]


@pytest.mark.parametrize("number", [1, 2])
def test_a_shard_is_no_model(number, cache, tmp_path):
    keys = {"split.no": number - 1, "split.count": 2}
    file = edited(written("Llama"), tmp_path / f"x-0000{number}-of-00002.gguf", **keys)
    with pytest.raises(PairError, match=f"it is shard {number} of 2: merge the shards with llama-gguf-split"):
        load_pair(str(file), mode="eager")
    assert not cache.exists()


def test_the_hash_of_weights_covers_all_shards(tmp_path):
    first, second, other = (tmp_path / f"x-0000{number}-of-0000{of}.gguf" for number, of in ((1, 2), (2, 2), (2, 3)))
    for file in (first, second, other):
        file.write_bytes(file.name.encode())
    assert gguf.shards(first) == gguf.shards(second) == [first, second]
    loud = first.with_suffix(".GGUF")
    loud.touch()
    assert gguf.shards(loud) == [loud]
    whole = gguf.sampled_hash(first)
    second.write_bytes(b"other weights")
    assert gguf.sampled_hash(first) != whole


def test_a_folder_that_a_killed_process_left_is_removed(cache):
    left, young = cache / "tmpold", cache / "tmpyoung"
    for folder in (left, young):
        folder.mkdir(parents=True)
    os.utime(left, (0, 0))
    load_pair(str(written("Llama")), mode="eager")
    assert not left.exists()
    assert young.exists()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda file: file.write_bytes(written("Llama").read_bytes()[:400]), "is not a whole GGUF file"),
        (lambda file: file.write_text("hello"), "is not a GGUF file: it does not begin with GGUF"),
        (lambda file: edited(written("Llama"), file, architecture="olmo2"), "architecture olmo2 is not supported yet"),
        (lambda file: edited(written("Llama"), file, architecture="rwkv6"), "architecture rwkv6 is not supported yet"),
        (lambda file: misshapen(file), "its tensors do not have the shapes of a mamba model"),
        (lambda file: file.write_bytes(stretched().read_bytes()), "its rotary positions are scaled, so only"),
    ],
    ids=["truncated", "text", "family", "architecture", "shapes", "stretched"],
)
def test_another_architecture_is_one_sentence(make, said, cache, tmp_path):
    file = tmp_path / "x.gguf"
    make(file)
    with pytest.raises(PairError, match=said) as caught:
        load_pair(str(file), mode="eager")
    assert caught.value.argument == "target"
    assert "\n" not in str(caught.value)
    assert not cache.exists() or not list(cache.iterdir())


def misshapen(file):
    writer = GGUFWriter(file, "mamba")
    writer.add_block_count(1)
    writer.add_embedding_length(8)
    writer.add_context_length(8)
    writer.add_tensor("token_embd.weight", np.zeros((16, 8), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def stretched():
    rope = {"rope_type": "llama3", "rope_theta": 100.0, "factor": 8.0, "low_freq_factor": 1.0}
    more = {"high_freq_factor": 4.0, "original_max_position_embeddings": 32}
    return written("Llama", rope_parameters={**rope, **more})
