"""Execution strategies: several sequences decoded on one target, one after the other, together, or scheduled (SEED)."""

from typing import TYPE_CHECKING, Any

from specexp.execution._base import Execution, Job
from specexp.execution.batched import Batched
from specexp.execution.policies import FirstCome, LeastProgress, MostConfident, QueuePolicy, Waiting
from specexp.execution.scheduled import Scheduled
from specexp.execution.serial import Serial, SerialSpeculative
from specexp.execution.timeline import Span, TimeLine

if TYPE_CHECKING:
    from specexp.execution.executor import Executor as Executor
    from specexp.execution.executor import Run as Run

__all__ = [
    "Batched",
    "Execution",
    "FirstCome",
    "Job",
    "LeastProgress",
    "MostConfident",
    "QueuePolicy",
    "Scheduled",
    "Serial",
    "SerialSpeculative",
    "Span",
    "TimeLine",
    "Waiting",
]


def __getattr__(name: str) -> Any:
    """Executors need torch, which takes a second to import; a configuration looks for parts in ``__all__``."""
    if name in ("Executor", "Run"):
        from specexp.execution import executor

        return getattr(executor, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
