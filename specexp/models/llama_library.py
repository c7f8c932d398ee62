"""llama.cpp's C interface, as llama-cpp-python passes it on: loaded when first asked for, silent, its errors kept."""

from __future__ import annotations

import ctypes
from collections import deque
from functools import cache
from typing import Any

_ERROR = 4  # of ggml's log levels
_said: deque[str] = deque(maxlen=32)


class LlamaCppError(ValueError):
    """llama.cpp is not here, or refused something; one sentence."""


@cache
def library() -> Any:
    """The module of C functions.

    Raises:
        LlamaCppError: llama-cpp-python is not installed, or its library cannot be loaded.
    """
    try:
        import llama_cpp.llama_cpp as functions
    except ImportError as error:
        raise LlamaCppError(
            "GGUF files are run by llama.cpp, and llama-cpp-python is not installed: pip install 'specexp[llama-cpp]'"
        ) from error
    except (OSError, RuntimeError) as error:
        raise LlamaCppError(
            f"llama-cpp-python is installed and its library cannot be loaded: {error}"
        ) from error
    functions.llama_log_set(_listener(functions), None)
    functions.llama_backend_init()
    return functions


def complaint() -> str:
    """What llama.cpp complained of first since this was asked last, in one line."""
    words = _said[0] if _said else "it gave no reason"
    _said.clear()
    function, colon, rest = words.partition(": ")
    return rest if colon and "_" in function and " " not in function else words


@cache
def _listener(functions: Any) -> Any:
    """Keeps errors, for sentences of ours; nothing is printed."""

    @functions.llama_log_callback  # type: ignore[untyped-decorator]
    def listen(level: int, text: bytes, _: ctypes.c_void_p) -> None:
        if level == _ERROR:
            words = " ".join(text.decode(errors="replace").split())
            if words:
                _said.append(words)

    return listen
