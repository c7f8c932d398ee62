"""One thing that was looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "note", "problem"]
"""A note is what costs time or is left out; a problem is what keeps specexp from working."""


@dataclass(frozen=True)
class Diagnosis:
    """One thing that was looked at.

    Attributes:
        topic: what, in a word or two.
        said: what it is.
        verdict: how that is.
        advice: what to do about it; empty where nothing is to be done.
    """

    topic: str
    said: str
    verdict: Verdict = "ok"
    advice: str = ""
