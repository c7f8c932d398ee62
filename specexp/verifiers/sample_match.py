"""Sample and match: the output is sampled from the target, whatever was drafted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from specexp.core.context import Context
from specexp.core.dialogue import Verdict
from specexp.core.tree import TokenTree
from specexp.verifiers.rejection_sampling import SamplingVerifier, sample

if TYPE_CHECKING:
    import torch


class SampleMatch(SamplingVerifier):
    """Draws one token of the target after every visited node and follows the child with this token.

    It needs no draft distribution, so it works with every drafter. The samples are exact. It accepts at most as much as
    rejection sampling with the same drawn tree. :class:`KeyedSampling` is the same rule with noise that does not depend
    on the steps. The randomness of a step is keyed by (seed, sequence, root position).
    """

    @override
    def verify(self, context: Context, tree: TokenTree, logits: torch.Tensor) -> Verdict:
        """Walk down from the root until no child has the target's token."""
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
