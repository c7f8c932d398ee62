"""Which clock seconds are of: the run's own, or a latency profile's. What is modelled says so wherever it is shown."""

from __future__ import annotations

from collections.abc import Iterable

from specexp.bench.record import MEASURED, PromptRecord
from specexp.tracking.names import MODELLED


def clock_of(records: Iterable[PromptRecord]) -> str:
    """The one clock of all seconds; ``measured`` where nothing was decoded.

    Raises:
        ValueError: the records have several.
    """
    found = sorted({record.clock for record in records if not record.error})
    if len(found) > 1:
        raise ValueError(f"seconds of different clocks cannot be put together: {', '.join(found)}")
    return found[0] if found else MEASURED


def adjective(clock: str) -> str:
    """What stands before a figure of this clock, in a heading: ``"modelled "``, or nothing."""
    return "" if clock == MEASURED else "modelled "


def metric_prefix(clock: str) -> str:
    """What stands before the name of such a figure in W&B, CSV and JSON: ``"modelled_"``, or nothing."""
    return "" if clock == MEASURED else MODELLED


def titled(text: str, clock: str) -> str:
    """A title that tells the profile, where seconds are modelled."""
    return text if clock == MEASURED else f"{text} ({clock})"
