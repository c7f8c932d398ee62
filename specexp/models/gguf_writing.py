"""Hugging Face models as GGUF files."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from numpy.typing import NDArray

from specexp.core.messages import did_you_mean
from specexp.models.gguf_text import write_tokenizer
from specexp.models.llama_library import LlamaCppError, complaint, library

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Precision = Literal["f32", "bf16", "f16", "q8_0", "q4_k_m"]
ARCHITECTURES = {"llama": "LLAMA", "mistral": "LLAMA", "qwen2": "QWEN2", "qwen3": "QWEN3"}
"""By the model types of transformers, what the GGUF standard calls them."""
_BLOCKS = {"q8_0": 32, "q4_k_m": 256}


def write_gguf(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, path: Path, precision: Precision = "f32"
) -> str:
    """Write a model with its tokenizer, whole or not at all.

    Args:
        model: a model of the Llama family; ``q8_0`` and ``q4_k_m`` are made from its float32 weights by llama.cpp.
        tokenizer: the model's.
        path: the file; one that is there is replaced.
        precision: of the weights; norms and biases are float32.

    Returns:
        A sentence on what llama.cpp cannot do with the file; empty where it can do all.

    Raises:
        LlamaCppError: the model has no such form, or llama.cpp or the package gguf is not here.
    """
    _check(model, precision)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    try:
        if precision not in _BLOCKS:
            dropped = _write(model, tokenizer, part, precision)
        else:
            whole = path.with_name(f"{path.name}.f32.part")
            try:
                dropped = _write(model, tokenizer, whole, "f32")
                _quantise(whole, part, precision)
            finally:
                whole.unlink(missing_ok=True)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return dropped


def check_precision(precision: str) -> None:
    """Refuse a precision that no file is written in.

    Raises:
        LlamaCppError: it says which are.
    """
    if precision not in get_args(Precision):
        raise LlamaCppError(
            f"precision {precision!r} is not known{did_you_mean(precision, get_args(Precision))}"
        )


def _check(model: PreTrainedModel, precision: str) -> None:
    config = model.config
    check_precision(precision)
    if config.model_type not in ARCHITECTURES:
        raise LlamaCppError(
            f"a {config.model_type} model cannot be written as GGUF here; {', '.join(ARCHITECTURES)} can"
        )
    rope = config.rope_parameters["rope_type"]
    if rope not in ("default", "llama3") or (
        rope == "llama3" and ARCHITECTURES[config.model_type] != "LLAMA"
    ):
        raise LlamaCppError(
            f"a {config.model_type} model with {rope!r} positions cannot be written as GGUF here"
        )
    width, heads = _head_width(config), config.num_attention_heads
    if config.model_type == "qwen2" and width * heads != config.hidden_size:
        raise LlamaCppError(
            f"a qwen2 model with {heads} heads of {width} numbers in rows of {config.hidden_size} has no form as GGUF"
        )
    block = _BLOCKS.get(precision, 1)
    narrow = sorted({width for width in (config.hidden_size, config.intermediate_size) if width % block})
    if narrow:
        raise LlamaCppError(
            f"{precision} packs {block} weights of a row together, and the model has rows of {narrow[0]}: take "
            f"{'q8_0 or ' if precision == 'q4_k_m' and not any(width % 32 for width in narrow) else ''}bf16"
        )


def _write(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, path: Path, precision: str) -> str:
    try:
        import gguf
    except ImportError as error:
        raise LlamaCppError(
            "GGUF files are written by the package gguf, which is not installed: pip install 'specexp[llama-cpp]'"
        ) from error
    config = model.config
    kind = getattr(gguf.MODEL_ARCH, ARCHITECTURES[config.model_type])
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[kind])
    _describe(writer, model)
    dropped = write_tokenizer(writer, tokenizer, config.vocab_size)
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[precision]
    names = gguf.get_tensor_name_map(kind, config.num_hidden_layers)
    for name, tensor in _tensors(model):
        known = names.get_name(name, try_suffixes=(".weight", ".bias")) or name
        kept = torch.float32 if tensor.ndim == 1 else dtype
        writer.add_tensor(known, _numbers(tensor.to(kept)), raw_dtype=_TYPES[kept](gguf))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return dropped


_TYPES: dict[torch.dtype, Callable[[Any], Any]] = {
    torch.float32: lambda gguf: gguf.GGMLQuantizationType.F32,
    torch.bfloat16: lambda gguf: gguf.GGMLQuantizationType.BF16,
    torch.float16: lambda gguf: gguf.GGMLQuantizationType.F16,
}


def _numbers(tensor: torch.Tensor) -> NDArray[Any]:
    """A tensor's numbers; bfloat16, which numpy has not, as bytes."""
    tensor = tensor.detach().cpu().contiguous()
    return (tensor.view(torch.uint8) if tensor.dtype is torch.bfloat16 else tensor).numpy()


def _describe(writer: Any, model: PreTrainedModel) -> None:
    config = model.config
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
    writer.add_rope_freq_base(float(config.rope_parameters["rope_theta"]))
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)


def _head_width(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _tensors(model: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights by transformers' names, in llama.cpp's order of rows."""
    config = model.config
    llama = ARCHITECTURES[config.model_type] == "LLAMA"
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if llama and ".q_proj." in name:
            tensor = _interleaved(tensor, config.num_attention_heads)
        elif llama and ".k_proj." in name:
            tensor = _interleaved(tensor, config.num_key_value_heads)
        yield name, tensor
    if config.rope_parameters["rope_type"] == "llama3":
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
        width = _head_width(config)
        plain = config.rope_parameters["rope_theta"] ** -(
            torch.arange(0, width, 2, dtype=torch.float32) / width
        )
        yield "rope_freqs.weight", plain / frequencies


def _interleaved(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of a query or key projection, for rotation of neighbours where transformers rotates halves."""
    size, *width = tensor.shape
    return tensor.view(heads, 2, size // heads // 2, *width).transpose(1, 2).reshape(size, *width)


def _quantise(source: Path, target: Path, precision: str) -> None:
    functions = library()
    given = functions.llama_model_quantize_default_params()
    given.nthread = torch.get_num_threads()
    given.ftype = getattr(functions, f"LLAMA_FTYPE_MOSTLY_{precision.upper()}")
    complaint()
    if functions.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(given)):
        raise LlamaCppError(f"llama.cpp could not quantise {source.name} to {precision}: {complaint()}")
