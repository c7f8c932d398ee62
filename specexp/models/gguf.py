"""Targets and drafts that are GGUF files, run by llama.cpp."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from specexp.models.llama_cpp import LlamaCppModel


def is_gguf(source: str) -> bool:
    """Whether a source names a GGUF file."""
    return source.lower().endswith(".gguf")


def is_local(source: str) -> bool:
    """Whether a source is a folder or file here, so that no hub need be asked."""
    return is_gguf(source) or Path(source).is_dir()


def gguf_tokenizer(source: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a file.

    Raises:
        ValueError: it has none that could be made, cannot be read, or llama.cpp is not here.
    """
    from specexp.models.gguf_text import read_tokenizer
    from specexp.models.llama_file import LlamaFile

    return read_tokenizer(LlamaFile(source, vocabulary_only=True))


def gguf_model(source: str, cache: Any, device: str, attn_implementation: str) -> LlamaCppModel:
    """A file at work.

    Args:
        source: the file, whose weights are as precise as they were written.
        cache: precision of the keys and values that are kept.
        device: ``cpu``, or another, if llama.cpp was built for it.
        attn_implementation: ``eager`` keeps llama.cpp from taking attention in one step, as float32 does.

    Raises:
        ValueError: it cannot be read or run, or llama.cpp is not here.
    """
    from specexp.models.llama_cpp import LlamaCppModel
    from specexp.models.llama_file import LlamaFile, LlamaSettings

    exact = attn_implementation == "eager" or cache == "float32"  # in one step it is rounded to float16
    settings = LlamaSettings(cache, flash_attention=not exact, device=device)
    return LlamaCppModel(LlamaFile(source, settings))
