"""Execution strategies: several sequences decoded on one target, one after the other, together, or scheduled (SEED)."""

from typing import TYPE_CHECKING, Any

from specexp.scheduling.batched import Batched
from specexp.scheduling.execution import Execution
from specexp.scheduling.queue import FirstCome, Job, LeastProgress, MostConfident, QueuePolicy, Waiting
from specexp.scheduling.scheduled import Scheduled
from specexp.scheduling.serial import Serial, SerialSpeculative
from specexp.scheduling.timeline import Span, TimeLine

if TYPE_CHECKING:
    from specexp.scheduling.executor import Executor as Executor, Run as Run

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
    """Executors need torch, which takes a second to import: they are imported when first asked for."""
    if name in ("Executor", "Run"):
        from specexp.scheduling import executor

        return getattr(executor, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
