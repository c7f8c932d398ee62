from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specexp.fit.training.tokenizer import BOS, EOS, train_tokenizer
from specexp.pairs.sources import PAIRS

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


_SHIPPED: list[Any] = []


def shipped() -> Any:
    if not _SHIPPED:
        from transformers import AutoTokenizer

        _SHIPPED.append(AutoTokenizer.from_pretrained(Path(PAIRS) / "stdlib" / "target"))
    return _SHIPPED[0]
