from __future__ import annotations

import json
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from experiments.pair.tokenizer import train_tokenizer
from specexp.builders import Chain
from specexp.core.decoder import Decoder
from specexp.drafters import DraftModel
from specexp.models.pair import load_pair
from specexp.models.sources import PAIRS, PairError, sources_of


def saved(folder: Path, *, vocab_size: int, text: str) -> str:
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer: Any = train_tokenizer([text] * 5, vocab_size=300)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
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


def test_a_draft_with_another_tokenizer_is_refused(target: str, tmp_path: Path) -> None:
    other = saved(tmp_path, vocab_size=300, text="entirely different words make other merges")
    with pytest.raises(ValueError, match="another vocabulary"):
        load_pair(target, other)


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


def test_a_draft_with_fewer_logits_than_the_tokenizer_has_tokens_is_refused(
    target: str, tmp_path: Path
) -> None:
    other = saved(tmp_path, vocab_size=100, text="def f(x): return x + 1")
    with pytest.raises(ValueError, match=r"gives 100 logits, but target .* gives 300; where they differ"):
        load_pair(target, other)


def test_a_model_that_knows_no_sdpa_is_told_what_to_set(target: str, tmp_path: Path) -> None:
    from transformers import AutoTokenizer, GPTJConfig, GPTJForCausalLM

    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32, "rotary_dim": 4}
    config = GPTJConfig(vocab_size=300, bos_token_id=0, eos_token_id=1, **sizes)
    GPTJForCausalLM(config).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(target).save_pretrained(tmp_path)
    with pytest.raises(
        PairError, match="does not support attn_implementation 'sdpa'; set attn_implementation to 'eager'"
    ) as caught:
        load_pair(str(tmp_path))
    assert caught.value.argument == "target"  # it is the model that does not, whoever set the default
    assert load_pair(str(tmp_path), attn_implementation="eager").target.config.model_type == "gptj"


@pytest.mark.parametrize("source", ["./no/such/folder", "/no/such/folder", "no/such/folder"])
def test_a_missing_folder_is_named(source: str) -> None:
    with pytest.raises(ValueError, match=f"target '{source}' is no existing folder"):
        load_pair(source)


def test_a_folder_without_a_model_is_named(tmp_path: Path, target: str) -> None:
    with pytest.raises(ValueError, match=r"draft .* without config.json"):
        load_pair(target, str(tmp_path))


def test_an_unknown_type_is_refused(target: str) -> None:
    with pytest.raises(ValueError, match=r"target_dtype is .int8.; allowed"):
        load_pair(target, target_dtype="int8")


def test_broken_weights_are_refused_in_one_sentence(target: str, tmp_path: Path) -> None:
    for file in Path(target).iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="holds no weights in safetensors"):
        load_pair(str(tmp_path))


@pytest.mark.parametrize("changed", [{"num_hidden_layers": 2}, {"intermediate_size": 32}], ids=repr)
def test_weights_that_are_not_all_there_are_refused_instead_of_made_up(
    target: str, tmp_path: Path, changed: dict[str, int]
) -> None:
    copytree(target, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changed))
    with pytest.raises(
        PairError, match=r"no weights that fit \d tensors of the model .* as 'model\.layers\."
    ):
        load_pair(str(tmp_path))


def test_truncated_weights_are_refused_in_one_sentence(target: str, tmp_path: Path) -> None:
    copytree(target, tmp_path, dirs_exist_ok=True)
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(PairError, match=r"is no whole safetensors file .*: copy it again"):
        load_pair(str(tmp_path))


def test_the_embedded_pair() -> None:
    pair = load_pair("stdlib")
    assert pair.draft is not None
    assert pair.target.config.vocab_size == pair.draft.config.vocab_size == len(pair.tokenizer) == 4096
    size = sum(file.stat().st_size for file in (PAIRS / "stdlib").rglob("*") if file.is_file())
    assert size < 60e6


def test_embedded_models_of_other_sizes_have_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("target", "target-large", "draft", "draft-small"):
        (tmp_path / "stdlib" / name).mkdir(parents=True)
    monkeypatch.setattr("specexp.models.sources.PAIRS", tmp_path)
    folder = {path.name: str(path) for path in (tmp_path / "stdlib").iterdir()}
    assert sources_of("stdlib") == (folder["target"], folder["draft"])
    assert sources_of("stdlib-large") == (folder["target-large"], folder["draft"])
    assert sources_of("stdlib-large", "stdlib-small") == (folder["target-large"], folder["draft-small"])
    assert sources_of("my/target", "stdlib") == ("my/target", folder["draft"])
    assert sources_of("stdlib-huge") == ("stdlib-huge", None)  # a hub id, for all that is known


@pytest.mark.parametrize("device", ["cuda:99", "toaster"])
def test_a_device_that_is_not_there_is_refused_in_one_sentence(target: str, device: str) -> None:
    with pytest.raises(PairError, match=f"device '{device}' cannot be used here") as caught:
        load_pair(target, device=device)
    assert caught.value.argument == "device"
    assert "\n" not in str(caught.value)
