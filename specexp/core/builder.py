"""What a tree builder is: the decision which candidates become nodes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from typing import Literal

from specexp.core.controller import Plan
from specexp.core.drafter import Candidates, Request
from specexp.core.tree import NodeKind, TokenTree

Selection = Literal["top-k", "drawn"]
"""Which candidates become nodes: the drafter's best, or draws from its distribution without replacement."""

Build = Generator[Request, Candidates | None, TokenTree]
"""Yields requests, is sent their answers (None: stop drafting here), returns the tree."""


def kind_of(candidates: Selection) -> NodeKind:
    """The kind of node a selection makes."""
    return NodeKind.DRAWN if candidates == "drawn" else NodeKind.POINT_MASS


class TreeBuilder(ABC):
    """Decides the form of a draft tree. It never calls a drafter: whoever drives it answers its requests, from a
    drafter, from a recording, or from one batched pass for several sequences.

    Attributes:
        kind: how it has its candidates chosen; a drafter that cannot draw is refused when composed with one that
            draws.
        needs_log_probs: whether it decides by the candidates' log-probabilities; a drafter without is refused.
        makes_do: whether fewer candidates than it asks for will do; if not, a drafter that ranks fewer is refused.
        takes_threshold: whether it follows :attr:`Plan.threshold`; a controller that plans one needs it.
        arms: how many builders :attr:`Plan.arm` chooses from; 1 where there is no choice.
        phrase_length: tokens of the longest candidate it asks for; a drafter without phrases that long is refused.
    """

    kind: NodeKind = NodeKind.POINT_MASS
    needs_log_probs: bool = False
    makes_do: bool = False
    takes_threshold: bool = False
    arms: int = 1
    phrase_length: int = 1

    @property
    @abstractmethod
    def max_nodes(self) -> int:
        """Most nodes a tree can have: the room a cache must keep beside the committed tokens."""

    @property
    @abstractmethod
    def max_candidates(self) -> int:
        """Most candidates it asks for a node."""

    @abstractmethod
    def build(self, root: int, plan: Plan) -> Build:
        """Build one tree.

        Args:
            root: last committed token.
            plan: limits of this step; deeper or more nodes than it allows must not be returned.
        """
