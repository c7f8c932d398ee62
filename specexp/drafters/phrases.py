"""A bounded store of phrases: short continuations keyed by the token they follow (Post-use & Pre-cut, section 5.1)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specexp.core.tree import NO_CANDIDATE

Phrase = tuple[int, ...]
"""The tokens that follow a key token."""

LONGEST = 64  # maximum number of tokens in a phrase
ENTRIES = ("counts", "keys", "phrases", "uses")


class PhraseStore:
    """Stores phrases by key token, newest first. Lookup, insertion and eviction take constant time.

    A full store evicts its least used key or, in a tie, the one least recently used (or inserted). A full key evicts
    its oldest phrase. Inserting a phrase again makes it the newest. If one phrase of a key is a prefix of another, only
    the longer one is kept, with the age of the newer one.

    Example:
        >>> store = PhraseStore(phrase_length=3, max_keys=2, max_phrases=2)
        >>> store.insert(7, [1, 2])
        >>> store.insert(7, [1, 3, 5, 9])
        >>> store.lookup(7, 5)
        [(1, 3, 5), (1, 2)]
    """

    def __init__(self, phrase_length: int, max_keys: int, max_phrases: int) -> None:
        self.phrase_length = phrase_length
        self.max_keys = max_keys
        self.max_phrases = max_phrases
        self.clear()

    def clear(self) -> None:
        """Remove all phrases."""
        self._phrases: dict[int, OrderedDict[Phrase, None]] = {}  # phrases by key, the newest last
        self._uses: dict[int, int] = {}
        self._used: dict[int, OrderedDict[int, None]] = {}  # keys by number of uses, oldest use first
        self._fewest = 0  # uses of the key to be evicted next

    def copy(self) -> PhraseStore:
        """Return an independent copy."""
        copied = PhraseStore(self.phrase_length, self.max_keys, self.max_phrases)
        copied._phrases = {key: phrases.copy() for key, phrases in self._phrases.items()}
        copied._uses = self._uses.copy()
        copied._used = {uses: keys.copy() for uses, keys in self._used.items()}
        copied._fewest = self._fewest
        return copied

    @property
    def largest_token(self) -> int:
        """The largest token id, or -1 if the store is empty."""
        return max((max(key, *map(max, own)) for key, own in self._phrases.items()), default=NO_CANDIDATE)

    def lookup(self, key: int, count: int) -> list[Phrase]:
        """Return up to ``count`` phrases stored under a key, newest first."""
        phrases = self._phrases.get(key)
        return [] if phrases is None else list(islice(reversed(phrases), count))

    def insert(self, key: int, phrase: Sequence[int]) -> None:
        """Add a phrase, truncated to ``phrase_length`` tokens. An empty phrase is ignored."""
        new = tuple(phrase[: self.phrase_length])
        if not new:
            return
        phrases = self._phrases.get(key)
        if phrases is None:
            if len(self._phrases) >= self.max_keys:
                self._evict()
            phrases = self._phrases[key] = OrderedDict()
            self._count(key, 0)
        elif new in phrases:
            phrases.move_to_end(new)
            return
        elif len(new) < self.phrase_length:
            for known in phrases:
                if known[: len(new)] == new:  # a longer phrase begins with it
                    phrases.move_to_end(known)
                    return
        for length in range(1, len(new)):  # remove shorter phrases that it begins with
            phrases.pop(new[:length], None)
        phrases[new] = None
        if len(phrases) > self.max_phrases:
            phrases.popitem(last=False)

    def use(self, key: int) -> None:
        """Count a use of a key. A key that is not stored is ignored."""
        uses = self._uses.get(key)
        if uses is None:
            return
        equals = self._used[uses]
        del equals[key]
        if not equals:
            del self._used[uses]
            if uses == self._fewest:
                self._fewest = uses + 1
        self._count(key, uses + 1)

    def state_dict(self) -> dict[str, Any]:
        """Return tensors: ``keys`` ``[n]`` in eviction order, their ``uses`` ``[n]``, their phrase ``counts`` ``[n]``,
        and ``phrases`` ``[m, phrase_length]``, grouped by key, oldest first, padded with ``NO_CANDIDATE``.
        """
        import torch  # imported late: checking a configuration does not need it

        keys = [key for uses in sorted(self._used) for key in self._used[uses]]
        rows = [phrase for key in keys for phrase in self._phrases[key]]
        phrases = np.full((len(rows), self.phrase_length), NO_CANDIDATE, dtype=np.int32)
        for number, phrase in enumerate(rows):
            phrases[number, : len(phrase)] = phrase
        return {
            "counts": torch.tensor([len(self._phrases[key]) for key in keys], dtype=torch.int32),
            "keys": torch.tensor(keys, dtype=torch.int32),
            "phrases": torch.from_numpy(phrases),
            "uses": torch.tensor([self._uses[key] for key in keys], dtype=torch.int64),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state from :meth:`state_dict`. Raises ``ValueError`` if it is damaged or too large."""
        counts, keys, phrases, uses = self._checked(state)
        self.clear()
        start = 0
        for key, count, used in zip(keys.tolist(), counts.tolist(), uses.tolist(), strict=True):
            self._phrases[key] = OrderedDict(
                (tuple(token for token in row if token != NO_CANDIDATE), None)
                for row in phrases[start : start + count].tolist()
            )
            self._count(key, used)
            start += count
        self._fewest = min(self._used, default=0)

    def _checked(self, state: Mapping[str, Any]) -> tuple[NDArray[np.int64], ...]:
        if sorted(state) != list(ENTRIES):
            raise ValueError(f"the saved phrases must have the entries {list(ENTRIES)}, got {sorted(state)}")
        arrays = {name: np.asarray(state[name]) for name in ENTRIES}
        for name, array in arrays.items():
            rank = 2 if name == "phrases" else 1
            if array.ndim != rank or not np.issubdtype(array.dtype, np.integer):
                raise ValueError(
                    f"the saved {name} must be integers of rank {rank}, got {array.dtype} {list(array.shape)}"
                )
        counts, keys, phrases, uses = (arrays[name].astype(np.int64) for name in ENTRIES)
        if phrases.shape[1] > LONGEST:  # an array without rows may have any width
            raise ValueError(f"the saved phrases must have at most {LONGEST} columns, got {phrases.shape[1]}")
        if keys.size > self.max_keys or counts.max(initial=0) > self.max_phrases:
            raise ValueError(
                f"the saved phrases must have at most {self.max_keys} keys with {self.max_phrases} phrases each, got "
                f"{keys.size} with up to {counts.max(initial=0)}: raise max_keys or max_phrases"
            )
        filled = phrases != NO_CANDIDATE
        lengths = filled.sum(axis=1)
        if lengths.max(initial=0) > self.phrase_length:
            raise ValueError(
                f"a saved phrase must have at most {self.phrase_length} tokens, got {lengths.max()}: raise "
                "phrase_length"
            )
        whole = (np.arange(phrases.shape[1]) < lengths[:, np.newaxis]) == filled  # padding at the end only
        if (
            not counts.size == keys.size == uses.size
            or counts.sum() != phrases.shape[0]
            or counts.min(initial=1) < 1
            or lengths.min(initial=1) < 1
            or not whole.all()
            or min(keys.min(initial=0), uses.min(initial=0)) < 0
            or phrases.min(initial=0) < NO_CANDIDATE
            or np.unique(keys).size < keys.size
        ):
            raise ValueError(
                "the saved phrases are damaged: keys must be distinct, uses and counts must match them, and phrases "
                f"must be token ids >= 0 padded with {NO_CANDIDATE}"
            )
        return counts, keys, phrases, uses

    def _evict(self) -> None:
        key, _ = self._used[self._fewest].popitem(last=False)
        if not self._used[self._fewest]:
            del self._used[self._fewest]  # the key that is inserted next has the fewest uses
        del self._phrases[key], self._uses[key]

    def _count(self, key: int, uses: int) -> None:
        self._uses[key] = uses
        self._used.setdefault(uses, OrderedDict())[key] = None
        if uses == 0:
            self._fewest = 0
