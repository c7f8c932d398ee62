"""The contract of verifiers: they decide which nodes of a tree become output."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from typing_extensions import override

from specexp.core.checked import Checked
from specexp.core.context import Context
from specexp.core.dialogue import Verdict
from specexp.core.sampling import Processors, highest, highest_of
from specexp.core.tree import TokenTree

if TYPE_CHECKING:
    import torch


class Verifier(metaclass=Checked):
    """Accepts a root-to-node path of a tree; draws from the target what comes after.

    Attributes:
        lossless: whether the output has exactly the target's distribution; a lossy verifier says so in every table.
        sampling: how the output comes about: ``deterministic``, whatever was drafted (:class:`DeterministicVerifier`);
            by ``rejection`` of drafts, so that only its law does not depend on them; or otherwise.
    """

    lossless: ClassVar[bool] = True
    sampling: ClassVar[Literal["deterministic", "rejection", "other"]] = "other"

    @property
    def sampling_settings(self) -> Mapping[str, float | int | None] | None:
        """Temperature, top-k and top-p after which the target's distribution is the output's, whatever is drafted; None
        where this is not known.
        """
        return None

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

    sampling = "deterministic"

    @abstractmethod
    def target_token(self, context: Context, logits: torch.Tensor, position: int) -> int:
        """The token the target puts at an absolute position.

        Args:
            context: the sequence.
            logits: ``[V]`` the target's answer at the position before.
            position: absolute position of the token to be chosen.
        """

    @property
    def law(self) -> Hashable:
        """Verifiers of one law choose alike, and one of them is asked for the sequences of all; None if it is asked for
        its own alone.
        """
        return None

    def target_tokens(
        self, contexts: Sequence[Context], logits: torch.Tensor, positions: Sequence[int]
    ) -> list[int]:
        """Of several sequences decided by one law what :meth:`target_token` gives for each.

        Args:
            contexts: ``m`` sequences.
            logits: ``[m, V]`` on the host, a row for each.
            positions: of the token to be chosen in each.
        """
        questions = zip(contexts, logits, positions, strict=True)
        return [self.target_token(context, row, position) for context, row, position in questions]

    def scores(self, context: Context, tree: TokenTree, logits: torch.Tensor) -> torch.Tensor | None:
        """``[n + 1, V]`` whose highest one is the target's token after every row, made where the logits are.

        So a device is waited for once a step. None, unless a class says otherwise: it is asked token by token.
        """
        return None

    @override
    def verify(self, context: Context, tree: TokenTree, logits: torch.Tensor) -> Verdict:
        start, depths = len(context), tree.shape.depths
        return walk(tree, lambda row: self.target_token(context, logits[row], start + int(depths[row])))


def walk(tree: TokenTree, token_after: Callable[[int], int]) -> Verdict:
    """The way down a tree along the target's tokens.

    Args:
        tree: what was fed.
        token_after: the target's token after a row.
    """
    accepted: list[int] = []
    row = 0
    while True:
        token = token_after(row)
        child = tree.child_with_token(row, token)
        if child is None:
            return Verdict(tuple(accepted), token)
        accepted.append(child)
        row = child


class ArgmaxVerifier(DeterministicVerifier):
    """Takes the tokens the target itself finds most probable, among equals the lowest id: who verifies where nobody is
    named.
    """

    @property
    @override
    def sampling_settings(self) -> Mapping[str, float | int | None]:
        return Processors(temperature=0.0).settings

    @property
    @override
    def noise_temperature(self) -> float:
        return 0.0

    @override
    def scores(self, context: Context, tree: TokenTree, logits: torch.Tensor) -> torch.Tensor:
        return logits

    @override
    def target_token(self, context: Context, logits: torch.Tensor, position: int) -> int:
        return highest(logits)

    @property
    @override
    def law(self) -> Hashable:
        own = type(self).target_token is ArgmaxVerifier.target_token  # and not what a subclass puts there
        return ArgmaxVerifier if own else None

    @override
    def target_tokens(
        self, contexts: Sequence[Context], logits: torch.Tensor, positions: Sequence[int]
    ) -> list[int]:
        return highest_of(logits)
