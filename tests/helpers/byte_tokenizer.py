"""A tokenizer that reads any text: its letters are bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

END = "<|end|>"


def byte_tokenizer(*pairs: str, special: Sequence[str] = (END,), **given: Any) -> PreTrainedTokenizerFast:
    """One token a byte, then one for each pair of bytes, then the special ones, of which ``<|end|>`` is EOS.

    Args:
        pairs: of letters that are one token side by side.
        special: all special tokens.
        given: other arguments of the tokenizer.
    """
    letters = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *pairs]
    vocabulary = {letter: number for number, letter in enumerate(letters)}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[(pair[0], pair[1]) for pair in pairs]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(list(special))
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token=END, **given)
