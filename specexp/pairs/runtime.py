"""The one place that decides how a loaded model runs."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING

from specexp.core.runtime import Runtime

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MODES = ("eager", "compiled", "auto")
"""How a Hugging Face model can be run: by its own code whatever the shapes; by passes compiled for this machine; or by
these where there are such passes of it, and else by its own code, which is said."""
log = logging.getLogger(__name__)


def runtime_of(model: PreTrainedModel | Runtime, mode: str = "auto") -> Runtime:
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

    if mode == "eager":
        return LanguageModel(model)
    from specexp.core.kernels import CannotCompileError
    from specexp.runtimes.compiled import CompiledModel

    try:
        return CompiledModel(model, tell=log.warning)
    except CannotCompileError as error:
        if mode == "compiled":
            raise
        _tell(f"running in eager mode, since {error}")
        return LanguageModel(model)


@cache
def _tell(sentence: str) -> None:
    """Once a process: a run makes many runtimes of one model."""
    log.warning(sentence)


def check_mode(mode: str, models: Iterable[PreTrainedModel] = (), device: str = "cpu") -> None:
    """Refuse a mode that there is not, and models that are to be compiled and cannot be; their weights are not read.

    Raises:
        ValueError: one sentence with what is allowed.
    """
    if mode not in MODES:
        raise ValueError(f"mode is {mode!r}; allowed are {', '.join(MODES)}")
    if mode == "compiled":
        from specexp.runtimes.compiled import check_compiled

        if not device.startswith("cpu"):
            raise ValueError(
                f"mode is 'compiled', which is for the CPU, and device is {device!r}: allowed is eager"
            )

        for model in models:
            check_compiled(model, log.warning)
