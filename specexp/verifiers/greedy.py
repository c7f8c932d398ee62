"""Greedy verification: the output of plain greedy decoding."""

from __future__ import annotations

from specexp.core.contracts import ArgmaxVerifier


class Greedy(ArgmaxVerifier):
    """Accepts the tokens the target itself finds most probable; among equals the lowest token id."""
