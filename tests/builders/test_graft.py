"""Grafts by hand: where phrases hang, how they merge with what hangs there, and what limits them."""

from specexp.builders import Chain, DySpecGreedy, DySpecThreshold, Graft, KConfig, SpecInfer
from specexp.testing.builders import TreeBuilderContract


class TestGraft(TreeBuilderContract):
    def make_builder(self):
        return Graft(Chain(4))


class TestOfDrawnCandidates(TreeBuilderContract):
    def make_builder(self):
        return Graft(
            KConfig([2, 2], candidates="drawn"), num_anchors=2, phrases_per_anchor=2, phrase_length=3
        )


class TestOfDrawsWithReplacement(TreeBuilderContract):
    def make_builder(self):
        return Graft(SpecInfer([3, 2]), num_anchors=1)


class TestOfADynamicTree(TreeBuilderContract):
    def make_builder(self):
        return Graft(DySpecGreedy(9), phrases_per_anchor=1, phrase_length=2)


class TestOfADynamicTreeOfTopCandidates(TreeBuilderContract):
    def make_builder(self):
        return Graft(DySpecThreshold(0.1, 8, candidates="top-k"), num_anchors=4)
