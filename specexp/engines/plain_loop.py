"""What is measured of another engine: its own loop of plain decoding, which a user would run instead of ours."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence


class PlainLoop(ABC):
    """Greedy plain decoding by an engine's own loop; the end of a text does not end it.

    Attributes:
        name: the engine and its version.
    """

    name: str

    @abstractmethod
    def decode(self, token_ids: Sequence[int], new_tokens: int) -> tuple[list[int], list[float]]:
        """Continue a prompt.

        Args:
            token_ids: the prompt, at least two tokens.
            new_tokens: how many to generate, at least two.

        Returns:
            The new tokens, and the seconds of all but the first, which comes with the prompt's pass.
        """
