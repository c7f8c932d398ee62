"""The one place that decides how a loaded model runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import cache
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from specexp.core.runtime import Runtime

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MODES = ("eager", "compiled", "auto")
"""How a Hugging Face model can be run: by its own code whatever the shapes; by passes compiled for this machine; or by
these where there are such passes of it, and else by its own code, which is said."""
log = logging.getLogger(__name__)
_LOADED_IN: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


@cache
def tell_once(sentence: str) -> None:
    """Log a warning once a process: a run makes many runtimes of one model."""
    log.warning(sentence)


def set_mode(model: PreTrainedModel | Runtime, mode: str) -> None:
    """Run a model in this mode wherever the bare model is given, e.g. to a decoder; a runtime stays as it is."""
    from specexp.core.language_model import set_runtime

    if not isinstance(model, Runtime):
        _LOADED_IN[model] = mode
        set_runtime(model, runtime_of)


def mode_of(model: PreTrainedModel) -> str:
    """Return the mode that a model was loaded in; ``auto`` for a model that :func:`load_pair` did not load."""
    try:
        return _LOADED_IN.get(model, "auto")
    except TypeError:  # not a model, which the runtime's constructor refuses in a sentence
        return "auto"


def runtime_of(
    model: PreTrainedModel | Runtime,
    mode: str | None = None,
    tell: Callable[[str], None] = tell_once,
) -> Runtime:
    """What takes tree passes of a loaded model, with an empty cache of its own.

    Args:
        model: a Hugging Face causal LM; what is a runtime already, such as a model of another library, stays as it is.
        mode: one of :data:`MODES`; the one it was loaded in if None.
        tell: called with a sentence where ``auto`` has to run the model by its own code.

    Raises:
        ValueError: the model cannot be run so.
    """
    if isinstance(model, Runtime):
        return model
    mode = mode_of(model) if mode is None else mode
    check_mode(mode)
    from specexp.core.language_model import LanguageModel

    if mode == "eager":
        return LanguageModel(model)
    from specexp.core.kernels import CannotCompileError
    from specexp.models.compiled import CompiledModel

    try:
        return CompiledModel(model, tell=log.warning)
    except CannotCompileError as error:
        if mode == "compiled":
            raise
        tell(f"running in eager mode, since {error}")
        return LanguageModel(model)


def check_mode(mode: str, models: Iterable[PreTrainedModel] = (), device: str = "cpu") -> None:
    """Refuse a mode that there is not, and models that are to be compiled and cannot be; their weights are not read.

    Raises:
        ValueError: one sentence with what is allowed.
    """
    if mode not in MODES:
        raise ValueError(f"mode is {mode!r}; allowed are {', '.join(MODES)}")
    if mode == "compiled":
        from specexp.models.compiled import check_compiled

        if not device.startswith("cpu"):
            raise ValueError(
                f"mode is 'compiled', which is for the CPU, and device is {device!r}: allowed is eager"
            )

        for model in models:
            check_compiled(model, log.warning)
