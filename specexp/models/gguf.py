"""Targets and drafts that are GGUF files, run by llama.cpp."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from specexp.models.llama_cpp import LlamaCppModel


def is_gguf(source: str) -> bool:
    """Return whether a source names a GGUF file."""
    return source.lower().endswith(".gguf")


def is_local(source: str) -> bool:
    """Return whether a source is a local folder or file."""
    return is_gguf(source) or Path(source).is_dir()


def gguf_tokenizer(source: str) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a file.

    Raises:
        ValueError: it has none that could be made, cannot be read, or llama.cpp is not installed.
    """
    from specexp.models.gguf_text import read_tokenizer
    from specexp.models.llama_file import LlamaFile

    return read_tokenizer(LlamaFile(source, vocabulary_only=True))


def gguf_model(source: str, cache: Any, device: str, attn_implementation: str) -> LlamaCppModel:
    """Load a file; the arguments are :func:`~specexp.models.pair.load_pair`'s, ``cache`` the target's dtype.

    Raises:
        ValueError: it cannot be read or run, or llama.cpp is not installed.
    """
    from specexp.models.llama_cpp import LlamaCppModel
    from specexp.models.llama_file import LlamaFile, LlamaSettings

    exact = attn_implementation == "eager" or cache == "float32"  # in one step it is rounded to float16
    settings = LlamaSettings(cache, flash_attention=not exact, device=device)
    return LlamaCppModel(LlamaFile(source, settings))
