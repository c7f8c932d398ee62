"""``python -m experiments.pair.tokenizer RECIPE FOLDER``: train the byte-level BPE tokenizer on a recipe's corpus.

Text is split as in Qwen2's tokenizer, which llama.cpp and OpenVINO support by name: digits are single, and a line break
is separate from the indentation that follows it.
"""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from specexp.models.gguf import PATTERNS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from experiments.pair.training_rows import CorpusRows

BOS = "<|bos|>"
EOS = "<|eos|>"
CHARACTERS = 24_000_000  # of training text; with more, only rare tokens change


def train_tokenizer(texts: Iterable[str], *, vocab_size: int = 4096) -> PreTrainedTokenizerFast:
    """Return a tokenizer of ``vocab_size`` tokens (fewer if the text is too small) that restores any text.

    It adds a BOS token before the text, and no EOS token after it.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(
                Regex(PATTERNS["qwen2"]), behavior="isolated"
            ),  # before bytes become letters
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),  # every byte is a token, so any text is restored
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
        model_max_length=2048,
    )


def weighted_texts(rows: CorpusRows, characters: int = CHARACTERS) -> Iterator[str]:
    """Yield texts so that each source has its share of ``characters``; a source too small for its share repeats."""
    for name, weight in rows.weights.items():
        left = characters * weight / sum(rows.weights.values())
        texts = rows.texts("train", name)
        random.Random(name).shuffle(texts)
        for text in itertools.cycle(texts):
            left -= len(text)
            if left < 0:
                break
            yield text


def main(recipe: str, folder: str) -> None:
    """Train the tokenizer of a recipe and write it to a folder."""
    from specexp.fit.command import read_fit

    rows: CorpusRows = read_fit(recipe)["data"]
    rows.prepare_data()
    train_tokenizer(weighted_texts(rows)).save_pretrained(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
