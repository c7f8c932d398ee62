"""Random numbers keyed by position: the same position gives the same numbers on every device, in any order of calls.

One counter-based generator (Philox4x32-10, Salmon et al. 2011) is keyed by *where* a number is used, so the numbers do
not depend on the drafter, the tree, the schedule or the order of evaluation. Its counter is ``(block, position, path,
path)``. A block gives four 32-bit words, and word ``i`` at a place does not depend on the number of words requested.
A *sequence* is one sampled continuation.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # importing torch takes seconds, and parts are checked before that
    import torch

NOISE_VERSION = 2
"""The version of the random numbers; 2 is Philox4x32-10. A recording made with another version cannot be replayed."""

Key = tuple[int, int]
Words = Any
"""32-bit integers: an ``int``, a uint64 array or an int64 tensor. Arguments of this type may be broadcast together."""

_MASK = 0xFFFFFFFF
_NUMBERS_AHEAD = 1 << 16
_POSITIONS_AHEAD = 16
_POSITIONS_BEHIND = 16
_FEW_BLOCKS = 16  # up to this many blocks, Python takes no longer than numpy's calls


@lru_cache(maxsize=4096)
def place_key(seed: int, sequence: int | str, *purpose: str | int) -> Key:
    """Return the Philox key of a stream: ``(seed, sequence, purpose...)`` hashed with BLAKE2b to two words. Streams of
    different purposes, e.g. ``"target"``, are independent.
    """
    return _digest((int(seed), sequence if isinstance(sequence, str) else int(sequence), *purpose))


def philox(block: Words, position: Words, low: Words, high: Words, key: Key) -> tuple[Words, ...]:
    """Return the four words of Philox4x32-10 for each counter ``(block, position, low, high)``."""
    # A product of two words has 64 bits. In int64 tensors it is signed, and its shift copies the sign into the upper
    # half, which the mask removes.
    for first, second in _round_keys(key):
        product, other = block * 0xD2511F53, low * 0xCD9E8D57
        block = (((other >> 32) ^ position) ^ first) & _MASK
        low = (((product >> 32) ^ high) ^ second) & _MASK
        position, high = other, product
    return block, position & _MASK, low, high & _MASK


def gumbel(key: Key, first: int, positions: int, size: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """Return ``[positions, size]`` float32 Gumbel(0, 1) noise on ``device``, starting at an absolute position.

    ``argmax(log p + noise)`` over a row is an exact sample from ``p``. The random integers are the same on every
    device. The two logarithms are computed in float64 and rounded, so devices differ by at most one unit in the last
    place. On a CPU, the noise is generated in C++ if there is a compiler.
    """
    import torch

    if torch.device(device).type == "cpu" and (kernels := noise_kernels()) is not None:
        made = torch.empty((positions, size))
        kernels.gumbel(*key, first, positions, size, made.data_ptr())
        return made
    blocks = torch.arange(-(-size // 4), device=device)
    rows = torch.arange(first, first + positions, device=device)[:, None]
    words = torch.stack(philox(blocks, rows, 0, 0, key), dim=-1)  # [positions, blocks, 4]
    uniform = words.double().add_(0.5).mul_(2.0**-32)  # in (0, 1)
    return uniform.log_().neg_().log_().neg_().float().flatten(1)[:, :size]


@cache
def noise_kernels() -> Any:
    """Return the library of ``gumbel.cpp``, three times as fast as numpy, or None if there is no compiler."""
    from specexp.base.kernels import CannotCompileError, library

    try:
        found = library(Path(__file__).with_name("gumbel.cpp"), ("-ftree-vectorize",))
    except CannotCompileError:
        return None
    word, number, place = ctypes.c_uint32, ctypes.c_int64, ctypes.c_void_p
    found.gumbel.argtypes = word, word, number, number, number, place
    found.choose.argtypes = place, number, number, place, place, ctypes.c_float, place, place, place
    found.gumbel.restype = found.choose.restype = None
    return found


class GumbelStream:
    """The Gumbel noise of one stream, generated several positions ahead."""

    def __init__(self, key: Key, device: torch.device | str = "cpu") -> None:
        import torch

        self._key = key
        self._device = device
        self._on_cpu = torch.device(device).type == "cpu"
        self._first = 0
        self._rows = torch.empty((0, 0), device=device)  # noise for positions from _first on

    def at(self, position: int, positions: int, size: int) -> torch.Tensor:
        """Return ``[positions, size]`` read-only noise, starting at a position."""
        import torch

        start, known = position - self._first, self._rows
        if size != known.shape[1] or not 0 <= start <= known.shape[0] + _POSITIONS_BEHIND:
            self._first = position
            start = 0
            known = known.new_empty((0, size))
        if start + positions > known.shape[0]:
            # keep some earlier rows, because a drafter runs ahead of the verifier
            forgotten = max(start - _POSITIONS_BEHIND, 0)
            kept = known[forgotten:]
            self._first = self._first + forgotten
            start = start - forgotten
            # an accelerator generates many positions as fast as one; on a CPU, the time grows with their number
            few = max(1, min(_POSITIONS_AHEAD, _NUMBERS_AHEAD // size))
            more = max(start + positions - kept.shape[0], few if self._on_cpu else _POSITIONS_AHEAD)
            made = gumbel(self._key, self._first + kept.shape[0], more, size, self._device)
            self._rows = torch.cat((kept, made))
        return self._rows[start : start + positions]


def uniforms(key: Key, position: int, paths: Sequence[tuple[int, ...]], start: int, size: int) -> NDArray[np.float64]:
    """Return a stream's numbers in (0, 1) for rank paths at one position, ``[paths, size]``, starting at ``start``.

    Each path at each position has an unlimited supply.
    """
    first, end = start // 4, -(-(start + size) // 4)
    below = [_digest(path) if path else (0, 0) for path in paths]
    if len(paths) * (end - first) <= _FEW_BLOCKS:
        blocks = range(first, end)
        rows = [[philox(block, position, *path, key) for block in blocks] for path in below]
        words = np.array(rows, dtype=np.uint64)  # [paths, blocks, 4]
    else:
        low, high = np.array(below, dtype=np.uint64).T[:, :, np.newaxis]
        numbers = np.arange(first, end, dtype=np.uint64)
        words = np.stack(philox(numbers, position, low, high, key), axis=-1)
    wanted = words.reshape(len(paths), -1)[:, start - 4 * first :][:, :size]
    return np.asarray((wanted + 0.5) * 2.0**-32, dtype=np.float64)


def _digest(value: object) -> Key:
    digest = hashlib.blake2b(repr(value).encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


@lru_cache(maxsize=4096)
def _round_keys(key: Key) -> tuple[Key, ...]:
    """Return the two key words for each of the ten rounds."""
    first, second = key
    return tuple(
        ((first + number * 0x9E3779B9) & _MASK, (second + number * 0xBB67AE85) & _MASK) for number in range(10)
    )
