"""Fingerprints, which tie an artifact to a model and a tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from specexp.artifacts.manifest import canonical_json, sha256
from specexp.core.runtime import check_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Fingerprint = dict[str, dict[str, Any]]
# the pad token is left out because users often set it themselves
_SPECIAL = ("bos_token_id", "eos_token_id", "unk_token_id")
_SIZES = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "tie_word_embeddings", "num_experts", "num_local_experts",
    "num_experts_per_tok",
)  # fmt: skip


def fingerprint(model: PreTrainedModel | None = None, tokenizer: PreTrainedTokenizerBase | None = None) -> Fingerprint:
    """Return a fingerprint of a target's architecture and tokenizer.

    It holds a hash of the vocabulary, the special token ids, and sizes from the model's configuration. None of these
    depends on dtype, device or ``transformers`` version. A fine-tuned model has the same fingerprint as its base model.
    """
    sections: Fingerprint = {}
    if tokenizer is not None:
        vocabulary = tokenizer.get_vocab()
        sections["tokenizer"] = {
            "vocabulary_sha256": sha256(canonical_json(vocabulary)),
            "vocabulary_size": len(vocabulary),
            **{key: getattr(tokenizer, key, None) for key in _SPECIAL},
        }
    if model is not None:
        check_model(model)
        text = model.config.get_text_config()  # for a multimodal model, the part that decodes text
        sizes = {key: value for key in _SIZES if (value := getattr(text, key, None)) is not None}
        sections["model"] = {"model_type": text.model_type, **sizes}
    return sections


def saved_sizes(config: Mapping[str, Any]) -> Fingerprint:
    """Return the part of a model's fingerprint that its ``config.json`` states, without importing transformers."""
    text = config.get("text_config") or config
    # without model_type, which transformers may change for the part of a multimodal model that decodes text
    return {"model": {key: text[key] for key in _SIZES if text.get(key) is not None}}


def target_fingerprint(recorded: Fingerprint) -> Fingerprint:
    """Return only the entries of a recorded fingerprint that :func:`fingerprint` produces."""
    keys = {
        "tokenizer": ("vocabulary_sha256", "vocabulary_size", *_SPECIAL),
        "model": ("model_type", *_SIZES),
    }
    return {
        section: {key: recorded[section][key] for key in wanted if key in recorded[section]}
        for section, wanted in keys.items()
        if section in recorded
    }


def first_difference(recorded: Fingerprint, given: Fingerprint) -> tuple[str, str, str, str] | None:
    """Return the section, the key and both values (shortened) of the first entry that differs; None if all agree."""
    for section, entries in given.items():
        known = recorded.get(section, {})
        for key, value in entries.items():
            if key in known and known[key] != value:
                return section, key, _short(known[key]), _short(value)
    return None


def _short(value: Any) -> str:
    return f"{value[:12]}..." if isinstance(value, str) and len(value) > 24 else str(value)
