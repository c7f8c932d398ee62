"""The executor that works in one thread: every sequence drafts, then one target pass answers all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from specexp.core.context import Context
from specexp.core.drafting import Drafting
from specexp.core.parts import Parts
from specexp.core.runtime import Runtime
from specexp.scheduling.drafters import bytes_of, copies, initial
from specexp.scheduling.executor import Executor

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class LocalExecutor(Executor):
    """Lanes whose parts are here.

    Args:
        model: the target.
        parts: what every sequence is decoded with.
        n: sequences at a time.
        threads: number of torch's threads.
    """

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
