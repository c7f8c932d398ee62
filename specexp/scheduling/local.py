"""The executor that works in one thread: every sequence drafts, then one target pass answers all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from specexp.core.context import Context
from specexp.core.loop import Drafting
from specexp.core.parts import Parts
from specexp.core.runtime import Runtime
from specexp.scheduling.executor import Executor

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class LocalExecutor(Executor):
    """Lanes whose parts are in this thread."""

    def __init__(self, model: PreTrainedModel | Runtime, parts: Parts, n: int, threads: int | None) -> None:
        super().__init__(model, parts, n, threads)
        self._parts = copies(parts, n)

    @override
    def reset(
        self, drafter: Mapping[str, Any] | None = None, controller: Mapping[str, Any] | None = None
    ) -> None:
        self._check_open()
        self._parts = copies(initial(self._parts[0], drafter, controller), self.n)

    @override
    def memory(self) -> dict[str, int]:
        self._check_open()
        return bytes_of(self._parts)

    @override
    def _drafting(self, slot: int, context: Context) -> Drafting:
        return Drafting(self._parts[slot], context)


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
