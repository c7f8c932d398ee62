"""Load GGUF files as targets and drafts that llama.cpp runs, and read their tokenizers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from specexp.core.messages import first_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from specexp.models.llama_cpp import LlamaCppModel
    from specexp.models.llama_file import LlamaFile

WHOLE = "tokenizer.huggingface.json"
"""Metadata key of a GGUF file with the full text of its ``tokenizer.json``."""
_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS = {
    "qwen2": rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}",
    "llama-bpe": rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}",
}
"""Regular expressions that split a text before byte pairs are merged, by llama.cpp's pre-tokenizer names."""
TOKEN_KINDS = {"normal": 1, "control": 3, "own": 4, "unused": 5}
"""Token types of the GGUF standard; ``own`` is its user-defined type."""
_ROLES = {"bos": "bos", "eos": "eos", "pad": "padding"}
"""Names of special tokens: those of transformers to those of a GGUF file."""


def is_gguf(source: str) -> bool:
    """Return whether a source names a GGUF file."""
    return source.lower().endswith(".gguf")


def is_local(source: str) -> bool:
    """Return whether a source is a local folder or file."""
    return is_gguf(source) or Path(source).is_dir()


def gguf_tokenizer(source: str) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a GGUF file. Raises ``ValueError`` if it cannot be built."""
    from specexp.models.llama_file import LlamaFile

    return read_tokenizer(LlamaFile(source, vocabulary_only=True))


def gguf_model(source: str, cache: Any, device: str, attn_implementation: str) -> LlamaCppModel:
    """Load a GGUF file. The arguments are those of :func:`~specexp.models.pair.load_pair`; ``cache`` is the dtype.

    Raises:
        ValueError: the file cannot be read or run, or llama.cpp is not installed.
    """
    from specexp.models.llama_cpp import LlamaCppModel
    from specexp.models.llama_file import LlamaFile, LlamaSettings

    exact = attn_implementation == "eager" or cache == "float32"  # flash attention rounds to float16
    settings = LlamaSettings(cache, flash_attention=not exact, device=device)
    return LlamaCppModel(LlamaFile(source, settings))


def read_tokenizer(file: LlamaFile) -> PreTrainedTokenizerBase:
    """Return a GGUF file's tokenizer as a Hugging Face one. Raises a LlamaCppError if it cannot be built."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    from specexp.models.llama_file import LlamaCppError

    whole = file.metadata(WHOLE)
    try:
        core = _from_lists(file) if whole is None else Tokenizer.from_str(whole)
    except LlamaCppError:
        raise
    except Exception as error:  # tokenizers raises bare ``Exception``
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
    """Return a byte-level BPE tokenizer built from llama.cpp's lists of tokens and merges."""
    from gguf import GGUFReader
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

    from specexp.models.llama_file import LlamaCppError

    kind, name = file.metadata("tokenizer.ggml.model"), file.metadata("tokenizer.ggml.pre")
    if kind != "gpt2" or name not in (*PATTERNS, "gpt-2"):
        raise LlamaCppError(
            f"{file.path}: its tokenizer must have model 'gpt2' and pre-tokenizer {', '.join((*PATTERNS, 'gpt-2'))}, "
            f"got {kind!r} and {name!r}: name the Hugging Face model that the file was converted from"
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
            ignore_merges=name == "llama-bpe",  # as in Llama 3: a word of the vocabulary stays one token
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
