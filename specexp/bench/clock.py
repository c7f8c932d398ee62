"""The clock behind a run's timings: measured, or modelled by a latency profile. Modelled figures are marked as such."""

from __future__ import annotations

from collections.abc import Iterable

from specexp.bench.record import MEASURED, PromptRecord
from specexp.tracking.names import MODELLED


def clock_of(records: Iterable[PromptRecord]) -> str:
    """Return the clock shared by all records, or ``measured`` if there are none. Raises ValueError if clocks differ."""
    found = sorted({record.clock for record in records if not record.error})
    if len(found) > 1:
        raise ValueError(f"records must have the same clock, got {', '.join(found)}")
    return found[0] if found else MEASURED


def adjective(clock: str) -> str:
    """Return the word to put before a figure in a heading: ``"modelled "`` if its seconds are modelled, else ``""``."""
    return "" if clock == MEASURED else "modelled "


def metric_prefix(clock: str) -> str:
    """Return the prefix of metric names in W&B, CSV and JSON: ``"modelled_"`` if seconds are modelled, else ``""``."""
    return "" if clock == MEASURED else MODELLED


def titled(text: str, clock: str) -> str:
    """Return a title, followed by the label of the latency profile if seconds are modelled."""
    return text if clock == MEASURED else f"{text} ({clock})"
