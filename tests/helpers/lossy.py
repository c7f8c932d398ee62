"""A verifier that is labeled lossy, and one that states no law."""

from specexp.core.contracts import Verifier
from specexp.verifiers import RejectionSampling


class Lossy(RejectionSampling):
    """Accepts the first child if the target gives its token a probability of at least 0.3."""

    lossless = False

    def try_children(self, tree, row, left, uniforms):
        child = next(iter(tree.shape.children[row]), None)
        return (None if child is None or left[tree.tokens[child]] < 0.3 else child), left


class Lawless(Verifier):
    """States no temperature."""

    def verify(self, context, tree, logits):
        raise NotImplementedError
