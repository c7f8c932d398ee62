from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from experiments.smollm2.export import pack
from specexp.builders import Chain
from specexp.core.loop import Decoder
from specexp.core.packed import is_packed, unpack
from specexp.drafters import DraftModel
from specexp.models.pair import load_pair
from specexp.models.sources import PAIRS, PairError, sources_of


def saved(folder: Path, *, vocab_size: int, text: str) -> str:
    from transformers import LlamaConfig, LlamaForCausalLM

    embedded: Any = AutoTokenizer.from_pretrained(Path(PAIRS) / "stdlib" / "target")
    tokenizer = embedded.train_new_from_iterator([text] * 5, vocab_size=300)
    config = LlamaConfig(
        vocab_size=vocab_size, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved(tmp_path_factory.mktemp("target"), vocab_size=300, text="def f(x): return x + 1")


def test_models_come_in_evaluation_mode_and_in_the_stated_types(target: str) -> None:
    pair = load_pair(target, target, target_dtype="bfloat16", draft_dtype="float32")
    assert pair.draft is not None
    assert (pair.target.dtype, pair.draft.dtype) == (torch.bfloat16, torch.float32)
    assert not pair.target.training
    assert not pair.draft.training
    assert load_pair(target).draft is None


@pytest.mark.parametrize("width", [320, 290])
def test_a_draft_padded_to_another_length_gets_the_targets(target: str, tmp_path: Path, width: int) -> None:
    other = saved(tmp_path, vocab_size=width, text="def f(x): return x + 1")
    pair = load_pair(target, other, target_dtype="float32")
    again = load_pair(target, other, target_dtype="float32").draft
    assert pair.draft is not None
    assert again is not None
    assert len(pair.tokenizer) < 290
    prompt = pair.tokenizer("def f(x): return x", return_tensors="pt").input_ids
    before = AutoModelForCausalLM.from_pretrained(other)(prompt).logits
    logits = pair.draft(prompt).logits
    assert logits.shape[-1] == pair.draft.config.vocab_size == pair.target.config.vocab_size == 300
    torch.testing.assert_close(logits[..., :290], before[..., :290])
    torch.testing.assert_close(again(prompt).logits, logits, rtol=0, atol=0)
    expected = Decoder(pair.target).generate(prompt, max_new_tokens=12).token_ids
    result = Decoder(pair.target, DraftModel(pair.draft), Chain(3)).generate(prompt, max_new_tokens=12)
    assert result.token_ids == expected


def test_a_draft_with_fewer_logits_than_the_tokenizer_has_tokens_is_refused(target: str, tmp_path: Path) -> None:
    other = saved(tmp_path, vocab_size=100, text="def f(x): return x + 1")
    with pytest.raises(ValueError, match=r"gives 100 logits, but target .* gives 300; a different number"):
        load_pair(target, other)


def without(*names: str) -> Callable[[Path], None]:
    def remove(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return remove


def with_config(**values: int) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | values))

    return write


def cut_short(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (without("config.json"), "without config.json"),
        (without("model.safetensors"), "has no weights: copy its .safetensors files into the folder$"),
        (cut_short, ""),
        (without("tokenizer.json", "tokenizer_config.json"), "has no tokenizer.json"),
        # transformers warns of these, and makes the weights up
        (with_config(num_hidden_layers=2), r"9 tensors .* 'model\.layers\.1\."),
        (with_config(intermediate_size=32), r"3 tensors .* 'model\.layers\.0\.mlp"),
    ],
    ids=[
        "no configuration",
        "no weights",
        "weights cut short",
        "no tokenizer",
        "missing tensors",
        "tensors of another shape",
    ],
)
def test_damaged_files_are_refused_in_one_sentence(
    target: str, tmp_path: Path, damage: Callable[[Path], None], named: str
) -> None:
    copytree(target, tmp_path, dirs_exist_ok=True)
    damage(tmp_path)
    for arguments in ((str(tmp_path),), (target, str(tmp_path))):
        role = "target" if len(arguments) == 1 else "draft"
        with pytest.raises(PairError, match=rf"^{role} '{tmp_path}' .*{named}") as caught:
            load_pair(*arguments)
        assert caught.value.argument == role
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("target", "./no/such/folder", "target './no/such/folder' does not exist"),
        ("target", "/no/such/folder", "does not exist"),
        ("target", "no/such/folder", "does not exist"),
        ("target", "sdtlib", "must be 'stdlib', 'stdlib-middle'"),
        ("target_dtype", "int8", "target_dtype must be one of bfloat16, float16, float32, got 'int8'"),
        ("device", "cuda:99", "device 'cuda:99' cannot be used here"),
        ("device", "toaster", "device 'toaster' cannot be used here: name cpu, cuda, cuda:N, mps or xpu"),
        ("device", "meta", "device 'meta' cannot be used here"),
        ("device", "vulkan", "device 'vulkan' cannot be used here: this PyTorch has no operators for it: name cpu"),
        ("mode", "fast", "mode must be one of eager, compiled, packed, graphed, auto, got 'fast'$"),
        ("mode", "compiled", "heads of 8 numbers"),
    ],
)
@pytest.mark.parametrize("weights", [True, False], ids=["loaded", "dry run"])
def test_a_wrong_argument_is_named_in_one_sentence(
    target: str, key: str, value: str, sentence: str, weights: bool
) -> None:
    arguments: dict[str, Any] = {"target": target, key: value}
    with pytest.raises(PairError, match=sentence) as caught:
        load_pair(**arguments, weights=weights)
    assert caught.value.argument == key
    assert "\n" not in str(caught.value)


def test_a_pair_without_weights_has_the_shapes_of_the_loaded_one(target: str, tmp_path: Path) -> None:
    draft = saved(tmp_path, vocab_size=320, text="def f(x): return x + 1")
    outline, loaded = load_pair(target, draft, weights=False), load_pair(target, draft)
    for empty, whole in ((outline.target, loaded.target), (outline.draft, loaded.draft)):
        assert empty is not None
        assert whole is not None
        assert empty.device.type == "meta"
        assert not empty.training
        assert empty.dtype == whole.dtype
        assert {name: value.shape for name, value in empty.state_dict().items()} == {
            name: value.shape for name, value in whole.state_dict().items()
        }


def test_the_embedded_pair() -> None:
    pair = load_pair("stdlib")
    assert pair.draft is not None
    assert pair.target.config.vocab_size == pair.draft.config.vocab_size == len(pair.tokenizer)
    assert pair.target.num_parameters() > 2 * load_pair("stdlib-middle").target.num_parameters()
    size = sum(file.stat().st_size for file in (PAIRS / "stdlib").rglob("*") if file.is_file())
    assert size < 40e6


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_stored_values_are_the_model_in_every_precision(dtype: str) -> None:
    weights = unpack(sources_of("stdlib-small")[0])
    model = load_pair("stdlib-small", target_dtype=dtype).target
    for name, weight in weights.items():
        assert torch.equal(model.state_dict()[name], weight.to(model.dtype))
        if weight.ndim == 2:
            assert len(weight[0].unique()) <= 255


def test_packing_keeps_every_weight_within_half_a_step_of_its_row(tmp_path: Path) -> None:
    weight = torch.tensor([[1.27, 0.504, -1.27], [0.0, 0.0, 0.0], [2e-3, -1e-3, 0.0]])
    pack({"matrix": weight, "vector": weight[0]}, tmp_path)
    unpacked = unpack(str(tmp_path))
    assert is_packed(str(tmp_path))
    torch.testing.assert_close(unpacked["matrix"][0].float(), torch.tensor([1.27, 0.50, -1.27]), rtol=4e-3, atol=0)
    assert not unpacked["matrix"][1].any()
    torch.testing.assert_close(unpacked["matrix"].float(), weight, rtol=2**-8, atol=1.27 / 254)
    assert torch.equal(unpacked["vector"], weight[0].bfloat16())


def test_embedded_models_of_other_sizes_have_names() -> None:
    target, draft, middle, small = (str(PAIRS / "stdlib" / name) for name in ("target", "draft", "middle", "small"))
    assert sources_of("stdlib") == (target, draft)
    assert sources_of("stdlib", "stdlib-middle") == (target, middle)
    assert sources_of("stdlib-middle", "stdlib-small") == (middle, small)
    assert sources_of("my/target", "stdlib") == ("my/target", draft)
    assert sources_of("my/target", "stdlib-eagle")[1] == "stdlib-eagle"  # no model
    with pytest.raises(PairError, match="must be 'stdlib', 'stdlib-middle' or 'stdlib-small'"):
        load_pair("stdlib-large")
