"""The committed tokens of one continuation, and the place its randomness is keyed by."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specexp.noise import place_key


class Context:
    """Committed tokens of one sequence; the last one is the root of the next draft tree.

    Args:
        token_ids: ``[p]`` prompt, at least one token.
        seed: seed of the run.
        sequence: which continuation this is, e.g. ``"HumanEval/3#0"`` for a prompt and a sample; two samples of one
            prompt need two values.

    Attributes:
        prompt_length: tokens before the ones being generated.
        continued: whether this is a later turn, with everything before it already known to the parts.
    """

    def __init__(self, token_ids: Sequence[int], *, seed: int = 0, sequence: int | str = 0) -> None:
        self.prompt_length = len(token_ids)
        self.seed = seed
        self.sequence = sequence
        self.continued = False
        self.target_noise_key = place_key(seed, sequence, "target")
        self._buffer = np.empty(max(256, 2 * len(token_ids)), dtype=np.int64)
        self._buffer[: len(token_ids)] = token_ids
        self._length = len(token_ids)

    def __len__(self) -> int:
        return self._length

    @property
    def token_ids(self) -> NDArray[np.int64]:
        """``[length]`` committed tokens, the root last; a view that the next :meth:`append` may invalidate."""
        return self._buffer[: self._length]

    @property
    def root(self) -> int:
        """The last committed token."""
        return int(self._buffer[self._length - 1])

    @property
    def new_token_ids(self) -> list[int]:
        """Tokens generated so far, the prompt left out."""
        return [int(token) for token in self._buffer[self.prompt_length : self._length]]

    def next_turn(self, token_ids: Sequence[int]) -> None:
        """Continue the conversation: ``token_ids`` follow what is committed, and are prompt."""
        self.append(token_ids)
        self.prompt_length = self._length
        self.continued = True

    def append(self, token_ids: Sequence[int]) -> None:
        """Commit tokens."""
        end = self._length + len(token_ids)
        if end > self._buffer.size:
            self._buffer = np.concatenate((self._buffer, np.empty(end, dtype=np.int64)))
        self._buffer[self._length : end] = token_ids
        self._length = end
