"""Greedy verification: outputs the tokens of plain greedy decoding, using ``follow`` in ``core/contracts.py``."""

from __future__ import annotations

from specexp.core.contracts import ArgmaxVerifier


class Greedy(ArgmaxVerifier):
    """Accepts the target's argmax (ties go to the lowest id)."""
