"""Randomness keyed by place: the same numbers at the same place, on every device, in any order of calls.

One counter-based generator (Philox) is keyed by *where* a number is used, so that neither the drafter, the tree,
the schedule nor the order of evaluation changes what is drawn. A *sequence* is one sampled continuation.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MASK = (1 << 64) - 1


def place_key(seed: int, sequence: int | str, *purpose: str | int) -> tuple[int, int]:
    """128-bit Philox key of a stream: ``(seed, sequence, purpose...)`` hashed with BLAKE2b.

    Args:
        seed: seed of the run.
        sequence: which continuation, by number or name; n samples of one prompt have n of them.
        purpose: what the stream is for, e.g. ``"target"``; streams of different purposes are independent.
    """
    text = repr((int(seed), sequence if isinstance(sequence, str) else int(sequence), *purpose)).encode()
    digest = hashlib.blake2b(text, digest_size=16).digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")


def gumbel(key: tuple[int, int], position: int, size: int) -> NDArray[np.float32]:
    """Gumbel(0, 1) noise for one position.

    Args:
        key: stream from :func:`place_key`.
        position: absolute position of the token the noise is for; it is the upper half of the counter, so
            positions never overlap.
        size: vocabulary size.

    Returns:
        ``[size]`` float32; ``argmax(log p + noise)`` is an exact sample of ``p``.
    """
    bits = np.random.Philox(counter=[0, 0, position & _MASK, 0], key=list(key))
    exponential = np.random.Generator(bits).standard_exponential(size, dtype=np.float32)
    # An exponential of exactly 0 would give +inf, and two of them a tie.
    np.maximum(exponential, np.finfo(np.float32).tiny, out=exponential)
    np.log(exponential, out=exponential)
    np.negative(exponential, out=exponential)
    return exponential


class UniformStream:
    """Uniform numbers in (0, 1), as many as wanted at every place of a stream.

    Args:
        key: stream from :func:`place_key`.
    """

    def __init__(self, key: tuple[int, int]) -> None:
        self._bits = np.random.Philox(key=list(key))
        self._state = self._bits.state

    def at(self, position: int, path: tuple[int, ...] = (), *, size: int) -> NDArray[np.float64]:
        """``[size]`` numbers of one place; the first ones are the same however many are asked for.

        Args:
            position: absolute position, the second word of the counter.
            path: rank path of a node; hashed into the upper half of the counter.
            size: how many.
        """
        below = (0, 0)
        if path:
            digest = hashlib.blake2b(repr(path).encode(), digest_size=16).digest()
            below = int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")
        state: Any = self._state
        state["state"]["counter"][:] = (0, position & _MASK, *below)
        state["buffer_pos"] = 4  # what is left of the last block belongs to another place
        self._bits.state = state
        whole = np.asarray(self._bits.random_raw(size) >> np.uint64(11), dtype=np.float64)
        return (whole + 0.5) * 2.0**-53
