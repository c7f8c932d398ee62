"""The embedded tokenizer restores any text, and other engines cut text as it does."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from helpers.examples import examples
from hypothesis import given, strategies as st

from experiments.passes.gguf_writer import write_gguf
from specexp.models.sources import PAIRS

CODE = "class A:\n    def f(self, x):\n        if x:\n            return self.f(x - 1)\n        return None\n"


@cache
def shipped() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(Path(PAIRS) / "stdlib" / "target")


@given(text=st.text(max_size=200))
@examples(300)
def test_any_text_is_restored(text):
    assert shipped().decode(shipped()(text)["input_ids"], skip_special_tokens=True) == text


def test_digits_and_line_breaks_are_tokens_of_their_own():
    tokens = shipped().tokenize("        if x:\n        return 123")
    assert tokens[-3:] == ["1", "2", "3"]
    assert not any("ĊĠ" in token for token in shipped().get_vocab())


ODD = [
    CODE,
    "  x\\n\\n  y",
    "\\t\\tx = 10\\r\\ny",
    "don't I'LL",
    "été 日本語 ½ ٣ 🙂",
    "\\u00a0 a\\u2028b",
    "x" * 99,
    "Janet's 3 eggs, 12.50 $ each.\\n\\n- it's;\\n  (a)\\n",
    "é\\u3000x\\u200b\\n \\n",
    " " * 40 + "x" + " " * 7,
]


def llama_ids(tokenizer: Any, folder: Path) -> Callable[[str], list[int]]:
    llama_cpp = pytest.importorskip("llama_cpp")
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = dict.fromkeys(("num_hidden_layers", "num_attention_heads", "num_key_value_heads"), 1)
    config = LlamaConfig(vocab_size=len(tokenizer), hidden_size=32, intermediate_size=32, **sizes)
    write_gguf(LlamaForCausalLM(config), tokenizer, folder / "one.gguf")
    model = llama_cpp.Llama(str(folder / "one.gguf"), vocab_only=True, verbose=False)
    return lambda text: list(model.tokenize(text.encode(), add_bos=True, special=False))


def openvino_ids(tokenizer: Any, folder: Path) -> Callable[[str], list[int]]:
    openvino = pytest.importorskip("openvino")
    made = pytest.importorskip("openvino_tokenizers").convert_tokenizer(tokenizer)
    compiled = openvino.compile_model(made, "CPU")
    return lambda text: [int(token) for token in compiled([text])["input_ids"][0]]


@pytest.mark.parametrize("other", [llama_ids, openvino_ids])
def test_other_engines_cut_text_equally(tmp_path, other):
    tokenizer = shipped()
    ids = other(tokenizer, tmp_path)
    for text in ODD:
        assert ids(text) == tokenizer(text)["input_ids"], text
