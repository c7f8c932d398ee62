"""What a tree builder is: the decision which candidates become nodes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator

from specexp.controllers._base import Plan
from specexp.drafters._base import Candidates, Request
from specexp.tree import TokenTree

Build = Generator[Request, Candidates | None, TokenTree]
"""Yields requests, is sent their answers (None: stop drafting here), returns the tree."""


class TreeBuilder(ABC):
    """Decides the form of a draft tree. It never calls a drafter: whoever drives it answers its requests, from a
    drafter, from a recording, or from one batched pass for several sequences.
    """

    @property
    @abstractmethod
    def max_nodes(self) -> int:
        """Most nodes a tree can have: the room a cache must keep beside the committed tokens."""

    @property
    @abstractmethod
    def max_candidates(self) -> int:
        """Most candidates it asks for a node; a drafter that ranks fewer is refused when composed."""

    @abstractmethod
    def build(self, root: int, plan: Plan) -> Build:
        """Build one tree.

        Args:
            root: last committed token.
            plan: limits of this step; deeper or more nodes than it allows must not be returned.
        """
