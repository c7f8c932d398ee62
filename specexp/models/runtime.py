"""Chooses the mode in which a loaded model runs, such as eager or compiled."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import cache
from typing import TYPE_CHECKING

from specexp.base.checked import import_object
from specexp.base.kernels import CannotRunError
from specexp.core.runtime import Runtime
from specexp.models.modes import AUTO, MODES

if TYPE_CHECKING:
    from transformers import PreTrainedModel

log = logging.getLogger(__name__)


tell_once = cache(log.warning)
"""Log a warning once per process, even if a run creates many runtimes for one model."""


def runtime_of(
    model: PreTrainedModel | Runtime,
    mode: str | None = None,
    tell: Callable[[str], None] = tell_once,
) -> Runtime:
    """Return a runtime for a loaded model, with its own empty cache. A runtime is returned unchanged.

    Args:
        model: a Hugging Face causal LM.
        mode: a key of :data:`~specexp.models.modes.MODES`, or ``auto``. If None, the mode that was set for the model.
        tell: called with the reason if ``auto`` falls back to the last mode.

    Raises:
        ValueError: the model cannot run in this mode.
    """
    if isinstance(model, Runtime):
        return model
    if mode is None:
        from specexp.core.language_model import mode_of

        mode = mode_of(model)
    check_mode(mode)
    if mode != AUTO:
        return runtime_class(mode).for_model(model)
    *faster, last = _ranked(str(getattr(model, "device", "")))
    why = []
    for kind in faster:
        try:
            return kind.for_model(model)
        except CannotRunError as error:
            why.append(str(error))
    if why:
        tell(f"running in {last.kind} mode, since {'; '.join(why)}")
    return last.for_model(model)


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
    of_type = device.partition(":")[0]
    return [runtime_class(name) for name, mode in reversed(MODES.items()) if mode.auto is None or of_type in mode.auto]


def runtime_class(mode: str) -> type[Runtime]:
    """Return the runtime of a mode."""
    found: type[Runtime] = import_object(MODES[mode].runtime)
    return found


def check_mode(mode: str, models: Iterable[PreTrainedModel] = (), device: str = "cpu") -> None:
    """Raise ``ValueError`` if a mode is unknown or cannot run these models. No weights are read."""
    if mode not in (AUTO, *MODES):
        raise ValueError(f"mode must be one of {', '.join((*MODES, AUTO))}, got {mode!r}")
    if mode != AUTO:
        runtime_class(mode).check_mode(models, device)
