"""The parts of several sequences decoded at the same time: one copy of weights, one of what is carried, own caches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from specexp.core.parts import Parts


def copies(parts: Parts, n: int) -> list[Parts]:
    """Parts for ``n`` sequences; the first are the given ones.

    Builders and verifiers keep nothing between calls and are shared as they are.
    """
    return [
        parts,
        *(
            parts._replace(
                drafter=None if parts.drafter is None else parts.drafter.for_new_sequence(),
                controller=parts.controller.for_new_sequence(),
            )
            for _ in range(n - 1)
        ),
    ]


def initial(parts: Parts, drafter: Mapping[str, Any] | None, controller: Mapping[str, Any] | None) -> Parts:
    """The same parts in their initial state, or in saved ones."""
    for part, state in ((parts.drafter, drafter), (parts.controller, controller)):
        if part is not None:
            part.reset()
            if state:
                part.load_state_dict(deepcopy(dict(state)))
    return parts


def bytes_of(parts: Sequence[Parts]) -> dict[str, int]:
    """Bytes of draft models: ``weights``, where several sequences share them once, and ``caches``."""
    weights: dict[int, int] = {}
    caches: dict[int, int] = {}
    for part in parts:
        for model in () if part.drafter is None else part.drafter.models:
            weights |= model.weight_bytes()
            caches[id(model.cache)] = model.cache.nbytes()
    return {"weights": sum(weights.values()), "caches": sum(caches.values())}
