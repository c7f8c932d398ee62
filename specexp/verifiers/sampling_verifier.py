"""Base of verifiers that sample from the target's distribution."""

from __future__ import annotations

from abc import ABC
from typing import Annotated

from pydantic import Field

from specexp.core.context import Context
from specexp.core.contracts import Verifier
from specexp.core.sampling import Processors
from specexp.core.tree import TokenTree


class SamplingVerifier(Verifier, ABC):
    """Verifies against the target's distribution after temperature, top-k and top-p.

    Args:
        temperature: divides the target's logits; at 0 only its most probable token is left.
        top_k: keep only this many of the target's most probable tokens.
        top_p: keep only the smallest set of most probable tokens with at least this total probability.
    """

    processors: Processors

    def __init__(
        self,
        temperature: Annotated[float, Field(ge=0, le=100)] = 1.0,
        top_k: Annotated[int, Field(ge=1)] | None = None,
        top_p: Annotated[float, Field(gt=0, le=1)] | None = None,
    ) -> None:
        self.processors = Processors(temperature, top_k, top_p)
        self.temperature = temperature
        self.top_k = top_k
        self.top_p = top_p

    def uniforms(self, context: Context, tree: TokenTree) -> list[float]:
        """Return enough numbers in (0, 1) for this step: one per draw and one for the bonus."""
        repeated = 0 if tree.draws is None else sum(map(len, tree.draws.values()))
        size = tree.num_nodes + repeated + 1
        numbers: list[float] = context.uniforms("verify", len(context) - 1, size=size).tolist()
        return numbers
