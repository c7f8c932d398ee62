"""The committed tokens of one sequence, and the keys of its random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from specexp.core.noise import GumbelStream, place_key, uniforms

if TYPE_CHECKING:
    import torch

    from specexp.core.constraint import Constraint

T = TypeVar("T")
_LONGEST_BLOCK, _FEWEST_TOKENS = 32, 24  # of a repetition


class Context:
    """The committed tokens of one sequence. The last one is the root of the next draft tree.

    Args:
        token_ids: ``[p]`` prompt, at least one token.
        sequence: key of this continuation, e.g. ``"HumanEval/3#0"``; two samples of one prompt need different keys.
        noise_temperature: temperature at which the target's tokens are sampled with keyed noise; 0 if they are not.
    """

    def __init__(
        self,
        token_ids: Sequence[int],
        *,
        seed: int = 0,
        sequence: int | str = 0,
        noise_temperature: float = 0.0,
    ) -> None:
        self.prompt_length = len(token_ids)
        self.seed = seed
        self.sequence = sequence
        self.noise_temperature = noise_temperature
        self.constraint: Constraint | None = None  # on the output of this turn
        self.continued = False  # a later turn of a conversation: the parts have already observed the rest
        self.steps = 0  # decoding steps absorbed so far
        self.lanes = 1  # sequences in the next target pass, this one included; 1 if unknown
        self.rows = 0  # tokens fed in the last target pass, over all its sequences; 0 if unknown
        self._buffer = np.empty(max(256, 2 * len(token_ids)), dtype=np.int64)
        self._buffer[: len(token_ids)] = token_ids
        self._length = len(token_ids)
        self._noise: dict[str, GumbelStream] = {}  # by device

    def __len__(self) -> int:
        return self._length

    @property
    def token_ids(self) -> NDArray[np.int64]:
        """``[length]`` committed tokens, with the root last. The next :meth:`append` may invalidate this view."""
        return self._buffer[: self._length]

    @property
    def root(self) -> int:
        """The last committed token."""
        return int(self._buffer[self._length - 1])

    @property
    def new_token_ids(self) -> list[int]:
        """The generated tokens."""
        tokens: list[int] = self._buffer[self.prompt_length : self._length].tolist()
        return tokens

    def target_noise(
        self, position: int, positions: int, vocab_size: int, device: torch.device | str = "cpu"
    ) -> torch.Tensor:
        """Return a read-only ``[positions, vocab_size]`` tensor of Gumbel noise, starting at an absolute position."""
        stream = self._noise.get(str(device))
        if stream is None:
            stream = GumbelStream(place_key(self.seed, self.sequence, "target"), device)
            self._noise[str(device)] = stream
        return stream.at(position, positions, vocab_size)

    def uniforms(self, purpose: str, position: int, path: tuple[int, ...] = (), *, size: int) -> NDArray[np.float64]:
        """Return ``[size]`` uniform numbers in (0, 1), keyed by the root's absolute position and a node's rank path.
        A larger size only appends numbers. Streams of different purposes, such as ``"draft"``, are independent.
        """
        numbers: NDArray[np.float64] = self.uniforms_below(purpose, position, (path,), 0, size)[0]
        return numbers

    def uniforms_below(
        self, purpose: str, position: int, paths: Sequence[tuple[int, ...]], start: int, size: int
    ) -> NDArray[np.float64]:
        """Return the numbers of :meth:`uniforms` for several nodes, ``[paths, size]``, starting at number ``start``."""
        return uniforms(place_key(self.seed, self.sequence, purpose), position, paths, start, size)

    def next_turn(self, token_ids: Sequence[int]) -> None:
        """Continue the conversation: append ``token_ids`` as the next prompt."""
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


class PerSequence(WeakKeyDictionary[Context, T]):
    """Values keyed by sequence; a value is deleted with its context. Copies start empty, even in other processes."""

    def __reduce__(self) -> tuple[Any, ...]:
        return PerSequence, ()

    def __deepcopy__(self, memo: dict[int, Any]) -> PerSequence[T]:
        return PerSequence()


def common_prefix(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Return the length of the common prefix of two sequences."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (own, their) in pairs if own != their), min(len(one), len(other)))


def loop_of(token_ids: Sequence[int]) -> tuple[int, int] | None:
    """Return where the repetition at the end of an output begins, and the size of its block; None without one.

    Example:
        >>> loop_of([1, 2, *[5, 6] * 12])
        (2, 2)
    """
    period = _period(token_ids)
    if not period:
        return None
    start = len(token_ids) - period
    while start > 0 and token_ids[start - 1] == token_ids[start - 1 + period]:
        start -= 1
    return start, period


def repeats(token_ids: Sequence[int]) -> bool:
    """Return whether the last tokens repeat a block of up to 32 tokens at least 3 times, covering at least 24 tokens.

    The last copy may be incomplete: for a block of ``p`` tokens, the last ``max(24, 3 p)`` must have period ``p``.

    Example:
        >>> repeats([5, 6] * 12), repeats([5, 6] * 11), repeats(range(100))
        (True, False, False)
    """
    return _period(token_ids) > 0


def _period(token_ids: Sequence[int]) -> int:
    """Return the size of the repeated block; 0 if there is none."""
    for period in range(1, _LONGEST_BLOCK + 1):
        tail = max(_FEWEST_TOKENS, 3 * period)
        if len(token_ids) < tail:
            break
        # comparing one token first rules out most periods cheaply
        if token_ids[-1] == token_ids[-1 - period] and token_ids[-tail:-period] == token_ids[period - tail :]:
            return period
    return 0
