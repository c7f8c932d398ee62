"""The C interface of llama.cpp, and the weights and metadata of a GGUF file, which all its contexts share."""

from __future__ import annotations

import ctypes
from collections import deque
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal, get_args
from weakref import finalize

import torch
from transformers import GenerationConfig, PreTrainedConfig

from specexp.base.kernels import has_amx
from specexp.base.messages import did_you_mean
from specexp.models.gguf import GGUF_ENDS, sampled_hash, why_no_llama_cpp

CacheType = Literal["bfloat16", "float16", "float32"]
_GGML_TYPES = {"float32": 0, "float16": 1, "bfloat16": 30}
_ERROR = 4  # ggml's log level for errors
_errors: deque[str] = deque(maxlen=32)


class LlamaCppError(ValueError):
    """Raised if llama.cpp is missing or fails."""


@cache
def library() -> Any:
    """Load and return llama.cpp's C functions. Raises :class:`LlamaCppError` if they cannot be loaded."""
    try:
        import llama_cpp.llama_cpp as functions
    except ImportError as error:
        raise LlamaCppError(
            "GGUF files need llama-cpp-python, which is not installed: pip install 'specexp[llama-cpp]'"
        ) from error
    except (OSError, RuntimeError) as error:
        raise LlamaCppError(f"llama-cpp-python is installed, but its library cannot be loaded: {error}") from error
    functions.llama_log_set(_listener(functions), None)
    functions.llama_backend_init()
    return functions


def complaint() -> str:
    """Return the first error that llama.cpp logged since the last call, as one line, and clear the log."""
    words = _errors[0] if _errors else "it gave no reason"
    _errors.clear()
    function, colon, rest = words.partition(": ")
    return rest if colon and "_" in function and " " not in function else words


@cache  # keeps the callback alive, because C has only its address
def _listener(functions: Any) -> Any:
    """Return a log callback that stores errors instead of printing them."""

    @functions.llama_log_callback  # type: ignore[untyped-decorator]
    def listen(level: int, text: bytes, _: ctypes.c_void_p) -> None:
        if level == _ERROR:
            words = " ".join(text.decode(errors="replace").split())
            if words:
                _errors.append(words)

    return listen


class LlamaFile:
    """A loaded GGUF file.

    Args:
        cache: dtype of the KV cache.
        flash_attention: whether llama.cpp may use flash attention.
        device: ``cpu``, or a device that llama.cpp was built for, which then holds all layers.

    Raises:
        LlamaCppError: the file is damaged or not a GGUF file, the model cannot drop rejected tokens from its cache, or
            llama.cpp is missing.
    """

    def __init__(
        self, path: str | Path, cache: CacheType = "float16", flash_attention: bool = True, device: str = "cpu"
    ) -> None:
        self.path = str(path)
        self.cache: CacheType = cache
        self.flash_attention = flash_attention
        self.device = device
        _check_file(Path(path))
        functions = self._functions = library()
        if death := why_no_llama_cpp():
            raise LlamaCppError(f"{death}, so it cannot run {path}: set pair.mode to eager, compiled or packed")
        self._check_settings()
        complaint()
        given = functions.llama_model_default_params()
        # compiled by GCC 12, llama.cpp's AMX code for quantized weights crashes (llama.cpp #20824)
        given.use_extra_bufts = not has_amx()
        given.n_gpu_layers = 0 if self.device == "cpu" else -1
        # a pointer to llama.cpp's model
        self.model: Any = functions.llama_model_load_from_file(self.path.encode(), given)
        if not self.model:
            raise LlamaCppError(f"{self.path}: llama.cpp cannot load the file: {complaint()}")
        finalize(self, functions.llama_model_free, self.model)
        self._check_attention()

    @cached_property
    def vocab_size(self) -> int:
        """Number of tokens in the vocabulary."""
        functions = self._functions
        return int(functions.llama_vocab_n_tokens(functions.llama_model_get_vocab(self.model)))

    @cached_property
    def context_limit(self) -> int:
        """The training context length or, if rotary frequencies change with length, the length at which they change."""
        trained = int(self.metadata(f"{self.architecture}.context_length") or 0)
        original = self.metadata(f"{self.architecture}.rope.scaling.original_context_length")
        scaling = self.metadata(f"{self.architecture}.rope.scaling.type")
        return trained if original is None or scaling in ("yarn", "linear") else min(trained, int(original))

    @cached_property
    def described(self) -> str:
        """llama.cpp's description of the model, which ends with the most common weight type."""
        buffer = ctypes.create_string_buffer(256)
        self._functions.llama_model_desc(self.model, buffer, 256)
        return buffer.value.decode(errors="replace")

    @cached_property
    def precision(self) -> str:
        """The less precise dtype of weights and cache. Quantized weights, multiplied in blocks, count as bfloat16."""
        weights = {"F32": "float32", "F16": "float16"}.get(self.described.split()[-1], "bfloat16")
        return "float16" if weights == "float32" and self.cache != "float32" else weights

    @cached_property
    def architecture(self) -> str:
        """Name of the architecture."""
        return self.metadata("general.architecture") or "unknown"

    @cached_property
    def config(self) -> PreTrainedConfig:
        """A transformers configuration with the values in the file's metadata."""
        name = self.architecture

        def number(key: str) -> int | None:
            value = self.metadata(f"{name}.{key}")
            return None if value is None else int(value)

        sizes = {
            "vocab_size": self.vocab_size,
            "hidden_size": number("embedding_length"),
            "intermediate_size": number("feed_forward_length"),
            "num_hidden_layers": number("block_count"),
            "num_attention_heads": number("attention.head_count"),
            "num_key_value_heads": number("attention.head_count_kv"),
            "max_position_embeddings": self.context_limit,
        }
        config = PreTrainedConfig(**sizes, name_or_path=self.path)
        config.model_type, config.tie_word_embeddings = name, None  # not stored in the file
        return config

    @cached_property
    def generation_config(self) -> GenerationConfig:
        """The tokens that end an answer, as ``eos_token_id``."""
        ends = [int(found) for key in GGUF_ENDS if (found := self.metadata(key)) is not None]
        return GenerationConfig(eos_token_id=ends or None)

    @cached_property
    def cell_bytes(self) -> int:
        """Size in bytes of one token's keys and values in the cache."""
        functions, model = self._functions, self.model
        heads = functions.llama_model_n_head(model)
        width = functions.llama_model_n_embd(model) // heads
        of_key, of_value = (
            int(self.metadata(f"{self.architecture}.attention.{part}_length") or width) for part in ("key", "value")
        )
        numbers = functions.llama_model_n_layer(model) * functions.llama_model_n_head_kv(model)
        return int(numbers * (of_key + of_value) * (4 if self.cache == "float32" else 2))

    def weights(self) -> dict[str, Any]:
        """Return the dtype, the number of parameters and a hash of the file's samples, which identify the weights."""
        return {
            "dtype": self.described,
            "parameters": int(self._functions.llama_model_n_params(self.model)),
            "weights_sha256": sampled_hash(Path(self.path)),
        }

    def metadata(self, key: str) -> str | None:
        """Return the value of a metadata key, or None if the key is missing or its value is a list."""
        function = self._functions.llama_model_meta_val_str
        length = function(self.model, key.encode(), None, 0)  # it only counts
        if length < 0:
            return None
        buffer = ctypes.create_string_buffer(length + 1)
        function(self.model, key.encode(), buffer, length + 1)
        return buffer.value.decode(errors="replace")

    def context_settings(self, **sizes: int) -> Any:
        """Return llama.cpp's parameters for a context with one cache for all sequences, updated with ``sizes``."""
        functions = self._functions
        given = functions.llama_context_default_params()
        for name, value in sizes.items():
            setattr(given, name, value)
        given.kv_unified = True
        given.n_threads = given.n_threads_batch = torch.get_num_threads()
        given.type_k = given.type_v = _GGML_TYPES[self.cache]
        if not self.flash_attention:
            given.flash_attn_type = functions.LLAMA_FLASH_ATTN_TYPE_DISABLED
        return given

    def __deepcopy__(self, memo: dict[int, Any]) -> LlamaFile:
        return self  # the weights are read-only

    def __reduce__(self) -> tuple[Any, ...]:
        """Let another process load the file again when this object is unpickled there."""
        return LlamaFile, (self.path, self.cache, self.flash_attention, self.device)

    def _check_settings(self) -> None:
        if self.cache not in get_args(CacheType):
            raise LlamaCppError(
                f"the dtype of the cache is unknown: {self.cache!r}{did_you_mean(str(self.cache), get_args(CacheType))}"
            )
        if self.device != "cpu" and not self._functions.llama_supports_gpu_offload():
            raise LlamaCppError(
                f"device {self.device!r} cannot be used, as llama-cpp-python was built for the CPU only: "
                "set device to cpu"
            )

    def _check_attention(self) -> None:
        functions, model = self._functions, self.model
        window, reason = functions.llama_model_n_swa(model), ""
        advice = "use a decoder with full attention in every layer"
        if functions.llama_model_has_encoder(model) or not functions.llama_model_has_decoder(model):
            reason = "is not decoder-only"
        elif functions.llama_model_is_recurrent(model) or functions.llama_model_is_hybrid(model):
            reason = "has recurrent layers"
        elif 0 < window < self.context_limit:
            reason = f"has layers that attend to only {window} tokens"
            advice = "set pair.mode to eager or compiled, which keep all tokens"
        if reason:
            raise LlamaCppError(
                f"{self.path}: the {self.architecture} model {reason}, so its cache cannot drop rejected tokens: "
                f"{advice}"
            )


def _check_file(path: Path) -> None:
    if path.is_dir():
        raise LlamaCppError(f"{path} must be a GGUF file, but it is a folder")
    try:
        with path.open("rb") as file:
            start = file.read(4)
    except OSError as error:
        raise LlamaCppError(f"{path} cannot be read: {error.strerror}") from error
    if start != b"GGUF":
        raise LlamaCppError(f"{path} is not a GGUF file: it does not begin with GGUF")
