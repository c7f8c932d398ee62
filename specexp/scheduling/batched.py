"""All sequences together: every one drafts, then one target pass verifies all drafts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field
from typing_extensions import override

from specexp.core.parts import Parts
from specexp.scheduling.execution import Execution, refuse_carried

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from specexp.core.runtime import Runtime
    from specexp.scheduling.executor import Executor


class Batched(Execution):
    """Decodes ``n`` sequences in step: each drafts, and one target pass answers all (SEED, Fig. 1 d).

    A draft model drafts for all of them in one pass a level. Nothing overlaps: the target waits for the last draft, and
    all wait for the target. Without a drafter it is batched
    plain decoding. A sequence that ends makes room for the next one.

    Args:
        n: sequences at a time, each with a KV cache of target and draft model.
        threads: number of torch's threads, for target and drafter; None leaves it as it is.
    """

    def __init__(
        self, n: Annotated[int, Field(ge=1)] = 3, threads: Annotated[int, Field(ge=1)] | None = None
    ) -> None:
        self.n = n
        self.threads = threads

    def check(self, parts: Parts) -> None:
        """Learned state may be shared only where the output does not depend on the drafts."""
        super().check(parts)
        refuse_carried(parts, "Batched")

    @override
    def open(self, model: PreTrainedModel | Runtime, parts: Parts) -> Executor:
        from specexp.scheduling.local import LocalExecutor

        self.check(parts)
        return LocalExecutor(model, parts, self.n, self.threads)
