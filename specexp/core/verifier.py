"""What a verifier is: from the target's answers to the accepted path and the bonus token."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from specexp.core.context import Context
from specexp.core.tree import TokenTree

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verifier decided.

    Attributes:
        accepted: rows of the accepted nodes, from depth 1 down, each the parent of the next.
        bonus: the target's token after the last accepted node (after the root, if none was).
    """

    accepted: tuple[int, ...]
    bonus: int


class Verifier(ABC):
    """Accepts a root-to-node path of a tree; draws from the target what comes after.

    Attributes:
        lossless: whether the output has exactly the target's distribution; a lossy verifier says so in every table.
    """

    lossless: ClassVar[bool] = True

    @property
    def noise_temperature(self) -> float | None:
        """Temperature at which the target's tokens are keyed by :meth:`Context.target_noise`.

        A coupled drafter adds the same noise to its own scores. 0 where the tokens take no noise; None where their
        noise is not the context's, so that a coupled drafter is refused.
        """
        return None

    @abstractmethod
    def verify(self, context: Context, tree: TokenTree, logits: torch.Tensor) -> Verdict:
        """Decide one step.

        Args:
            context: the sequence; its last token is the tree's root.
            tree: what was fed, ``n + 1`` rows.
            logits: ``[n + 1, V]`` the target's answer after every row.
        """


class DeterministicVerifier(Verifier):
    """A verifier whose output does not depend on what was drafted: a walk down the tree along the target's tokens."""

    @abstractmethod
    def target_token(self, context: Context, logits: torch.Tensor, position: int) -> int:
        """The token the target puts at an absolute position.

        Args:
            context: the sequence.
            logits: ``[V]`` the target's answer at the position before.
            position: absolute position of the token to be chosen.
        """

    def verify(self, context: Context, tree: TokenTree, logits: torch.Tensor) -> Verdict:
        """Follow the child that carries the target's token until there is none."""
        accepted: list[int] = []
        row, position = 0, len(context)
        while True:
            token = self.target_token(context, logits[row], position)
            child = tree.child_with_token(row, token)
            if child is None:
                return Verdict(tuple(accepted), token)
            accepted.append(child)
            row, position = child, position + 1
