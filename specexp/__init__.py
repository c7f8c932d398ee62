"""specexp finds the fastest lossless speculative decoding setup for your model, prompts and device, and exports it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specexp.config.artifacts import load_artifact
    from specexp.core.loop import Decoder
    from specexp.core.outcome import GenerationResult
    from specexp.models.pair import load_pair

__version__ = "1.1.0"
__all__ = ["Decoder", "GenerationResult", "load_artifact", "load_pair"]

# Imported on first use: importing torch takes seconds, but a mistyped key should be reported at once.
_HOME = {
    "Decoder": "specexp.core.loop",
    "GenerationResult": "specexp.core.outcome",
    "load_artifact": "specexp.config.artifacts",
    "load_pair": "specexp.models.pair",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'specexp' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return ["__version__", *__all__]
