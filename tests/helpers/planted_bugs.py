"""Parts that are wrong by a little, and say that they are lossless."""

from dataclasses import replace
from typing import ClassVar

from specexp.core.dialogue import Verdict
from specexp.core.tree import NodeKind
from specexp.drafters import DraftModel
from specexp.verifiers import Greedy, RejectionSampling
from specexp.verifiers.rejection_sampling import normalised, residual, without


class TooEager(RejectionSampling):
    """Accepts every drafted token with 1.1 times the probability that is right."""

    excess: ClassVar[float] = 1.1

    def try_children(self, tree, row, left, uniforms):
        q = None
        for child in tree.draw_order(row):
            token, kind = int(tree.tokens[child]), tree.kind(child)
            if kind is NodeKind.POINT_MASS:
                if next(uniforms) < self.excess * left[token]:
                    return child, left
                left = without(left, token)
                continue
            q = normalised(tree.q[row].astype(float)) if q is None else q
            if next(uniforms) * q[token] < self.excess * left[token]:
                return child, left
            left = residual(left, q)
            if kind is NodeKind.DRAWN:
                q = without(q, token)
        return None, left


class WrongQ(DraftModel):
    """States q to the power 1.1 for what it drew from q."""

    def propose(self, context, request):
        answer = super().propose(context, request)
        if answer.q is None:
            return answer
        stated = answer.q**1.1
        return replace(answer, q=stated / stated.sum(axis=-1, keepdims=True))


class WrongAt37(Greedy):
    """Adds a wrong token where the root stands at a multiple of 37."""

    def verify(self, context, tree, logits):
        verdict = super().verify(context, tree, logits)
        if (len(context) - 1) % 37:
            return verdict
        return Verdict(verdict.accepted, (verdict.bonus + 1) % logits.shape[-1])


class WrongAfterRejection(Greedy):
    """Adds a wrong token where nothing of what was drafted was accepted, at one of seven positions."""

    def verify(self, context, tree, logits):
        verdict = super().verify(context, tree, logits)
        if verdict.accepted or not tree.num_nodes or len(context) % 7:
            return verdict
        return Verdict((), (verdict.bonus + 1) % logits.shape[-1])
