"""Execution strategies for decoding several sequences on one target: serial, batched, or scheduled (SEED)."""

from typing import TYPE_CHECKING, Any

from specexp.scheduling.queue import FirstCome, Job, LeastProgress, MostConfident, QueuePolicy, Waiting
from specexp.scheduling.strategies import Batched, Execution, Scheduled, Serial, SerialSpeculative
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
    """Import executors on first use, because they need torch, which takes a second to import."""
    if name in ("Executor", "Run"):
        from specexp.scheduling import executor

        return getattr(executor, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
