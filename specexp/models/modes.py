"""The modes in which Hugging Face models run. Reading this table imports neither torch nor a runtime."""

from __future__ import annotations

from typing import NamedTuple

AUTO = "auto"
"""The mode that uses the fastest runtime that works on this machine. The reason for a fallback is logged."""


class Mode(NamedTuple):
    """A mode: its runtime, and what the mode needs."""

    runtime: str  # dotted path of the Runtime subclass, imported when a model runs in the mode
    auto: tuple[str, ...] | None = None  # device types on which auto tries the mode; None: all
    takes_device_map: bool = False  # it can run models spread over several devices


MODES = {
    "eager": Mode("specexp.core.language_model.LanguageModel", takes_device_map=True),
    "compiled": Mode("specexp.models.compiled.CompiledModel"),
    "packed": Mode("specexp.models.compiled.PackedModel", auto=()),
    "graphed": Mode("specexp.models.graphed.GraphedModel", auto=("cuda",)),
}
"""The modes by name. On each device, ``auto`` tries the last of its modes first."""
