"""The contract of tree builders: they decide which guesses become nodes of a tree."""

from __future__ import annotations

from abc import abstractmethod

from specexp.core.checked import Checked
from specexp.core.dialogue import Build, Plan
from specexp.core.tree import NodeKind, TokenTree


class TreeBuilder(metaclass=Checked):
    """Decides the form of a draft tree. It never calls a drafter: whoever drives it answers its requests, from a
    drafter, from a recording, or from one batched pass for several sequences. It keeps nothing between two trees.

    Attributes:
        kind: how it has its candidates chosen; a drafter that cannot draw is refused when composed with one that
            draws.
        fixed_shape: whether its trees have one shape, cut only by a plan's limits, whatever the candidates are: so its
            masks come again, and its steps cost the same.
        needs_log_probs: whether it decides by the candidates' log-probabilities; a drafter without is refused.
        accepts_fewer_candidates: whether fewer candidates than it asks for will do; if not, a drafter that ranks fewer
            is refused.
        takes_threshold: whether it follows :attr:`Plan.threshold`; a controller that plans one needs it.
        num_choices: how many builders :attr:`Plan.choice` chooses from; 1 where there is no choice.
        phrase_length: tokens of the longest candidate it asks for; a drafter without phrases that long is refused.
    """

    kind: NodeKind = NodeKind.POINT_MASS
    fixed_shape: bool = False
    needs_log_probs: bool = False
    accepts_fewer_candidates: bool = False
    takes_threshold: bool = False
    num_choices: int = 1
    phrase_length: int = 1

    @property
    def rank_paths(self) -> list[list[int]] | None:
        """Rank path of every node of its trees, sorted by length, then rank, where :attr:`fixed_shape`; else None."""
        return None

    @property
    def inner(self) -> tuple[TreeBuilder, ...]:
        """The builders it builds with; none unless it wraps some."""
        return ()

    @property
    def narrower(self) -> tuple[TreeBuilder, ...]:
        """Smaller builders whose questions differ from this one's: a recording that must answer them too asks by each.

        Empty where every smaller tree is a part of the large one.
        """
        return ()

    @property
    @abstractmethod
    def max_nodes(self) -> int:
        """Most nodes a tree can have: the room a cache must keep beside the committed tokens."""

    @property
    def max_leaves(self) -> int:
        """Most leaves a tree can have, as far as that is known."""
        paths = self.rank_paths if self.fixed_shape else None
        if paths is None:
            return self.max_nodes
        above = {tuple(path[:-1]) for path in paths}
        return sum(tuple(path) not in above for path in paths)

    @property
    @abstractmethod
    def max_candidates(self) -> int:
        """Most candidates it asks for a node."""

    def extend(self, tree: TokenTree, plan: Plan) -> Build:
        """Add to a tree that an inner builder made; a builder without one adds nothing, and asks nothing."""
        return tree
        yield  # what makes it a generator

    @abstractmethod
    def build(self, root: int, plan: Plan) -> Build:
        """Build one tree.

        Args:
            root: last committed token.
            plan: limits of this step; deeper or more nodes than it allows must not be returned.
        """
