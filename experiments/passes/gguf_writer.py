"""``python -m experiments.passes.gguf_writer TARGET FOLDER``: write a pair as ``target.gguf`` and ``draft.gguf``.

Unlike llama.cpp's ``convert_hf_to_gguf.py`` it can write the embedded pair and models that exist only in memory. Each
file includes the whole ``tokenizer.json``.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch

from specexp.models.gguf import PATTERNS, TOKEN_KINDS, WHOLE
from specexp.models.llama_file import LlamaCppError, complaint, library
from specexp.models.pair import load_pair

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Precision = Literal["f32", "bf16", "f16", "q8_0", "q4_0", "q4_1", "q4_k_m"]
ARCHITECTURES = {
    **{"llama": "LLAMA", "mistral": "LLAMA", "qwen2": "QWEN2", "qwen3": "QWEN3"},
    **{"gemma2": "GEMMA2", "gemma3_text": "GEMMA3", "phi3": "PHI3"},
}
"""Architecture names of the GGUF standard, by transformers' model types."""
_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write a pair and print the paths of its files."""
    parser = argparse.ArgumentParser(prog="python -m experiments.passes.gguf_writer")
    parser.add_argument("target", help="hub id or folder of the target, or stdlib")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--draft", help="hub id or folder of the draft; stdlib has its own")
    parser.add_argument("--precision", choices=get_args(Precision), default="f32")
    given = parser.parse_args(arguments)
    pair = load_pair(given.target, given.draft, target_dtype="float32", draft_dtype="float32")
    for role, model in (("target", pair.target), ("draft", pair.draft)):
        if model is not None:
            file = given.folder / f"{role}.gguf"
            write_gguf(model, pair.tokenizer, file, given.precision)
            print(file)
    return 0


def write_gguf(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, path: Path, precision: Precision = "f32"
) -> None:
    """Write a model with its tokenizer.

    Args:
        model: A model of the Llama family.
        tokenizer: The model's tokenizer.
        path: Path of the file. An existing file is replaced.
        precision: Precision of the weights; norms and biases are float32. llama.cpp quantizes to ``q8_0``, ``q4_0`` and
            ``q4_1``, for rows of a multiple of 32 weights, and to ``q4_k_m`` (256).

    Raises:
        LlamaCppError: the model cannot be written as GGUF, or llama.cpp is not installed.
    """
    kind = model.config.model_type
    ropes = ("default", "llama3") if ARCHITECTURES.get(kind) == "LLAMA" else ("default",)
    if kind not in ARCHITECTURES or _rope(model.config)["rope_type"] not in ropes:
        raise LlamaCppError(f"a {kind} model with its position encoding cannot be written as GGUF")
    path.parent.mkdir(parents=True, exist_ok=True)
    if precision in _DTYPES:
        _write(model, tokenizer, path, _DTYPES[precision])
        return
    with TemporaryDirectory(prefix="specexp-") as folder:
        whole = Path(folder) / "whole.gguf"
        _write(model, tokenizer, whole, torch.float32)
        _quantize(whole, path, precision)


def _write(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, path: Path, dtype: torch.dtype) -> None:
    import gguf

    kind = getattr(gguf.MODEL_ARCH, ARCHITECTURES[model.config.model_type])
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[kind])
    _describe(writer, model.config)
    mostly = {torch.float32: "ALL_F32", torch.bfloat16: "MOSTLY_BF16", torch.float16: "MOSTLY_F16"}
    writer.add_file_type(gguf.LlamaFileType[mostly[dtype]])
    _write_tokenizer(writer, tokenizer, model.config.vocab_size)
    names = gguf.get_tensor_name_map(kind, model.config.num_hidden_layers)
    types = gguf.GGMLQuantizationType
    raw = {torch.float32: types.F32, torch.bfloat16: types.BF16, torch.float16: types.F16}
    for name, tensor in _tensors(model):
        known = names.get_name(name, try_suffixes=(".weight", ".bias")) or name
        kept = tensor.detach().cpu().contiguous().to(torch.float32 if tensor.ndim == 1 else dtype)
        # NumPy has no bfloat16, so the raw bytes are written.
        numbers = (kept.view(torch.uint8) if kept.dtype is torch.bfloat16 else kept).numpy()
        writer.add_tensor(known, numbers, raw_dtype=raw[kept.dtype])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _describe(writer: Any, config: Any) -> None:
    width = _head_width(config)
    writer.add_name(config.name_or_path or config.model_type)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_rope_dimension_count(width)
    writer.add_rope_freq_base(float(_rope(config)["rope_theta"]))
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    if config.model_type in ("gemma2", "gemma3_text", "phi3") and config.sliding_window:
        writer.add_sliding_window(config.sliding_window)
    if config.model_type == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)


def _rope(config: Any) -> dict[str, Any]:
    """Return the position encoding of the layers with full attention."""
    found: dict[str, Any] = config.rope_parameters.get("full_attention") or config.rope_parameters
    return found


def _head_width(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _tensors(model: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the weights by transformers' names, with rows in llama.cpp's order."""
    config = model.config
    heads = {".q_proj.": config.num_attention_heads, ".k_proj.": config.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        for projection, count in heads.items():
            if projection in name and ARCHITECTURES[config.model_type] == "LLAMA":
                tensor = _interleaved(tensor, count)
        if config.model_type.startswith("gemma") and name.endswith("norm.weight"):
            tensor = tensor + 1  # as llama.cpp multiplies by it
        yield name, tensor
    if _rope(config)["rope_type"] == "llama3":
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
        width = _head_width(config)
        places = torch.arange(0, width, 2, dtype=torch.float32) / width
        yield "rope_freqs.weight", config.rope_parameters["rope_theta"] ** -places / frequencies


def _interleaved(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Reorder rows of a projection. llama.cpp rotates adjacent rows, transformers rotates halves."""
    size, *width = tensor.shape
    return tensor.view(heads, 2, size // heads // 2, *width).transpose(1, 2).reshape(size, *width)


def _quantize(source: Path, target: Path, precision: str) -> None:
    functions = library()
    given = functions.llama_model_quantize_default_params()
    given.nthread = torch.get_num_threads()
    given.ftype = getattr(functions, f"LLAMA_FTYPE_MOSTLY_{precision.upper()}")
    complaint()  # clears errors of earlier calls
    if functions.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(given)):
        raise LlamaCppError(f"llama.cpp could not quantize {target.name} to {precision}: {complaint()}")


def _write_tokenizer(writer: Any, tokenizer: PreTrainedTokenizerBase, width: int) -> None:
    """Write ``tokenizer.json`` and, if it is byte-level BPE, llama.cpp's own lists padded to ``width`` tokens."""
    text = tokenizer.backend_tokenizer.to_str()
    parts = json.loads(text)
    writer.add_string(WHOLE, text)
    for role in ("bos", "eos", "pad"):
        number = getattr(tokenizer, f"{role}_token_id")
        if number is not None:
            getattr(writer, f"add_{role}_token_id")(number)
    writer.add_add_bos_token(
        tokenizer.bos_token_id is not None and tokenizer("a").input_ids[0] == tokenizer.bos_token_id
    )
    if isinstance(tokenizer.chat_template, str):
        writer.add_chat_template(tokenizer.chat_template)
    if not _is_byte_level(parts):
        writer.add_tokenizer_model("none")
        return
    writer.add_tokenizer_model("gpt2")
    if name := pre_tokenizer_name(parts):
        writer.add_tokenizer_pre(name)
    tokens = {number: token for token, number in parts["model"]["vocab"].items()}
    kinds = dict.fromkeys(tokens, TOKEN_KINDS["normal"])
    for added in parts["added_tokens"]:
        tokens[added["id"]] = added["content"]
        kinds[added["id"]] = TOKEN_KINDS["control" if added["special"] else "own"]
    writer.add_token_list([tokens.get(number, f"[UNUSED{number}]") for number in range(width)])
    writer.add_token_types([kinds.get(number, TOKEN_KINDS["unused"]) for number in range(width)])
    merges = parts["model"]["merges"]
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])


def pre_tokenizer_name(parts: Mapping[str, Any]) -> str | None:
    """Return llama.cpp's name of a ``tokenizer.json``'s pre-tokenizer, or None if llama.cpp has no equal one."""
    if not _is_byte_level(parts) or (parts["normalizer"] or {"type": "NFC"})["type"] != "NFC":
        return None
    steps = _cutting_steps(parts)
    if steps[-1]["use_regex"]:
        return "gpt-2" if len(steps) == 1 else None
    pattern = steps[0].get("pattern", {}).get("Regex") if len(steps) == 2 else None
    return next((name for name, known in PATTERNS.items() if known == pattern), None)


def _is_byte_level(parts: Mapping[str, Any]) -> bool:
    """Return whether a tokenizer is byte-level BPE, so that llama.cpp decodes its tokens to the same text."""
    model, last = parts["model"], _cutting_steps(parts)[-1]
    merged = model["type"] == "BPE" and bool(model["merges"])
    return merged and last.get("type") == "ByteLevel" and not last["add_prefix_space"]


def _cutting_steps(parts: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    cutting = parts["pre_tokenizer"] or {}
    return list(cutting["pretokenizers"]) if cutting.get("type") == "Sequence" else [cutting]


if __name__ == "__main__":
    sys.exit(main())
