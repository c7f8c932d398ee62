"""The base class of drafters that draft from token ids alone, in engines that give them neither logits nor states."""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal

from specexp.core.context import Context
from specexp.core.contracts import Drafter

Initialisation = Literal["empty", "prompt"]
StatePolicy = Literal["cold", "carry", "preloaded"]


class TokenDrafter(Drafter):
    """A drafter that needs only committed tokens, and can draft a chain without a tree builder's requests."""

    @abstractmethod
    def next_token(self, context: Context, path: tuple[int, ...]) -> int:
        """Return the best candidate after the tokens on a path from depth 1 down, or ``NO_CANDIDATE``.

        It is the first candidate that :meth:`propose` returns there.
        """


def drafts_from_tokens(drafter: Drafter) -> bool:
    """Return whether a drafter and all drafters inside it are token drafters."""
    return isinstance(drafter, TokenDrafter) and all(map(drafts_from_tokens, drafter.inner))
