"""Execution strategies: several sequences decoded on one target, one after the other, together, or scheduled (SEED)."""

from specexp.execution._base import Execution, Executor, Job, Run
from specexp.execution.batched import Batched
from specexp.execution.policies import FirstCome, LeastProgress, MostConfident, QueuePolicy, Waiting
from specexp.execution.scheduled import Scheduled
from specexp.execution.serial import Serial, SerialSpeculative
from specexp.execution.timeline import Span, TimeLine

__all__ = [
    "Batched",
    "Execution",
    "Executor",
    "FirstCome",
    "Job",
    "LeastProgress",
    "MostConfident",
    "QueuePolicy",
    "Run",
    "Scheduled",
    "Serial",
    "SerialSpeculative",
    "Span",
    "TimeLine",
    "Waiting",
]
