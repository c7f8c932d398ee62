"""Traversal verification: draws exact samples from the target and verifies a drawn tree from the leaves up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from typing_extensions import override

from specexp.core.context import Context
from specexp.core.dialogue import Verdict
from specexp.core.tree import TokenTree
from specexp.verifiers.rejection_sampling import Distribution, SamplingVerifier, draws_of, residual, sample

if TYPE_CHECKING:
    import torch


@dataclass
class _Visit:
    """A node on the current path."""

    row: int
    accept: float  # its value: the probability of accepting it or one of the remaining nodes below it
    q: Distribution  # the distribution it was drawn from; empty for the root
    draws: Iterator[tuple[int, Distribution]]  # its remaining children, each with its q
    left: Distribution | None = None  # its residual; None until a child is tried


class TraversalVerification(SamplingVerifier):
    """Tries the leaves of a tree first, and every other node after all nodes below it (Weng et al. 2025).

    Let ``p`` be the target's distribution after a node and ``r`` the residual, initially ``p``. The next child was
    drawn from ``q``, and the node's own value is ``a``, which is 1 for the root.

    - A child ``y`` has the value ``min(1, a * r[y] / q[y])``. Its own children are tried first. Then ``y`` itself, with
      the path to it, is accepted with probability equal to its value.
    - A rejection sets ``s = sum(max(a * r - q, 0))``, ``r = norm(max(a * r - q, 0))`` and ``a = s / (s + 1 - a)``.
      Without replacement, it also sets ``q[y] = 0`` and renormalizes ``q``.

    The bonus token is drawn from the accepted node's ``r``. Chains are verified as in :class:`BlockVerification`. On
    average it accepts at least as many tokens as :class:`RejectionSampling`, and equally many if no node was drawn. The
    randomness of a step is keyed by (seed, sequence, root position).
    """

    sampling = "rejection"
    needs_draws = True

    @override
    def verify(self, context: Context, tree: TokenTree, logits: torch.Tensor) -> Verdict:
        """Walk down to the next leaf, and up to the parent after a rejection."""
        uniforms = iter(self.uniforms(context, tree))
        visited: set[int] = set()

        def visit(row: int, accept: float, q: Distribution) -> _Visit:
            # a token drawn again is a leaf: the nodes below it were already tried, so they are not fresh draws
            draws = iter(()) if row in visited else draws_of(tree, row, logits.shape[-1])
            visited.add(row)
            return _Visit(row, accept, q, draws)

        path = [visit(0, 1.0, np.empty(0))]
        while True:
            node = path[-1]
            drawn = next(node.draws, None)
            if drawn is not None:
                child, q = drawn
                if node.left is None:
                    node.left = self.processors.probabilities(logits[node.row])
                path.append(visit(child, value(node.accept, node.left, q, int(tree.tokens[child])), q))
            elif len(path) == 1 or next(uniforms) < node.accept:
                left = self.processors.probabilities(logits[node.row]) if node.left is None else node.left
                return Verdict(tuple(one.row for one in path[1:]), sample(left, next(uniforms)))
            else:
                path.pop()
                parent = path[-1]
                assert parent.left is not None, "a child of it was tried"
                parent.accept, parent.left = after_rejection(parent.accept, parent.left, node.q)


def value(accept: float, left: Distribution, q: Distribution, token: int) -> float:
    """Return the value of a child: ``min(1, accept * left[token] / q[token])``."""
    return float(min(1.0, accept * left[token] / max(q[token], np.finfo(np.float64).tiny)))


def after_rejection(accept: float, left: Distribution, q: Distribution) -> tuple[float, Distribution]:
    """Return the value and residual of a node after a child drawn from ``q`` was rejected."""
    rest = accept * left
    total = float(np.maximum(rest - q, 0.0).sum())
    # a node that is certain to be accepted stays so, even if rounding leaves no residual
    return total / (total + 1.0 - accept) if accept < 1.0 else 1.0, residual(rest, q)
