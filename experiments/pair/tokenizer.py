"""The byte-level BPE tokenizer of the embedded pair.

Text is cut into pieces as Qwen2's tokenizer cuts it, so that llama.cpp and OpenVINO, which know that one by name, cut
it equally: digits are single, and a line break stands apart from the indentation that follows it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from specexp.models.gguf_text import PATTERNS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

BOS = "<|bos|>"
EOS = "<|eos|>"


def train_tokenizer(
    texts: Iterable[str], *, vocab_size: int = 4096, context_length: int = 2048
) -> PreTrainedTokenizerFast:
    """A tokenizer of exactly ``vocab_size`` tokens (fewer if the text is too small) that restores any text.

    It puts a bos token before the text; the eos token is added by whoever closes a document.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERNS["qwen2"]), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    core.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, core.token_to_id(BOS))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=EOS,
        clean_up_tokenization_spaces=False,
        model_max_length=context_length,
    )
