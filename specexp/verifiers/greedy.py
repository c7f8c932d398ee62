"""Greedy verification: the output of plain greedy decoding."""

from __future__ import annotations

from specexp.core.contracts import ArgmaxVerifier


class Greedy(ArgmaxVerifier):
    """Accepts the target's argmax (ties go to the lowest id)."""
