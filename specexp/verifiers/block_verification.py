"""Block verification: draws exact samples from the target and verifies a drawn chain as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from specexp.core.context import Context
from specexp.core.dialogue import Verdict
from specexp.core.tree import TokenTree
from specexp.verifiers.rejection_sampling import Distribution, SamplingVerifier, draws_of, sample
from specexp.verifiers.traversal_verification import after_rejection, value

if TYPE_CHECKING:
    import torch


class BlockVerification(SamplingVerifier):
    """Accepts the longest prefix of a drawn chain that passes its test (Sun et al. 2025).

    Let ``p_i`` and ``q_i`` be the target's and draft's distributions after the first ``i`` of ``n`` draft tokens ``x``.

    - The value of a prefix is ``a_i = min(1, a_(i-1) * p_(i-1)[x_i] / q_(i-1)[x_i])``, with ``a_0 = 1``.
    - Its residual is ``max(a_i * p_i - q_i, 0)``, which sums to ``s_i``.
    - It passes with probability ``h_i = s_i / (s_i + 1 - a_i)``; for the whole chain, this is ``h_n = a_n``.
    - The longest prefix that passes is accepted, even if a shorter one failed. The bonus token is drawn from its
      normalized residual, or from ``p_n`` if the whole chain is accepted.

    On average it accepts at least as many tokens as :class:`RejectionSampling`, and equally many if no node was drawn.
    It tries only a node's first child. The randomness of a step is keyed by (seed, sequence, root position).
    """

    sampling = "rejection"
    needs_draws = True
    takes_trees = False

    @override
    def verify(self, context: Context, tree: TokenTree, logits: torch.Tensor) -> Verdict:
        """Test every prefix with a separate random number, and accept the longest prefix that passes."""
        uniforms = iter(self.uniforms(context, tree))
        rows, values, rests = [0], [1.0], list[Distribution]()
        passes: list[float] = []  # h_i
        while (drawn := next(draws_of(tree, rows[-1], logits.shape[-1]), None)) is not None:
            child, q = drawn
            p = self.processors.probabilities(logits[rows[-1]])
            passed, rest = after_rejection(values[-1], p, q)
            passes.append(passed)
            rests.append(rest)
            values.append(value(values[-1], p, q, int(tree.tokens[child])))
            rows.append(child)
        passes.append(values[-1])
        # no early stop: a prefix may pass although a shorter one failed. The empty one always passes
        accepted = max((i for i, h in enumerate(passes) if i and next(uniforms) < h), default=0)
        if accepted == len(rests):
            rests.append(self.processors.probabilities(logits[rows[-1]]))
        return Verdict(tuple(rows[1 : accepted + 1]), sample(rests[accepted], next(uniforms)))
