"""GGUF files as targets and drafts, run by llama.cpp: loading, and tokenizers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from specexp.core.messages import first_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from specexp.models.llama_cpp import LlamaCppModel
    from specexp.models.llama_file import LlamaFile

WHOLE = "tokenizer.huggingface.json"
"""Key of the whole ``tokenizer.json`` in a file."""
_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS = {
    "qwen2": rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}",
    "llama-bpe": rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}",
}
"""Regular expressions that cut a text before byte pairs are merged, by llama.cpp's names."""
TOKEN_KINDS = {"normal": 1, "control": 3, "own": 4, "unused": 5}
"""Types of tokens in the GGUF standard, where ``own`` is user-defined."""
_ROLES = {"bos": "bos", "eos": "eos", "pad": "padding"}
"""The names of special tokens in a file, by those of transformers."""


def is_gguf(source: str) -> bool:
    """Return whether a source names a GGUF file."""
    return source.lower().endswith(".gguf")


def is_local(source: str) -> bool:
    """Return whether a source is a local folder or file."""
    return is_gguf(source) or Path(source).is_dir()


def gguf_tokenizer(source: str) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a file; raises ``ValueError`` if it cannot be made."""
    from specexp.models.llama_file import LlamaFile

    return read_tokenizer(LlamaFile(source, vocabulary_only=True))


def gguf_model(source: str, cache: Any, device: str, attn_implementation: str) -> LlamaCppModel:
    """Load a file with the arguments of :func:`~specexp.models.pair.load_pair`; ``cache`` is the target's dtype.

    Raises:
        ValueError: it cannot be read or run, or llama.cpp is not installed.
    """
    from specexp.models.llama_cpp import LlamaCppModel
    from specexp.models.llama_file import LlamaFile, LlamaSettings

    exact = attn_implementation == "eager" or cache == "float32"  # flash attention rounds to float16
    settings = LlamaSettings(cache, flash_attention=not exact, device=device)
    return LlamaCppModel(LlamaFile(source, settings))


def read_tokenizer(file: LlamaFile) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a GGUF file as a Hugging Face one; raises a LlamaCppError if it cannot be made."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    from specexp.models.llama_file import LlamaCppError

    whole = file.metadata(WHOLE)
    try:
        core = _from_lists(file) if whole is None else Tokenizer.from_str(whole)
    except LlamaCppError:
        raise
    except Exception as error:  # tokenizers raises bare ones
        raise LlamaCppError(f"{file.path}: the tokenizer cannot be read: {first_line(error)}") from error
    roles: dict[str, Any] = {}
    for role, name in _ROLES.items():
        number = file.metadata(f"tokenizer.ggml.{name}_token_id")
        if number is not None:
            roles[f"{role}_token"] = core.id_to_token(int(number))
    template = file.metadata("tokenizer.chat_template")
    tokenizer: PreTrainedTokenizerBase = PreTrainedTokenizerFast(
        tokenizer_object=core, model_max_length=file.context_limit, chat_template=template, **roles
    )
    return tokenizer


def _from_lists(file: LlamaFile) -> Any:
    """A byte-level BPE tokenizer from llama.cpp's lists of tokens and merges."""
    from gguf import GGUFReader
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

    from specexp.models.llama_file import LlamaCppError

    kind, name = file.metadata("tokenizer.ggml.model"), file.metadata("tokenizer.ggml.pre")
    if kind != "gpt2" or name not in (*PATTERNS, "gpt-2"):
        raise LlamaCppError(
            f"{file.path}: a tokenizer of model {kind!r} and pre-tokenizer {name!r} cannot be made from a GGUF file's "
            f"lists ({', '.join((*PATTERNS, 'gpt-2'))} can): give the Hugging Face model it was converted from"
        )
    fields = GGUFReader(file.path).fields
    tokens, kinds, merges = (
        fields[f"tokenizer.ggml.{key}"].contents() for key in ("tokens", "token_type", "merges")
    )
    own = [
        (number, kind == TOKEN_KINDS["control"])
        for number, kind in enumerate(kinds)
        if kind in (TOKEN_KINDS["control"], TOKEN_KINDS["own"])
    ]
    core = Tokenizer(
        models.BPE(
            vocab={token: number for number, token in enumerate(tokens)},
            merges=[tuple(merge.split(" ", 1)) for merge in merges],
            ignore_merges=name == "llama-bpe",  # as Llama 3: a word of the vocabulary is one token
        )
    )
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=name == "gpt-2")
    cut = [] if name == "gpt-2" else [pre_tokenizers.Split(Regex(PATTERNS[name]), "isolated")]
    core.pre_tokenizer = pre_tokenizers.Sequence([*cut, byte_level])
    core.decoder = decoders.ByteLevel()
    core.add_tokens(
        [AddedToken(tokens[number], special=special, normalized=False) for number, special in own]
    )
    bos = file.metadata("tokenizer.ggml.bos_token_id")
    if bos is not None and file.metadata("tokenizer.ggml.add_bos_token") == "true":
        first = tokens[int(bos)]
        core.post_processor = processors.TemplateProcessing(
            single=f"{first} $A", pair=f"{first} $A $B", special_tokens=[(first, int(bos))]
        )
    return core
