"""Starting workers, one table for all of them, and the end: what the process does that was given ``--on``."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from specexp.cluster.fleet import Fleet, Status, Work
from specexp.cluster.options import ClusterOptions
from specexp.cluster.starting import start_fleet
from specexp.core.messages import counted

SECONDS = (0.2, 2.0)
"""Between two looks, at first and at most: a fiftieth of the time that has passed, so that short work ends soon."""


def lead(
    options: ClusterOptions,
    works: Sequence[Work],
    folder: Path,
    *,
    gpus: int,
    threads: int | None = None,
    progress: Callable[[], RenderableType | None] = lambda: None,
    console: Console | None = None,
) -> list[Status]:
    """Start workers and show how they are, until all have ended.

    Ctrl-C ends them, or leaves them running where ``options.detach`` says so.

    Args:
        options: Where they run.
        works: What each runs.
        folder: Where logs go.
        gpus: Of each worker.
        threads: Of each worker.
        progress: What is shown above the workers.
        console: Where; the terminal if None.

    Returns:
        How each ended.

    Raises:
        ConfigError: There is no such cluster, or it is too small.
        KeyboardInterrupt: Ctrl-C.
    """
    console = console or Console(highlight=False)
    fleet = start_fleet(options, works, gpus, threads, folder)
    try:
        statuses = _watch(fleet, progress, console)
    except BaseException:
        if options.detach:
            console.print(f"The workers go on without this process; their logs are in {folder}.")
            fleet.close()
        else:
            fleet.stop()
        raise
    fleet.close()
    return statuses


def _watch(fleet: Fleet, progress: Callable[[], RenderableType | None], console: Console) -> list[Status]:
    shown: list[Status] = []
    least, most = SECONDS
    began = time.monotonic()
    with Live(console=console, auto_refresh=False, transient=False) as live:
        while True:
            statuses = fleet.statuses()
            above = progress()
            table = table_of(statuses)
            if console.is_terminal:
                live.update(table if above is None else Group(above, table), refresh=True)
            elif statuses != shown:
                console.print(summary(statuses))
            shown = statuses
            if all(one.state in ("ended", "failed") for one in statuses):
                if not console.is_terminal and above is not None:
                    console.print(above)
                return statuses
            time.sleep(min(most, max(least, (time.monotonic() - began) / 50)))


def table_of(statuses: Sequence[Status]) -> Table:
    """Workers with their states."""
    table = Table("worker", "state", "where", "said", title=summary(statuses), title_justify="left")
    for one in statuses:
        table.add_row(one.name, one.state, one.where, Text(one.said))
    return table


def summary(statuses: Sequence[Status]) -> str:
    """How many are in which state."""
    states = [one.state for one in statuses]
    return f"{counted(len(states), 'worker')}: " + ", ".join(
        f"{states.count(state)} {state}" for state in dict.fromkeys(states)
    )
