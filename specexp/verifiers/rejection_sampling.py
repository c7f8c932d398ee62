"""Verifiers that sample from the target: their base class, rejection sampling, and sample-and-match."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from typing_extensions import override

from specexp.core.context import Context
from specexp.core.contracts import Verifier
from specexp.core.dialogue import Verdict
from specexp.core.sampling import Processors, on_host
from specexp.core.tree import NodeKind, TokenTree

if TYPE_CHECKING:
    import torch

Distribution = NDArray[np.float64]
"""``[V]`` probabilities."""


class SamplingVerifier(Verifier, ABC):
    """Verifies against the target's distribution after temperature, top-k and top-p have been applied.

    Args:
        temperature: temperature of the target; 0 accepts only its most probable token.
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
        """Return enough uniform numbers in (0, 1) for this step: one per draw, and one for the bonus token."""
        repeated = 0 if tree.draws is None else sum(map(len, tree.draws.values()))
        size = tree.num_nodes + repeated + 1
        numbers: list[float] = context.uniforms("verify", len(context) - 1, size=size).tolist()
        return numbers


class RejectionSampling(SamplingVerifier):
    """Tries the last accepted node's children one by one. The bonus token is drawn from the residual distribution.

    One rule covers chains (Leviathan et al. 2023), several candidates drawn with (Miao et al. 2023) or without
    replacement (Chen et al. 2024; Xiong et al. 2024, algorithm 3) and point masses. Let ``p`` be the target's
    distribution, ``r`` the residual (initially ``p``) and ``q`` the distribution that the next child was drawn from.

    - A drawn child ``y`` is accepted with probability ``min(1, r[y] / q[y])``. A rejection sets
      ``r = norm(max(r - q, 0))`` and, without replacement, ``q[y] = 0`` before ``q`` is renormalized.
    - A point mass ``y`` is accepted with probability ``r[y]``. A rejection sets ``r[y] = 0`` and renormalizes ``r``.

    When no child is left to try, the bonus token is drawn from ``r``. The randomness of a step is keyed by (seed,
    sequence, root position).
    """

    sampling = "rejection"

    @override
    def verify(self, context: Context, tree: TokenTree, logits: torch.Tensor) -> Verdict:
        """Walk down from the root until all children of a node are rejected."""
        uniforms = iter(self.uniforms(context, tree))
        drafted = None if on_host(logits) else self._drafted(tree, logits)
        accepted: list[int] = []
        row = 0
        while True:
            if drafted is not None and (first := next(iter(tree.draw_order(row)), None)) is not None:
                uniform = next(uniforms)
                if uniform * _drawn_with(tree, row, first) < drafted[first]:
                    accepted.append(first)
                    row = first
                    continue
                uniforms = chain([uniform], uniforms)  # put it back: try_children repeats this test
            left = self.processors.probabilities(logits[row])  # [V]
            child, left = self.try_children(tree, row, left, uniforms)
            if child is None:
                return Verdict(tuple(accepted), sample(left, next(uniforms)))
            accepted.append(child)
            row = child

    def _drafted(self, tree: TokenTree, logits: torch.Tensor) -> Distribution:
        """Return the target's probability ``[n + 1]`` of every node's token, copied from the device in one transfer.

        As long as first children are accepted, only one further copy is needed: the last row of the distribution.
        """
        import torch

        rows, columns = tree.shape.parents.clip(min=0), tree.tokens
        p = self.processors.scores(logits).double().softmax(dim=-1)
        at = (torch.from_numpy(index).to(logits.device) for index in (rows, columns))
        return np.asarray(p[tuple(at)].numpy(force=True))

    def try_children(
        self, tree: TokenTree, row: int, left: Distribution, uniforms: Iterator[float]
    ) -> tuple[int | None, Distribution]:
        """Return the accepted child of a row, or None, and the residual of the target's distribution ``[V]``."""
        for child, q in draws_of(tree, row, left.size):
            token = int(tree.tokens[child])
            if next(uniforms) * q[token] < left[token]:
                return child, left
            left = residual(left, q)
        return None, left


class SampleMatch(SamplingVerifier):
    """Draws one token from the target after every visited node, and follows the child with that token.

    It needs no draft distribution, so it works with every drafter. The samples are exact. It accepts no more than
    rejection sampling does with the same drawn tree. :class:`KeyedSampling` applies the same rule with noise that does
    not depend on the steps. The randomness of a step is keyed by (seed, sequence, root position).
    """

    @override
    def verify(self, context: Context, tree: TokenTree, logits: torch.Tensor) -> Verdict:
        """Walk down from the root while a child has the target's token."""
        uniforms = context.uniforms("verify", len(context) - 1, size=tree.shape.max_depth + 1).tolist()
        accepted: list[int] = []
        row = 0
        for uniform in uniforms:
            token = sample(self.processors.probabilities(logits[row]), uniform)
            child = tree.child_with_token(row, token)
            if child is None:
                break
            accepted.append(child)
            row = child
        return Verdict(tuple(accepted), token)


def _drawn_with(tree: TokenTree, row: int, child: int) -> float:
    """Return the probability with which a row's child was drawn."""
    if tree.kind(child) is NodeKind.POINT_MASS:
        return 1.0
    assert tree.q is not None, "drawn nodes come with their distribution"
    return float(normalized(tree.q[row].astype(np.float64))[int(tree.tokens[child])])


def draws_of(tree: TokenTree, row: int, vocab_size: int) -> Iterator[tuple[int, Distribution]]:
    """Yield the children of a row in the order in which they were drawn, each with the distribution it came from."""
    q: Distribution | None = None
    for child in tree.draw_order(row):
        token, kind = int(tree.tokens[child]), tree.kind(child)
        if kind is NodeKind.POINT_MASS:
            certain = np.zeros(vocab_size)
            certain[token] = 1.0
            yield child, certain
            continue
        if q is None:
            assert tree.q is not None, "drawn nodes come with their distribution"
            q = normalized(tree.q[row].astype(np.float64))
        yield child, q
        if kind is NodeKind.DRAWN:
            q = without(q, token)


def residual(left: Distribution, q: Distribution) -> Distribution:
    """Return ``norm(max(left - q, 0))``, or ``left`` if the maximum is 0 everywhere (then both are equal)."""
    rest = np.maximum(left - q, 0.0)
    total = rest.sum()
    return rest / total if total > 0 else left


def without(distribution: Distribution, token: int) -> Distribution:
    """Return the distribution without a token, or all zeros if the token had all the mass."""
    rest = distribution.copy()
    rest[token] = 0.0
    return normalized(rest)


def normalized(distribution: Distribution) -> Distribution:
    """Return the distribution divided by its sum, or unchanged if the sum is 0."""
    total = distribution.sum()
    return distribution / total if total > 0 else distribution


def sample(distribution: Distribution, uniform: float) -> int:
    """Return the token where the cumulative probability first exceeds ``uniform``. Its own probability is never 0."""
    upto = distribution.cumsum()
    return int(min(np.searchsorted(upto, uniform * upto[-1], side="right"), np.flatnonzero(distribution)[-1]))
