"""Typical acceptance: a lossy verifier that accepts more tokens than an exact one."""

from __future__ import annotations

from math import exp
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from pydantic import Field
from typing_extensions import override

from specexp.core.context import Context
from specexp.core.dialogue import Verdict
from specexp.core.tree import TokenTree
from specexp.verifiers.rejection_sampling import SamplingVerifier, sample

if TYPE_CHECKING:
    import torch


class TypicalAcceptance(SamplingVerifier):
    """Accepts every token that is typical of the target (Cai et al. 2024, Medusa, section 2.3.2). **Lossy**.

    A node is accepted if ``p[y] > min(epsilon, delta * exp(-H(p)))``, where ``H`` is the entropy in nats. The output is
    plausible, but not a sample from the target. The longest accepted path wins; ties go to the most probable one. The
    bonus token is drawn from the target, keyed by (seed, sequence, root position). At temperature 0, it is effectively
    lossless.

    Args:
        epsilon: tokens with a probability above this are always accepted.
        delta: tokens with a probability above ``delta * exp(-H)`` are accepted.
    """

    lossless: ClassVar[bool] = False

    def __init__(
        self,
        temperature: Annotated[float, Field(ge=0, le=100)] = 1.0,
        epsilon: Annotated[float, Field(gt=0, le=1)] = 0.09,
        delta: Annotated[float, Field(gt=0, le=1)] = 0.3,
        top_k: Annotated[int, Field(ge=1)] | None = None,
        top_p: Annotated[float, Field(gt=0, le=1)] | None = None,
    ) -> None:
        super().__init__(temperature, top_k, top_p)
        self.epsilon = epsilon
        self.delta = delta

    @override
    def verify(self, context: Context, tree: TokenTree, logits: torch.Tensor) -> Verdict:
        """Extend accepted paths level by level, and keep the best of the longest paths."""
        best, best_place = 0, (0, 0.0)  # row, (depth, log-probability)
        log_probs = {0: 0.0}  # by accepted row, given the root
        for row in range(tree.num_nodes + 1):  # parents come before their children
            if row not in log_probs:
                continue
            place = (int(tree.shape.depths[row]), log_probs[row])
            if place > best_place:
                best, best_place = row, place
            children = tree.shape.children[row]
            if not children:
                continue
            p = self.processors.probabilities(logits[row])  # [V]
            positive = p[p > 0]
            enough = min(self.epsilon, self.delta * exp((positive * np.log(positive)).sum()))
            for child in children:
                probability = float(p[tree.tokens[child]])
                if probability > enough:
                    log_probs[child] = log_probs[row] + float(np.log(probability))
        uniform = float(context.uniforms("verify", len(context) - 1, size=1)[0])
        bonus = sample(self.processors.probabilities(logits[best]), uniform)
        return Verdict(tree.shape.path(best), bonus)
