"""How many hours of a device a recording, a search and a confirmation take at most, told before any is spent.

An upper bound by a latency profile: every answer has its full length, and a candidate is as slow as plain decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specexp.core.latency import LatencyProfile
from specexp.core.tree_builder import TreeBuilder

HOUR = 3600.0


@dataclass(frozen=True)
class Prompts:
    """What is decoded of each prompt once.

    Attributes:
        lengths: Tokens of every prompt.
        new_tokens: Of an answer, at most.
        samples: Answers of each prompt.
    """

    lengths: Sequence[int]
    new_tokens: int
    samples: int

    @property
    def answers(self) -> int:
        """How many there are."""
        return len(self.lengths) * self.samples

    def hours(self, latency: LatencyProfile) -> float:
        """Of decoding all of them plainly."""
        seconds = sum(latency.plain_seconds(length, self.new_tokens) for length in self.lengths)
        return self.samples * seconds / HOUR


@dataclass(frozen=True)
class Stage:
    """A part of the work.

    Attributes:
        name: What it does.
        answers: How many prompts it decodes, with all repetitions.
        hours: Of a device, at most; 0 of what is replayed.
        why: Where that comes from.
    """

    name: str
    answers: int
    hours: float
    why: str


def recording_hours(prompts: Prompts, builders: Sequence[TreeBuilder], latency: LatencyProfile) -> float:
    """Of recording prompts: plain decoding, and every covering builder at every token of the answers.

    Args:
        prompts: Which.
        builders: The coverage.
        latency: What passes cost.
    """
    covering = 0.0
    for builder in builders:
        passes = builder.max_nodes * latency.draft_seconds(1) if latency.draft_ms else 0.0
        covering += passes + latency.target_seconds(builder.max_nodes + 1)
    return prompts.hours(latency) + prompts.answers * prompts.new_tokens * covering / HOUR


def told(stages: Sequence[Stage], workers: int) -> list[str]:
    """The plan for a person, a line a stage.

    Args:
        stages: What is done, in order.
        workers: How many devices share it.
    """
    lines = [
        f"{one.name}: {'no device' if not one.hours else f'at most {shown(one.hours)}'}, {one.answers} answers "
        f"({one.why})"
        for one in stages
    ]
    whole = sum(one.hours for one in stages)
    replayed = sum(one.answers for one in stages if not one.hours)
    share = replayed / max(sum(one.answers for one in stages), 1)
    shared = f", {shown(whole / workers)} on each of {workers}" if workers > 1 else ""
    return [
        *lines,
        f"device time in all: at most {shown(whole)}{shared}; {share:.0%} of the answers need no device, for they are "
        "replayed",
    ]


def shown(hours: float) -> str:
    """Hours of a device for a person, e.g. ``2.5 device hours``."""
    return f"{hours:.2g} device hours"
