"""Passes over the packed blocks of a GGUF file compute the bits of passes over its bfloat16 weights."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.small_gguf import tokenizer, written
from helpers.small_models import FULL_ATTENTION, build

from specexp import load_pair
from specexp.base.kernels import CannotCompileError, cache_folder, library
from specexp.core.latency import LatencyProfile
from specexp.core.tree import TokenTree, TreeShape
from specexp.models import compiled
from specexp.models.compiled import CompiledModel, PackedModel
from specexp.models.llama_weights import _SOURCE as SOURCE, Blocks
from specexp.models.pair import PairError
from specexp.models.runtime import runtime_of
from specexp.profile import roofline
from specexp.testing.runtimes import RuntimeContract

pytest.importorskip("llama_cpp")  # it writes the files
PROMPT = tokenizer()("ab ab cd ab").input_ids
SIZES = {"hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 2, "num_key_value_heads": 1}
PRECISIONS = ["q4_0", "q4_1", "q8_0"]


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        kept, kernels = tmp_path_factory.mktemp("cache"), cache_folder("kernels")
        kernels.mkdir(parents=True, exist_ok=True, mode=0o700)
        (kept / "specexp").mkdir()
        (kept / "specexp" / "kernels").symlink_to(kernels)  # compiled once
        patch.setenv("XDG_CACHE_HOME", str(kept))
        yield


def packed(precision, name="Llama", **settings):
    return load_pair(str(written(name, precision, **SIZES, **settings)), mode="packed").target


def check_bits(plain, small, text, counts):
    """Compare the logits of a prefill, and then of chains with these numbers of rows."""
    assert torch.equal(*(one.prefill(0, text, all_logits=True).logits[0] for one in (plain, small)))
    for rows in counts:
        shape = TreeShape(np.arange(rows) - 1, np.zeros(rows, dtype=np.int64))
        tree = TokenTree(shape, np.arange(rows) * 7 % 250)
        assert torch.equal(*(one.tree_pass([0], [tree]).logits[0] for one in (plain, small))), rows


@pytest.mark.variants(1, "precision")
@pytest.mark.parametrize("precision", PRECISIONS)
class TestPacked(RuntimeContract):
    """A row's logits depend on nothing else in its pass."""

    tolerance = 0.0

    @pytest.fixture(autouse=True)
    def _model(self, precision):
        self.model = packed(precision)

    def runtime(self):
        return PackedModel(self.model)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("name", ["Llama", "Qwen2", "Qwen3"])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.variants(2)
def test_a_packed_pass_has_the_bits_of_the_bfloat16_pass(name, precision, tied):
    model = packed(precision, name, tie_word_embeddings=tied)
    check_bits(CompiledModel(model), PackedModel(model), PROMPT, (1, 2, 5, 12, 13, 30))


def test_it_takes_a_third_of_the_memory():
    model = packed("q4_1")
    plain, small = CompiledModel(model), PackedModel(model)
    (bits,) = small.weight_bytes().values()
    assert bits < 0.4 * plain._weights.matrix_bytes


@pytest.mark.slow
def test_limits_and_their_verdict_count_the_packed_bytes(monkeypatch):
    monkeypatch.setattr(roofline, "_BEYOND", 2**20)
    model = packed("q4_1")
    samples = roofline.limit_samples(model, small := PackedModel(model))
    samples.warm_up()
    for block in samples.blocks(0):
        block()
    limits, (read,) = roofline.roofline_of(samples), small.weight_bytes().values()
    assert limits.weight_bytes == read < limits.parameters  # bfloat16 would be two bytes a parameter
    megabytes = replace(limits, weight_bytes=1000 * read)
    assert f"the weights ({read / 1e3:,.0f} MB)" in roofline.verdict(LatencyProfile("made", {1: 1.0}), megabytes)


def test_numbers_are_rounded_to_bfloat16_once():
    blocks = Blocks(4, torch.tensor([[[0.1]], [[-0.7]]]).half(), torch.arange(32, dtype=torch.uint8)[None] % 16)
    scale, least = torch.tensor([0.1, -0.7]).half().double()
    assert torch.equal(blocks.expanded()[0], (scale * (torch.arange(32) % 16) + least).to(torch.bfloat16))


def test_a_draft_of_another_origin_runs_compiled():
    draft = build("Llama", FULL_ATTENTION["Llama"] | {"head_dim": 16}, dtype=torch.float32)
    assert type(runtime_of(draft, "packed")) is CompiledModel


@pytest.mark.parametrize(
    ("target", "dtype", "sentence"),
    [
        ("stdlib", "bfloat16", "mode 'packed' needs a GGUF file as the target, such as smollm2, in bfloat16"),
        (
            written("Llama", "q8_0", **SIZES),
            "float32",
            "mode 'packed' needs a GGUF file as the target, such as smollm2, in bfloat16",
        ),
    ],
    ids=["no file", "float32"],
)
def test_another_model_is_one_sentence(target, dtype, sentence):
    with pytest.raises(PairError, match=sentence) as caught:
        load_pair(str(target), target_dtype=dtype, mode="packed")
    assert caught.value.argument == "mode"


def test_a_file_without_such_blocks_is_one_sentence():
    model = packed("f32")
    with pytest.raises(CannotCompileError, match=r"needs weights in blocks of Q4_0, Q4_1, Q8_0, but .* has F32: set"):
        PackedModel(model)


def test_changed_weights_are_one_sentence():
    model = packed("q8_0")
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3] += 1
    with pytest.raises(CannotCompileError, match=r"blk.1.ffn_up.weight of .* is not the model's, which was changed"):
        PackedModel(model)


@pytest.mark.parametrize(
    "flag",
    [
        "-DEMULATED_TILES",
        *(pytest.param(flag, marks=pytest.mark.slow) for flag in ("-mno-avx512bf16", "-mno-avx512f", "-mno-fma")),
    ],
)
def test_other_processors_compute_the_same_bits_packed_or_not(flag, monkeypatch):
    kernels = library(SOURCE, ("-DLANES=8", flag) if flag == "-mno-fma" else (flag,))
    monkeypatch.setattr(compiled, "kernels_of", lambda model: kernels)
    model = packed("q4_1")
    check_bits(CompiledModel(model), PackedModel(model), PROMPT, (1, 5, 6, 13, 17, 49))


@pytest.mark.slow
def test_smollm2_has_the_bits_of_its_bfloat16_weights():
    model = load_pair("smollm2", mode="packed").target
    text = np.random.default_rng(0).integers(0, 49152, 64).tolist()
    check_bits(CompiledModel(model), PackedModel(model), text, (1, 4, 12, 16))
