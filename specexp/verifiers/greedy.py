"""Greedy verification: the output of plain greedy decoding. ``follow`` in ``core/contracts.py`` accepts the tokens."""

from __future__ import annotations

from specexp.core.contracts import ArgmaxVerifier


class Greedy(ArgmaxVerifier):
    """Accepts the target's argmax (ties go to the lowest id)."""
