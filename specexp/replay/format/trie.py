"""The predictions of target and draft in one recorded turn, stored as a trie of token sequences.

Node 0 is the prompt. Nodes ``1..n`` are the *spine*: the tokens of the answer, in order. All other nodes are drafted
tokens that did not become output. A token sequence is stored only once, no matter which root it was drafted from. The
overlapping draft trees of nearby roots therefore share nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specexp.core.tree import NO_CANDIDATE


class RecordingError(ValueError):
    """Raised if a recording is damaged, was made with other models, or does not match the configuration."""


class NotRecordedError(RecordingError):
    """Raised if a replay needs a prediction that was not recorded."""


NOWHERE = -1
"""The node number of a path that is not in the trie."""

_TOKEN_BITS = 32


@dataclass(eq=False)
class Ranked:
    """Ranked tokens and their values for all nodes, stored as flat arrays. Node ``i`` has ``counts[i]`` entries."""

    counts: NDArray[np.int32]
    tokens: NDArray[np.int32]  # the ranked token ids of all nodes, concatenated
    values: NDArray[np.float32]  # the log-probability or logit of each of these tokens

    def __post_init__(self) -> None:
        self._counts: list[int] = self.counts.tolist()
        self._starts: list[int] = (np.cumsum(self.counts, dtype=np.int64) - self.counts).tolist()

    def __getitem__(self, node: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Return views of the tokens and values of a node, best first."""
        start = self._starts[node]
        end = start + self._counts[node]
        return self.tokens[start:end], self.values[start:end]

    def count(self, node: int) -> int:
        """Return the number of tokens recorded at a node."""
        return self._counts[node]

    def best(self, nodes: Sequence[int], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32], list[int]]:
        """Return ``k`` tokens and values per node, both ``[f, k]``, and the rows of nodes that have fewer.

        Those rows hold ``NO_CANDIDATE`` and -inf.
        """
        tokens = np.full((len(nodes), k), NO_CANDIDATE, dtype=np.int64)
        values = np.full(tokens.shape, -np.inf, dtype=np.float32)
        known = [row for row, node in enumerate(nodes) if node != NOWHERE and self._counts[node] >= k]
        starts = np.array([self._starts[nodes[row]] for row in known], dtype=np.int64)
        places = starts[:, np.newaxis] + np.arange(k)
        tokens[known] = self.tokens[places]
        values[known] = self.values[places]
        return tokens, values, sorted({*range(len(nodes))} - {*known})

    @staticmethod
    def of(lists: Mapping[int, tuple[NDArray[Any], NDArray[Any]]], nodes: int) -> Ranked:
        """Build an instance from (tokens, values) keyed by node. ``nodes`` is the number of nodes in the trie."""
        counts = np.zeros(nodes, dtype=np.int32)
        for node, (tokens, _) in lists.items():
            counts[node] = tokens.size
        ordered = [lists[node] for node in sorted(lists)]
        tokens = np.concatenate([np.empty(0, dtype=np.int32), *(tokens for tokens, _ in ordered)])
        values = np.concatenate([np.empty(0, dtype=np.float32), *(values for _, values in ordered)])
        return Ranked(counts, tokens.astype(np.int32), values.astype(np.float32))


@dataclass(eq=False)
class Trie:
    """A finished, read-only trie."""

    parents: NDArray[np.int32]  # [nodes] parent of each node, -1 for node 0
    tokens: NDArray[np.int32]  # [nodes] token of each node; for node 0 the prompt's last token
    draft: Ranked  # after each node: the draft's ranked candidates with their log-probabilities
    target: Ranked  # after each node: the target's best tokens with their logits
    spine: int  # length of the answer: nodes 1..spine are its tokens

    def __post_init__(self) -> None:
        keys = (self.parents[1:].astype(np.int64) << _TOKEN_BITS) | self.tokens[1:]
        self._children = dict(zip(keys.tolist(), range(1, self.parents.size), strict=True))

    def child(self, node: int, token: int) -> int:
        """Return the child of ``node`` with this token, or ``NOWHERE``."""
        return self._children.get((node << _TOKEN_BITS) | token, NOWHERE) if node >= 0 else NOWHERE

    def __len__(self) -> int:
        return int(self.parents.size)


class TrieWriter:
    """Builds a trie during recording. ``root`` is the prompt's last token."""

    def __init__(self, root: int, answer: Sequence[int]) -> None:
        self.parents = [-1]
        self.tokens = [root]
        self.draft: dict[int, tuple[NDArray[Any], NDArray[Any]]] = {}
        self.target: dict[int, tuple[NDArray[Any], NDArray[Any]]] = {}
        self._children: dict[int, int] = {}
        for node, token in enumerate(answer):
            self.enter(node, token)
        self.spine = len(answer)

    def enter(self, node: int, token: int) -> int:
        """Return the child of ``node`` with this token, adding it if it is missing."""
        key = (node << _TOKEN_BITS) | token
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = len(self.parents)
            self.parents.append(node)
            self.tokens.append(token)
        return child

    def finish(self) -> Trie:
        """Return the complete trie."""
        size = len(self.parents)
        return Trie(
            np.array(self.parents, dtype=np.int32),
            np.array(self.tokens, dtype=np.int32),
            Ranked.of(self.draft, size),
            Ranked.of(self.target, size),
            self.spine,
        )
