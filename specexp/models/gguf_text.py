"""The tokenizer in a GGUF file: written from a Hugging Face one, and made into one again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from specexp.core.messages import first_line
from specexp.models.llama_library import LlamaCppError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from specexp.models.llama_file import LlamaFile

WHOLE = "tokenizer.huggingface.json"
"""The key under which a file holds the whole ``tokenizer.json``."""
_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS = {
    "qwen2": rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}",
    "llama-bpe": rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}",
}
"""How text is cut before byte pairs are merged, by llama.cpp's name for it."""
_TOKEN_KINDS = {"normal": 1, "control": 3, "own": 4, "unused": 5}
_SPECIAL = ("bos", "eos", "pad")


def write_tokenizer(writer: Any, tokenizer: PreTrainedTokenizerBase, width: int) -> str:
    """Write a tokenizer into a GGUF file.

    Args:
        writer: a ``gguf.GGUFWriter``.
        tokenizer: what is written, whole; llama.cpp's own form of it only where that makes the same text of tokens, and
            its name for how text is cut only where llama.cpp cuts as it does.
        width: logits of the model; numbers beyond the tokenizer's are tokens that are not used.

    Returns:
        A sentence on what llama.cpp cannot do with it; empty where it can do all.
    """
    text = tokenizer.backend_tokenizer.to_str()
    parts = json.loads(text)
    writer.add_string(WHOLE, text)
    for role in _SPECIAL:
        number = getattr(tokenizer, f"{role}_token_id")
        if number is not None:
            getattr(writer, f"add_{role}_token_id")(number)
    writer.add_add_bos_token(_begins_with_bos(tokenizer))
    if isinstance(tokenizer.chat_template, str):
        writer.add_chat_template(tokenizer.chat_template)
    name = pre_tokenizer_name(parts)
    only_tokens = (
        ""
        if name
        else (
            "llama.cpp has no name for how this tokenizer cuts text: give its own programs token ids, for of texts "
            "they make other tokens than the model knows; specexp reads the tokenizer in the file"
        )
    )
    if not _is_byte_level(parts):
        writer.add_tokenizer_model("none")
        return only_tokens
    writer.add_tokenizer_model("gpt2")
    if name:  # without it llama.cpp warns that it does not know
        writer.add_tokenizer_pre(name)
    tokens = {number: token for token, number in parts["model"]["vocab"].items()}
    kinds = dict.fromkeys(tokens, _TOKEN_KINDS["normal"])
    for added in parts["added_tokens"]:
        tokens[added["id"]] = added["content"]
        kinds[added["id"]] = _TOKEN_KINDS["control" if added["special"] else "own"]
    writer.add_token_list([tokens.get(number, f"[UNUSED{number}]") for number in range(width)])
    writer.add_token_types([kinds.get(number, _TOKEN_KINDS["unused"]) for number in range(width)])
    merges = parts["model"]["merges"]
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    return only_tokens


def read_tokenizer(file: LlamaFile) -> PreTrainedTokenizerBase:
    """The tokenizer of a GGUF file, as transformers has them.

    Raises:
        LlamaCppError: the file has none, or one that cannot be made from what it says.
    """
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    whole = file.said(WHOLE)
    try:
        core = _from_lists(file) if whole is None else Tokenizer.from_str(whole)
    except LlamaCppError:
        raise
    except Exception as error:  # tokenizers raises nothing more special
        raise LlamaCppError(f"{file.path}: the tokenizer cannot be read: {first_line(error)}") from error
    roles: dict[str, Any] = {}
    for role in _SPECIAL:
        number = file.said(f"tokenizer.ggml.{_ROLES_IN_FILE[role]}_token_id")
        if number is not None:
            roles[f"{role}_token"] = core.id_to_token(int(number))
    template = file.said("tokenizer.chat_template")
    tokenizer: PreTrainedTokenizerBase = PreTrainedTokenizerFast(
        tokenizer_object=core, model_max_length=file.context_limit, chat_template=template, **roles
    )
    return tokenizer


_ROLES_IN_FILE = {"bos": "bos", "eos": "eos", "pad": "padding"}


def pre_tokenizer_name(parts: Mapping[str, Any]) -> str | None:
    """llama.cpp's name for how a byte-level BPE tokenizer cuts text; None where there is none.

    Args:
        parts: a ``tokenizer.json``.
    """
    if not _is_byte_level(parts) or (parts["normalizer"] or {"type": "NFC"})["type"] != "NFC":
        return None
    steps = _cutting_steps(parts)
    if steps[-1]["use_regex"]:
        return "gpt-2" if len(steps) == 1 else None
    pattern = steps[0].get("pattern", {}).get("Regex") if len(steps) == 2 else None
    return next((name for name, known in PATTERNS.items() if known == pattern), None)


def _is_byte_level(parts: Mapping[str, Any]) -> bool:
    """Whether tokens are merged pairs of bytes, so that llama.cpp makes the same text of them."""
    model, last = parts["model"], _cutting_steps(parts)[-1]
    merged = model["type"] == "BPE" and bool(model["merges"])
    return merged and last.get("type") == "ByteLevel" and not last["add_prefix_space"]


def _cutting_steps(parts: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    cutting = parts["pre_tokenizer"] or {}
    return list(cutting["pretokenizers"]) if cutting.get("type") == "Sequence" else [cutting]


def _begins_with_bos(tokenizer: PreTrainedTokenizerBase) -> bool:
    numbers = tokenizer("a").input_ids
    return tokenizer.bos_token_id is not None and numbers[:1] == [tokenizer.bos_token_id]


def _from_lists(file: LlamaFile) -> Any:
    """A byte-level BPE tokenizer from llama.cpp's lists of tokens and merges."""
    from gguf import GGUFReader
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

    kind, name = file.said("tokenizer.ggml.model"), file.said("tokenizer.ggml.pre")
    if kind != "gpt2" or name not in (*PATTERNS, "gpt-2"):
        raise LlamaCppError(
            f"{file.path}: a tokenizer of model {kind!r} and pre-tokenizer {name!r} cannot be made from a GGUF file's "
            f"lists ({', '.join((*PATTERNS, 'gpt-2'))} can): convert the model with python -m specexp.export --to "
            "gguf, which writes the whole tokenizer"
        )
    fields = GGUFReader(file.path).fields
    tokens, kinds, merges = (
        fields[f"tokenizer.ggml.{key}"].contents() for key in ("tokens", "token_type", "merges")
    )
    own = [
        (number, kind == _TOKEN_KINDS["control"])
        for number, kind in enumerate(kinds)
        if kind in (_TOKEN_KINDS["control"], _TOKEN_KINDS["own"])
    ]
    core = Tokenizer(
        models.BPE(
            vocab={token: number for number, token in enumerate(tokens)},
            merges=[tuple(merge.split(" ", 1)) for merge in merges],
            ignore_merges=name == "llama-bpe",
        )
    )
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=name == "gpt-2")
    cut = [] if name == "gpt-2" else [pre_tokenizers.Split(Regex(PATTERNS[name]), "isolated")]
    core.pre_tokenizer = pre_tokenizers.Sequence([*cut, byte_level])
    core.decoder = decoders.ByteLevel()
    core.add_tokens(
        [AddedToken(tokens[number], special=special, normalized=False) for number, special in own]
    )
    bos = file.said("tokenizer.ggml.bos_token_id")
    if bos is not None and file.said("tokenizer.ggml.add_bos_token") == "true":
        first = tokens[int(bos)]
        core.post_processor = processors.TemplateProcessing(
            single=f"{first} $A", pair=f"{first} $A $B", special_tokens=[(first, int(bos))]
        )
    return core
