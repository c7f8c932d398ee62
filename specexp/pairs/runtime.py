"""The one place that decides how a loaded model runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specexp.core.runtime import Runtime

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MODES = ("eager",)
"""How a Hugging Face model can be run; ``eager`` runs its own code, whatever the shapes."""


def runtime_of(model: PreTrainedModel | Runtime, mode: str = "eager") -> Runtime:
    """What takes tree passes of a loaded model, with an empty cache of its own.

    Args:
        model: a Hugging Face causal LM; what is a runtime already, such as a model of another library, stays as it is.
        mode: one of :data:`MODES`.

    Raises:
        ValueError: the model cannot be run so.
    """
    if isinstance(model, Runtime):
        return model
    check_mode(mode)
    from specexp.core.language_model import LanguageModel

    return LanguageModel(model)


def check_mode(mode: str) -> None:
    """Refuse a mode that there is not.

    Raises:
        ValueError: one sentence with those that there are.
    """
    if mode not in MODES:
        raise ValueError(f"mode is {mode!r}; allowed are {', '.join(MODES)}")
