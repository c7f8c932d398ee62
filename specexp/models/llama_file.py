"""A GGUF file that llama.cpp has loaded: its weights, which all contexts share, and what is said of it."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, get_args
from weakref import finalize

import torch
from transformers import PreTrainedConfig

from specexp.core.messages import did_you_mean
from specexp.models.llama_library import LlamaCppError, complaint, library

CacheType = Literal["bfloat16", "float16", "float32"]
_SAMPLE, _SAMPLES = 4096, 1024  # bytes, and how many of them tell a file from another
_GGML_TYPES = {"float32": 0, "float16": 1, "bfloat16": 30}


@dataclass(frozen=True)
class LlamaSettings:
    """How a file is run.

    Attributes:
        cache: precision of the keys and values that are kept.
        flash_attention: whether llama.cpp may take attention in one step, as it does by default.
        device: ``cpu``, or whatever else llama.cpp was built for, which then holds all layers.
        threads: of the CPU; as many as PyTorch uses if None.
    """

    cache: CacheType = "float16"
    flash_attention: bool = True
    device: str = "cpu"
    threads: int | None = None


class LlamaFile:
    """Weights of a GGUF file.

    Args:
        path: the file.
        settings: how it is run.
        vocabulary_only: load no weights, so that only what is said of the model can be asked.

    Attributes:
        model: llama.cpp's.

    Raises:
        LlamaCppError: it is no file, no GGUF, truncated, or a model whose cache cannot drop rejected tokens; or
            llama.cpp is not here.
    """

    def __init__(
        self, path: str | Path, settings: LlamaSettings | None = None, *, vocabulary_only: bool = False
    ) -> None:
        self.path = str(path)
        self.settings = settings or LlamaSettings()
        _check_file(Path(path))
        functions = self._functions = library()
        self._check_settings()
        complaint()
        given = functions.llama_model_default_params()
        given.n_gpu_layers = 0 if self.settings.device == "cpu" else -1
        given.vocab_only = vocabulary_only
        self.model: Any = functions.llama_model_load_from_file(self.path.encode(), given)
        if not self.model:
            raise LlamaCppError(f"{self.path}: llama.cpp cannot load it: {complaint()}")
        finalize(self, functions.llama_model_free, self.model)
        if not vocabulary_only:
            self._check_attention()

    @cached_property
    def vocab_size(self) -> int:
        """Tokens of the vocabulary."""
        functions = self._functions
        return int(functions.llama_vocab_n_tokens(functions.llama_model_get_vocab(self.model)))

    @cached_property
    def context_limit(self) -> int:
        """Positions it was trained for; those before the switch where its rotary frequencies change."""
        trained = int(self.said(f"{self.architecture}.context_length") or 0)
        original = self.said(f"{self.architecture}.rope.scaling.original_context_length")
        scaling = self.said(f"{self.architecture}.rope.scaling.type")
        return trained if original is None or scaling in ("yarn", "linear") else min(trained, int(original))

    @cached_property
    def described(self) -> str:
        """llama.cpp's words for it, which end with the type of most weights."""
        buffer = ctypes.create_string_buffer(256)
        self._functions.llama_model_desc(self.model, buffer, 256)
        return buffer.value.decode(errors="replace")

    @cached_property
    def precision(self) -> str:
        """The coarser type of weights and cache; for quantised weights, multiplied block by block, bfloat16."""
        weights = {"F32": "float32", "F16": "float16"}.get(self.described.split()[-1], "bfloat16")
        return "float16" if weights == "float32" and self.settings.cache != "float32" else weights

    @cached_property
    def architecture(self) -> str:
        """As ``general.architecture`` says."""
        return self.said("general.architecture") or "unknown"

    @cached_property
    def config(self) -> PreTrainedConfig:
        """What transformers would call its configuration, as far as a GGUF file tells."""
        name = self.architecture

        def number(key: str) -> int | None:
            said = self.said(f"{name}.{key}")
            return None if said is None else int(said)

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
        config.model_type, config.tie_word_embeddings = name, None  # the file does not say
        return config

    @cached_property
    def cell_bytes(self) -> int:
        """Bytes of the keys and values of one token."""
        functions, model = self._functions, self.model
        heads = functions.llama_model_n_head(model)
        width = functions.llama_model_n_embd(model) // heads
        of_key, of_value = (
            int(self.said(f"{self.architecture}.attention.{part}_length") or width)
            for part in ("key", "value")
        )
        numbers = functions.llama_model_n_layer(model) * functions.llama_model_n_head_kv(model)
        return int(numbers * (of_key + of_value) * (4 if self.settings.cache == "float32" else 2))

    @property
    def threads(self) -> int:
        """Threads of the CPU that a pass takes."""
        return self.settings.threads or torch.get_num_threads()

    def weights(self) -> dict[str, Any]:
        """What tells the weights from others: their form, how many there are, and a hash of samples of the file."""
        path, digest = Path(self.path), sha256()
        size = path.stat().st_size
        with path.open("rb") as file:
            for place in range(_SAMPLES):
                file.seek(max(size - _SAMPLE, 0) * place // (_SAMPLES - 1))
                digest.update(file.read(_SAMPLE))
        return {
            "dtype": self.described,
            "parameters": int(self._functions.llama_model_n_params(self.model)),
            "weights_sha256": digest.hexdigest(),
        }

    def said(self, key: str) -> str | None:
        """What the file says under a key, where that is no list."""
        function, size = self._functions.llama_model_meta_val_str, 256
        while True:
            buffer = ctypes.create_string_buffer(size)
            length = function(self.model, key.encode(), buffer, size)
            if length < 0:
                return None
            if length < size:
                return buffer.value.decode(errors="replace")
            size = length + 1

    def context_settings(self, **sizes: int) -> Any:
        """llama.cpp's settings of a context of these sizes, with one cache for all sequences."""
        functions = self._functions
        given = functions.llama_context_default_params()
        for name, value in sizes.items():
            setattr(given, name, value)
        given.kv_unified = True
        given.n_threads = given.n_threads_batch = self.threads
        given.type_k = given.type_v = _GGML_TYPES[self.settings.cache]
        if not self.settings.flash_attention:
            given.flash_attn_type = functions.LLAMA_FLASH_ATTN_TYPE_DISABLED
        return given

    def __deepcopy__(self, memo: dict[int, Any]) -> LlamaFile:
        """Itself: weights do not change."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """The same in another process, where the file is mapped again."""
        return LlamaFile, (self.path, self.settings)

    def _check_settings(self) -> None:
        cache, device = self.settings.cache, self.settings.device
        if cache not in get_args(CacheType):
            raise LlamaCppError(
                f"the cache's precision is {cache!r}{did_you_mean(str(cache), get_args(CacheType))}"
            )
        if device != "cpu" and not self._functions.llama_supports_gpu_offload():
            raise LlamaCppError(
                f"device {device!r} cannot be used: llama-cpp-python was built here for the CPU alone"
            )

    def _check_attention(self) -> None:
        functions, model = self._functions, self.model
        window = functions.llama_model_n_swa(model)
        reason = ""
        if functions.llama_model_has_encoder(model) or not functions.llama_model_has_decoder(model):
            reason = "is no decoder alone"
        elif functions.llama_model_is_recurrent(model) or functions.llama_model_is_hybrid(model):
            reason = "has recurrent layers"
        elif 0 < window < self.context_limit:
            reason = f"has layers that attend to {window} tokens alone"
        if reason:
            raise LlamaCppError(
                f"{self.path}: the {self.architecture} model {reason}, and its cache cannot drop rejected tokens: "
                "use a decoder with full attention in every layer"
            )


def _check_file(path: Path) -> None:
    if path.is_dir():
        raise LlamaCppError(f"{path} is a folder; a GGUF file is expected")
    try:
        with path.open("rb") as file:
            start = file.read(4)
    except OSError as error:
        raise LlamaCppError(f"{path} cannot be read: {error.strerror}") from error
    if start != b"GGUF":
        raise LlamaCppError(f"{path} is no GGUF file: it does not begin with GGUF")
