"""Keeps a failing onlooker from stopping the work it looks at."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from specexp.core.messages import type_and_line

log = logging.getLogger(__name__)


class Guard:
    """Turns every failure of W&B into one warning per kind of failure.

    Example:
        >>> guard = Guard()
        >>> with guard("write a run"):
        ...     raise OSError("disk full")
        >>> guard.failures
        {'write a run': 1}
    """

    def __init__(self) -> None:
        self.failures: dict[str, int] = {}

    @contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        """Run the block; if it raises, warn that ``what`` failed, once, and go on."""
        try:
            yield
        # A broad except on purpose: what wandb raises (its own errors, those of sockets, disks,
        # Pillow, a dead service process) is not a closed set, and none of it is worth an hour of measuring.
        # The records, the journal and the artifact are written by specexp itself, so nothing is lost.
        except Exception as error:
            self.failures[what] = self.failures.get(what, 0) + 1
            if self.failures[what] == 1:
                reason = type_and_line(error)
                log.warning("W&B could not %s (%s); the work goes on without it", what, reason)
