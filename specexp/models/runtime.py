"""Chooses the mode in which a loaded model runs, such as eager or compiled."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from specexp.base.kernels import CannotRunError
from specexp.core.runtime import Runtime

if TYPE_CHECKING:
    from transformers import PreTrainedModel

AUTO = "auto"
"""The mode that uses the highest-ranked runtime that works on this machine. The reason for a fallback is logged."""
log = logging.getLogger(__name__)
_LOADED_IN: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


tell_once = cache(log.warning)
"""Log a warning once per process, even if a run creates many runtimes for one model."""


def set_mode(model: PreTrainedModel | Runtime, mode: str) -> None:
    """Set the mode of a model for all decoders that receive the bare model. A runtime keeps its own mode."""
    from specexp.core.language_model import set_runtime

    if not isinstance(model, Runtime):
        _LOADED_IN[model] = mode
        set_runtime(model, runtime_of)


def mode_of(model: PreTrainedModel) -> str:
    """Return the mode that a model was loaded with, or ``auto`` if :func:`load_pair` did not load it."""
    try:
        return _LOADED_IN.get(model, "auto")
    except TypeError:  # not a model; the constructor of the runtime raises a clear error
        return "auto"


def runtime_of(
    model: PreTrainedModel | Runtime,
    mode: str | None = None,
    tell: Callable[[str], None] = tell_once,
) -> Runtime:
    """Return a runtime for a loaded model, with its own empty cache. A runtime is returned unchanged.

    Args:
        model: a Hugging Face causal LM.
        mode: a name from :func:`modes`, or ``auto``. If None, the mode that the model was loaded with.
        tell: called with the reason if ``auto`` falls back to the lowest-ranked mode.

    Raises:
        ValueError: the model cannot run in this mode.
    """
    if isinstance(model, Runtime):
        return model
    mode = mode_of(model) if mode is None else mode
    check_mode(mode)
    if mode != AUTO:
        return modes()[mode].run(model)
    *faster, last = _ranked(str(getattr(model, "device", "")))
    why = []
    for kind in faster:
        try:
            return kind.run(model)
        except CannotRunError as error:
            why.append(str(error))
    if why:
        tell(f"running in {last.kind} mode, since {'; '.join(why)}")
    return last.run(model)


def tell_fallback(models: Iterable[PreTrainedModel | Runtime], device: str) -> None:
    """Log what :func:`runtime_of` will log if ``auto`` falls back for a model on this device. No weights are read."""
    *faster, last = _ranked(device)
    for model in models:
        why = []
        for kind in () if isinstance(model, Runtime) else faster:
            try:
                kind.check_mode([model], device)
            except ValueError as error:
                why.append(str(error))
        if why and len(why) == len(faster):
            tell_once(f"running in {last.kind} mode, since {'; '.join(why)}")


def _ranked(device: str) -> list[type[Runtime]]:
    """Return the modes that ``auto`` tries on a device, the fastest first."""
    ranks = {
        kind: kind.mode_rank
        for kind in modes().values()
        if kind.mode_rank is not None
        and (kind.auto_devices is None or device.partition(":")[0] in kind.auto_devices)
    }
    return sorted((kind for kind in ranks if ranks[kind] >= 0), key=lambda kind: -ranks[kind])


@cache
def modes() -> dict[str, type[Runtime]]:
    """Return the runtime classes for Hugging Face models in this folder, keyed by mode name."""
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
    """Raise ``ValueError`` if a mode is unknown or cannot run these models. No weights are read."""
    if mode not in (AUTO, *modes()):
        raise ValueError(f"mode must be one of {', '.join((*modes(), AUTO))}, got {mode!r}")
    if mode != AUTO:
        modes()[mode].check_mode(models, device)
