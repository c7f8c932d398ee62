"""The one place that decides how a loaded model runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from specexp.core.kernels import CannotRunError
from specexp.core.runtime import Runtime

if TYPE_CHECKING:
    from transformers import PreTrainedModel

AUTO = "auto"
"""The mode of the highest rank that runs the model here; what keeps a faster one from it is logged."""
log = logging.getLogger(__name__)
_LOADED_IN: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


tell_once = cache(log.warning)
"""Logs a warning once a process: a run makes many runtimes of one model."""


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
    """Run a loaded model, with an empty cache of its own; a runtime, as of a model of another library, stays as it is.

    Args:
        model: a Hugging Face causal LM.
        mode: a name of :func:`modes`, or ``auto``; the one it was loaded in if None.
        tell: called with a sentence where ``auto`` falls back to the mode of the lowest rank.

    Raises:
        ValueError: the model cannot be run so.
    """
    if isinstance(model, Runtime):
        return model
    mode = mode_of(model) if mode is None else mode
    check_mode(mode)
    known = modes()
    if mode != AUTO:
        return known[mode].run(model)
    place = str(getattr(model, "device", "")).partition(":")[0]
    ranks = {
        kind: kind.mode_rank
        for kind in known.values()
        if kind.mode_rank is not None and (kind.auto_devices is None or place in kind.auto_devices)
    }
    *faster, last = sorted((kind for kind in ranks if ranks[kind] >= 0), key=lambda kind: -ranks[kind])
    why = []
    for kind in faster:
        try:
            return kind.run(model)
        except CannotRunError as error:
            why.append(str(error))
    if why:
        tell(f"running in {last.kind} mode, since {'; '.join(why)}")
    return last.run(model)


@cache
def modes() -> dict[str, type[Runtime]]:
    """The runtimes of Hugging Face models by the name of their mode: each is a class in a file of this folder."""
    import specexp.models
    from specexp.core.language_model import LanguageModel

    found: dict[str, type[Runtime]] = {LanguageModel.kind: LanguageModel}
    for file in iter_modules(specexp.models.__path__):
        module = import_module(f"specexp.models.{file.name}")
        for one in vars(module).values():
            if isinstance(one, type) and issubclass(one, Runtime) and one.mode_rank is not None:
                found[one.kind] = one
    return found


def check_mode(mode: str, models: Iterable[PreTrainedModel] = (), device: str = "cpu") -> None:
    """Raise ``ValueError`` for an unknown mode, or models that cannot be run so; their weights are not read."""
    if mode not in (AUTO, *modes()):
        raise ValueError(f"mode is {mode!r}; allowed are {', '.join((*modes(), AUTO))}")
    if mode != AUTO:
        modes()[mode].check_mode(models, device)
