"""A GGUF file is a target or a draft like any other, beside one of its kind or of Hugging Face's."""

import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: pip install 'specexp[llama-cpp]'")
pytest.importorskip("gguf", reason="gguf is not installed: pip install 'specexp[llama-cpp]'")

from helpers.small_gguf import small_llama, tokenizer, written

from specexp import Decoder, load_pair
from specexp.artifacts.fingerprint import fingerprint, first_difference
from specexp.builders import KConfig
from specexp.drafters import DraftModel
from specexp.models.pair import load_tokenizer
from specexp.models.sources import PairError

PROMPT = tokenizer()("ab ab cd").input_ids


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    small_llama("Llama").save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("kinds", [("gguf", "gguf"), ("gguf", "folder"), ("folder", "gguf")], ids=" ".join)
def test_a_pair_of_any_two_kinds_decodes_losslessly(kinds, folder):
    sources = [str(written("Llama")) if kind == "gguf" else folder for kind in kinds]
    pair = load_pair(*sources, target_dtype="float32", attn_implementation="eager")
    plain = Decoder(pair.target).generate(PROMPT, max_new_tokens=24)
    drafted = Decoder(pair.target, DraftModel(pair.draft), KConfig([2, 1, 1])).generate(PROMPT, max_new_tokens=24)
    assert drafted.token_ids == plain.token_ids
    assert drafted.steps < plain.steps
    assert pair.tokenizer("ab c").input_ids == tokenizer()("ab c").input_ids


def test_an_artifact_of_the_model_is_one_of_its_file_too(folder):
    pair, file = load_pair(folder), load_pair(str(written("Llama")))
    assert first_difference(fingerprint(pair.target, pair.tokenizer), fingerprint(file.target, file.tokenizer)) is None
    other = load_pair(str(written("Qwen2")))
    assert "model_type" in first_difference(fingerprint(pair.target), fingerprint(other.target))


def test_an_error_names_the_key_that_causes_it(folder, tmp_path):
    (tmp_path / "x.gguf").write_text("hello")
    for key, sources, said in [
        ("target", (str(tmp_path / "x.gguf"), None), "does not begin with GGUF"),
        ("draft", (folder, str(tmp_path / "none.gguf")), "does not exist"),
        ("draft", (str(written("Llama")), "no-such-folder"), "is neither a local folder"),
        ("device", (str(written("Llama")), None), "cannot be used here"),
    ]:
        with pytest.raises(PairError, match=said) as caught:
            load_pair(*sources, device="cuda" if key == "device" else "cpu")
        assert caught.value.argument == key
    with pytest.raises(PairError, match="does not exist"):
        load_tokenizer("none.gguf")
    assert load_tokenizer(str(written("Llama"))).eos_token == "<|end|>"
