"""Plain decoding's seconds per token, with which every trial of a study is compared."""

from __future__ import annotations

import json
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from specexp.artifacts.atomic_write import atomic_write
from specexp.bench.metrics import metric_named
from specexp.bench.record import PromptRecord
from specexp.bench.statistics import looping

WINDOW = 3
"""The machine's speed is the median over this many runs of plain decoding, so a single disturbed run has no effect."""


def seconds_per_token(records: Sequence[PromptRecord]) -> float:
    """Return a prompt's decode seconds per token over all samples; raises ValueError if no token counts."""
    found = metric_named("seconds_per_token").over(records)
    if not found:
        why = looping(records) or f"arm {records[0].arm!r} decoded no token"
        raise ValueError(f"it has no speed, since {why}; if others repeat themselves too, take another model")
    return found


class PlainSeconds:
    """Plain decoding's seconds per token by prompt id, scaled to the machine's current speed.

    ``per_prompt`` is the mean number of seconds per prompt, including the prefill; None if it was not measured.
    ``start`` is the number of seconds in which an engine's server started; 0 without one.

    Example:
        >>> reference = PlainSeconds({"a": 0.004, "b": 0.006})
        >>> reference.observe("a", 0.005)  # the machine is 1.25 times as slow as it was
        >>> round(reference.now("b"), 4)
        0.0075
    """

    def __init__(
        self, seconds_per_token: Mapping[str, float], per_prompt: float | None = None, start: float = 0.0
    ) -> None:
        self.seconds_per_token = dict(seconds_per_token)
        self.per_prompt = per_prompt
        self.start = start
        self._ratios: deque[float] = deque(maxlen=WINDOW)

    def observe(self, prompt_id: str, seconds_per_token: float) -> None:
        """Add the seconds per token of another plain decoding run on a prompt."""
        self._ratios.append(seconds_per_token / self.seconds_per_token[prompt_id])

    @property
    def drift(self) -> float:
        """Median of the latest ratios of current to initial seconds; 1 before the first observation."""
        return statistics.median(self._ratios) if self._ratios else 1.0

    def now(self, prompt_id: str) -> float:
        """Return the seconds per token for a prompt at the machine's current speed."""
        return self.seconds_per_token[prompt_id] * self.drift

    def save(self, path: Path, digest: str) -> None:
        """Save the seconds for a resumed study of the same workload."""
        names = ("seconds_per_token", "per_prompt", "start")
        atomic_write(path, json.dumps({"digest": digest, **{one: getattr(self, one) for one in names}}, indent=1))

    @classmethod
    def load(cls, path: Path, digest: str) -> PlainSeconds:
        """Return the saved seconds; empty if none were saved for this workload."""
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            same = kept.pop("digest") == digest
            return cls(**kept) if same else cls({})
        except (OSError, ValueError, KeyError, TypeError):
            return cls({})
