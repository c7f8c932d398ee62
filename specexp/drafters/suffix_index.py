"""Indexes of all token runs in texts and their followers: a growing automaton and a fixed suffix array."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specexp.core.tree import NO_CANDIDATE

ENTRIES = ("suffixes", "tokens")
"""Names of the arrays in a corpus."""

_SAMPLED = 1024  # maximum number of occurrences counted
_LONGEST = 64  # maximum number of tokens in a run looked up in an array

Followers = list[tuple[int, int]]
"""Pairs of a token and its number of occurrences, newest first if the order is known."""


class SuffixIndex:
    """A suffix automaton over several texts (Blumer et al. 1985) that counts the occurrences of every run.

    A state represents all runs that end at the same places. Its link leads to its longest suffix that also occurs
    elsewhere. A text is identified by the state of its whole content; state ``0`` is the empty text.

    Example:
        >>> index = SuffixIndex()
        >>> place = 0
        >>> for token in [1, 2, 3, 1, 2]:
        ...     place = index.add(place, token)
        >>> [(length, list(found)) for length, found in index.known(place, 2)]
        [(2, [(3, 1)])]
    """

    def __init__(self) -> None:
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]
        self._count = [0]  # occurrences of each state's runs
        self._newest = [0]  # clock at each state's last occurrence
        self.clock = 0  # number of tokens added

    def add(self, place: int, token: int) -> int:
        """Append a token to a text, and return the state of the extended text."""
        state = self._entered(place, token)
        self.clock += 1
        suffix = state
        while suffix > 0:  # all its suffixes occur once more
            self._count[suffix] += 1
            self._newest[suffix] = self.clock
            suffix = self._link[suffix]
        return state

    def step(self, place: int, length: int, token: int) -> tuple[int, int]:
        """Extend a run by a token; return the state and length of its longest suffix that occurs in the texts."""
        while place > 0 and token not in self._next[place]:
            place = self._link[place]
            length = self._length[place]
        after = self._next[place].get(token, 0)
        return after, length + 1 if after else 0

    def known(self, place: int, length: int) -> Iterator[tuple[int, Followers]]:
        """Yield (length, followers) for a run and its suffixes, longest first, skipping those without followers."""
        while place > 0:
            if following := self._next[place]:
                states = sorted(following.items(), key=lambda one: self._newest[one[1]], reverse=True)
                yield length, [(token, self._count[state]) for token, state in states]
            place = self._link[place]
            length = self._length[place] if place >= 0 else 0

    def _entered(self, place: int, token: int) -> int:
        known = self._next[place].get(token)
        if known is not None:  # the token followed here before
            return self._whole(place, token, known)
        new = self._new(self._length[place] + 1, {}, 0)
        above = place
        while above >= 0 and token not in self._next[above]:
            self._next[above][token] = new
            above = self._link[above]
        if above >= 0:
            self._link[new] = self._whole(above, token, self._next[above][token])
        return new

    def _whole(self, above: int, token: int, state: int) -> int:
        """Return the state of ``above`` plus a token: ``state``, or a new state split off for the shorter runs."""
        if self._length[state] == self._length[above] + 1:
            return state
        new = self._new(self._length[above] + 1, dict(self._next[state]), self._link[state])
        self._count[new], self._newest[new] = self._count[state], self._newest[state]
        self._link[state] = new
        while above >= 0 and self._next[above].get(token) == state:
            self._next[above][token] = new
            above = self._link[above]
        return new

    def _new(self, length: int, following: dict[int, int], link: int) -> int:
        self._next.append(following)
        self._length.append(length)
        self._link.append(link)
        self._count.append(0)
        self._newest.append(0)
        return len(self._length) - 1


Run = tuple[int, int, int]
"""Start and end of the range of suffixes that begin with a run, and the run's length."""


class SuffixArray:
    """All suffixes of a corpus, sorted. The followers of a run are found by binary search.

    Args:
        arrays: ``tokens`` ``[n]`` int32, the concatenated texts with ``NO_CANDIDATE`` after each, and ``suffixes``
            ``[n]`` int32, the start of each suffix, in sorted order.

    Raises:
        ValueError: the corpus is empty, or the arrays are damaged.
    """

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        if sorted(arrays) != list(ENTRIES):
            raise ValueError(f"the corpus must have the arrays {list(ENTRIES)}, got {sorted(arrays)}")
        self.tokens, self.suffixes = (np.asarray(arrays[name]) for name in ("tokens", "suffixes"))
        for name, array in (("tokens", self.tokens), ("suffixes", self.suffixes)):
            if array.dtype != np.int32 or array.ndim != 1:
                raise ValueError(f"the corpus' {name} must be int32 [n], got {array.dtype} {list(array.shape)}")
        if self.largest_token < 0:
            raise ValueError("the corpus is empty: it must have at least one text of one token")
        if self.tokens.min() < NO_CANDIDATE or self.tokens[-1] != NO_CANDIDATE:
            raise ValueError(
                f"the corpus' tokens are damaged: they must be ids >= 0, with {NO_CANDIDATE} after each text"
            )
        if not np.array_equal(np.sort(self.suffixes), np.arange(self.tokens.size)):
            raise ValueError("the corpus' suffixes are damaged: each position of its tokens must occur once")

    @property
    def largest_token(self) -> int:
        """The largest token id in the corpus."""
        return int(self.tokens.max(initial=NO_CANDIDATE))

    def __deepcopy__(self, memo: dict[int, Any]) -> SuffixArray:
        return self  # it never changes, so copies can share it

    def longest(self, tail: list[int]) -> Run:
        """Return the longest suffix of ``tail`` that occurs in the corpus, as a run."""
        tail = tail[-_LONGEST:]
        found, least, most = (0, self.suffixes.size, 0), 0, len(tail)  # matches every suffix
        while least < most:  # bisection: if a suffix occurs, all shorter ones do
            length = (least + most + 1) // 2
            run = self._run(tail[len(tail) - length :])
            if run[0] < run[1]:
                found, least = run, length
            else:
                most = length - 1
        return found

    def step(self, run: Run, token: int) -> Run | None:
        """Return the run extended by one token, or None if the result does not occur in the corpus."""
        low, high, length = run

        def at(place: int) -> int:
            return int(self.tokens[min(place + length, self.tokens.size - 1)])

        first = bisect_left(self.suffixes, token, low, high, key=at)
        last = bisect_right(self.suffixes, token, first, high, key=at)
        return (first, last, length + 1) if first < last else None

    def followers(self, run: Run) -> Followers:
        """Return the followers of a run. If it occurs often, they are counted in an evenly spaced sample."""
        low, high, length = run
        positions = self.suffixes[low : high : max(1, (high - low) // _SAMPLED)] + length
        # if the suffixes are not sorted correctly, a position may lie past the end; end marks are skipped below
        positions = positions.clip(max=self.tokens.size - 1)
        tokens, counts = np.unique(self.tokens[positions], return_counts=True)
        there = tokens != NO_CANDIDATE
        return list(zip(tokens[there].tolist(), counts[there].tolist(), strict=True))

    def _run(self, tokens: list[int]) -> Run:
        size = len(tokens)

        def beginning(place: int) -> list[int]:
            begun: list[int] = self.tokens[place : place + size].tolist()
            return begun

        first = bisect_left(self.suffixes, tokens, key=beginning)
        return first, bisect_right(self.suffixes, tokens, first, key=beginning), size


def corpus_arrays(texts: list[list[int]]) -> dict[str, NDArray[np.int32]]:
    """Build the arrays of a :class:`SuffixArray` from tokenized texts, by prefix doubling.

    Example:
        >>> {name: array.tolist() for name, array in corpus_arrays([[3, 1], [1]]).items()}
        {'tokens': [3, 1, -1, 1, -1], 'suffixes': [4, 2, 3, 1, 0]}
    """
    tokens = np.array([token for text in texts for token in (*text, NO_CANDIDATE)], dtype=np.int64)
    rank, width = np.unique(tokens, return_inverse=True)[1], 1
    order = np.argsort(rank, kind="stable")
    while rank.size and rank.max() < rank.size - 1:  # each round doubles the compared tokens
        behind = np.full(rank.size, -1)
        behind[:-width] = rank[width:]
        order = np.lexsort((behind, rank))
        changed = (np.diff(rank[order]) != 0) | (np.diff(behind[order]) != 0)
        rank = np.empty_like(order)
        rank[order] = np.concatenate(([0], changed.cumsum()))
        width *= 2
    return {"tokens": tokens.astype(np.int32), "suffixes": order.astype(np.int32)}
