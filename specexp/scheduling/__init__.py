"""Execution strategies for decoding several sequences on one target: serial, batched, or scheduled (SEED)."""

from typing import TYPE_CHECKING

from specexp.base.checked import classes_in

if TYPE_CHECKING:
    from specexp.scheduling.executor import Executor as Executor, Run as Run
    from specexp.scheduling.queue import (
        FirstCome as FirstCome,
        Job as Job,
        LeastProgress as LeastProgress,
        MostConfident as MostConfident,
        QueuePolicy as QueuePolicy,
        Waiting as Waiting,
    )
    from specexp.scheduling.strategies import (
        Batched as Batched,
        Execution as Execution,
        Scheduled as Scheduled,
        Serial as Serial,
        SerialSpeculative as SerialSpeculative,
    )
    from specexp.scheduling.timeline import Span as Span, TimeLine as TimeLine

__getattr__ = classes_in(__name__)
