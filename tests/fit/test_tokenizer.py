from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specexp.fit.training.tokenizer import BOS, EOS, train_tokenizer
from specexp.pairs.sources import PAIRS
from specexp.runtimes.gguf_text import pre_tokenizer_name

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CODE = "class A:\n    def f(self, x):\n        if x:\n            return self.f(x - 1)\n        return None\n"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer([CODE] * 20, vocab_size=320).save_pretrained(folder)
    loaded: Any = AutoTokenizer.from_pretrained(folder)
    return loaded


@given(text=st.text(max_size=200))
@settings(max_examples=300, deadline=None)
def test_any_text_is_restored(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    if BOS in text or EOS in text:
        return
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


@given(text=st.text(max_size=200))
@settings(max_examples=300, deadline=None)
def test_any_text_is_restored_by_the_shipped_tokenizer(text: str) -> None:
    assert shipped().decode(shipped()(text)["input_ids"], skip_special_tokens=True) == text


def test_a_text_begins_with_bos_and_does_not_end_with_eos(tokenizer: PreTrainedTokenizerBase) -> None:
    ids = tokenizer(CODE)["input_ids"]
    assert ids[0] == tokenizer.bos_token_id
    assert tokenizer.eos_token_id not in ids


def test_digits_are_single_and_line_breaks_stand_apart_from_indentation(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    tokens = tokenizer.tokenize("        if x:\n        return 123")
    assert tokens[-3:] == ["1", "2", "3"]
    assert not any("ĊĠ" in token for token in tokenizer.get_vocab())


def test_a_prompt_may_end_behind_a_line_break(tokenizer: PreTrainedTokenizerBase) -> None:
    head, rest = "    def f(self, x):\n", "        if x:"
    joined = tokenizer(head + rest, add_special_tokens=False)["input_ids"]
    parts = [tokenizer(part, add_special_tokens=False)["input_ids"] for part in (head, rest)]
    assert joined == parts[0] + parts[1]


def test_llama_cpp_cuts_text_equally(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    from transformers import LlamaConfig, LlamaForCausalLM

    from specexp.runtimes.gguf_writing import write_gguf

    sizes = dict.fromkeys(("num_hidden_layers", "num_attention_heads", "num_key_value_heads"), 1)
    config = LlamaConfig(vocab_size=len(tokenizer), hidden_size=32, intermediate_size=32, **sizes)
    assert not write_gguf(LlamaForCausalLM(config), tokenizer, tmp_path / "one.gguf")
    other = llama_cpp.Llama(str(tmp_path / "one.gguf"), vocab_only=True, verbose=False)
    for text in (
        CODE,
        "  x\n\n  y",
        "\t\tx = 10\r\ny",
        "don't I'LL",
        "été 日本語 ½ ٣ 🙂",
        "\u00a0 a\u2028b",
        "x" * 99,
    ):
        assert other.tokenize(text.encode(), add_bos=True, special=False) == tokenizer(text)["input_ids"], (
            text
        )
    other.close()


def test_the_recipe_has_its_tokenizer() -> None:
    from transformers import AutoTokenizer

    kept: Any = AutoTokenizer.from_pretrained(
        Path(__file__).parents[2] / "experiments" / "pair" / "tokenizer"
    )
    assert len(kept) == 4096
    assert pre_tokenizer_name(json.loads(kept.backend_tokenizer.to_str())) == "qwen2"
    assert kept.decode(kept(CODE)["input_ids"], skip_special_tokens=True) == CODE


_SHIPPED: list[Any] = []


def shipped() -> Any:
    if not _SHIPPED:
        from transformers import AutoTokenizer

        _SHIPPED.append(AutoTokenizer.from_pretrained(Path(PAIRS) / "stdlib" / "target"))
    return _SHIPPED[0]
