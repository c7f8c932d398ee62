"""One sequence after the other: plain decoding, and speculative decoding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field
from typing_extensions import override

from specexp.core.parts import Parts
from specexp.scheduling.execution import Execution

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from specexp.core.runtime import Runtime
    from specexp.scheduling.executor import Executor


class Serial(Execution):
    """Plain autoregressive decoding of one sequence after the other (SEED, Fig. 1 a); a drafter is left out.

    Args:
        threads: number of torch's threads; None leaves it as it is.
    """

    def __init__(self, threads: Annotated[int, Field(ge=1)] | None = None) -> None:
        self.threads = threads

    @override
    def open(self, model: PreTrainedModel | Runtime, parts: Parts) -> Executor:
        from specexp.scheduling.local import LocalExecutor

        self.check(parts)
        return LocalExecutor(model, Parts(None, None, parts.verifier), 1, self.threads)


class SerialSpeculative(Execution):
    """Speculative decoding of one sequence after the other (SEED, Fig. 1 b): the target idles while the drafter works.

    Args:
        threads: number of torch's threads, for target and drafter; None leaves it as it is.
    """

    def __init__(self, threads: Annotated[int, Field(ge=1)] | None = None) -> None:
        self.threads = threads

    @override
    def open(self, model: PreTrainedModel | Runtime, parts: Parts) -> Executor:
        from specexp.scheduling.local import LocalExecutor

        self.check(parts)
        return LocalExecutor(model, parts, 1, self.threads)
