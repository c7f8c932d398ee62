"""The machine's drift: how much slower plain decoding is now than when it was measured at the start of the
study.
"""

from __future__ import annotations

import json
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from specexp.artifacts.atomic_write import atomic_write
from specexp.bench.metrics import metric_named
from specexp.bench.record import PromptRecord

WINDOW = 3
"""Interleaved AR runs that say how fast the machine is now; their median, so that one disturbed run does
not.
"""

EVERY = 4
"""In a search, AR runs beside the strategy on every fourth prompt."""


def seconds_per_token(records: Sequence[PromptRecord]) -> float:
    """Decode seconds per token of a prompt, all its samples together.

    Raises:
        ValueError: Nothing was decoded.
    """
    found = metric_named("seconds_per_token").over(records)
    if not found:
        raise ValueError(f"prompt {records[0].prompt_id!r} gave no token with arm {records[0].arm!r}")
    return found


class PlainSeconds:
    """AR's seconds per token for every prompt, measured once, and rescaled by what AR takes now.

    Args:
        seconds_per_token: Seconds per token by prompt id, measured at the start of the study.

    Example:
        >>> reference = PlainSeconds({"a": 0.004, "b": 0.006})
        >>> reference.observe("a", 0.005)  # the machine is 1.25 times as slow as it was
        >>> round(reference.now("b"), 4)
        0.0075
    """

    def __init__(self, seconds_per_token: Mapping[str, float]) -> None:
        self.seconds_per_token = dict(seconds_per_token)
        self._ratios: deque[float] = deque(maxlen=WINDOW)

    def observe(self, prompt_id: str, seconds_per_token: float) -> None:
        """AR was run again on a prompt."""
        self._ratios.append(seconds_per_token / self.seconds_per_token[prompt_id])

    @property
    def drift(self) -> float:
        """Median of the last ratios now / then; 1 before any."""
        return statistics.median(self._ratios) if self._ratios else 1.0

    def now(self, prompt_id: str) -> float:
        """AR's seconds per token on a prompt, as the machine is now."""
        return self.seconds_per_token[prompt_id] * self.drift

    def save(self, path: Path, digest: str) -> None:
        """Keep the seconds for a resumed study; ``digest`` says of which target, prompts and sampling they
        are.
        """
        kept = {"digest": digest, "seconds_per_token": self.seconds_per_token}
        atomic_write(path, json.dumps(kept, indent=1))

    @classmethod
    def load(cls, path: Path, digest: str) -> PlainSeconds | None:
        """What :meth:`save` kept, or None where there is nothing, or it is of another workload."""
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            if kept["digest"] == digest:
                return cls({str(key): float(value) for key, value in kept["seconds_per_token"].items()})
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass
        return None
