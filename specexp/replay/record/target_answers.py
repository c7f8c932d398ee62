"""What the target says after drafted nodes, on its way into a recording."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from specexp.core.tree import TokenTree, TreeShape
from specexp.replay.format.trie import TrieWriter

if TYPE_CHECKING:
    from specexp.core.runtime import Runtime

_ROWS = 256
"""Drafted nodes that the target is asked about in one pass, beside those that hang off one token."""


class TargetAnswers:
    """Keeps the target's best tokens after the nodes of drafted trees.

    Args:
        model: The target.
        top_k: Tokens kept after every node.

    Attributes:
        drafted: Nodes of the turn's trees.
    """

    def __init__(self, model: Runtime, top_k: int) -> None:
        self.model = model
        self.top_k = top_k
        self.drafted: set[int] = set()

    def keep_tree(self, writer: TrieWriter, root: int, tree: TokenTree, logits: torch.Tensor) -> None:
        """Keep what the target said of a tree below a root of the answer, ``[n + 1, V]`` logits."""
        nodes = self.enter(writer, root, tree)
        # nodes of the answer have plain decoding's own answer
        missing = [row for row, node in enumerate(nodes) if node > writer.spine and node not in writer.target]
        self._keep(writer, [nodes[row] for row in missing], logits[missing])

    def enter(self, writer: TrieWriter, root: int, tree: TokenTree) -> list[int]:
        """The nodes of a tree; those beside the answer will be asked about."""
        nodes = writer.enter_tree(root, tree)
        self.drafted.update(nodes)
        return nodes

    def ask_rest(self, writer: TrieWriter) -> None:
        """Ask the target about every drafted node it was not asked about, each once: those that hang off neighbouring
        tokens of the answer in one pass. The cache holds the prompt, less its last token.
        """
        spine = writer.spine
        hanging: list[list[int]] = [[] for _ in range(spine + 1)]
        off = list(range(spine + 1))  # the node of the answer that each node hangs off
        for node in range(spine + 1, len(writer.parents)):
            off.append(off[writer.parents[node]])
            if node in self.drafted and node not in writer.target:
                hanging[off[node]].append(node)
        first = 0
        while first <= spine:
            last, count = first, len(hanging[first])
            while last < spine and count + len(hanging[last + 1]) <= _ROWS:
                last += 1
                count += len(hanging[last]) + 1
            nodes = [*range(first, last + 1), *(n for node in range(first, last + 1) for n in hanging[node])]
            row = {node: index for index, node in enumerate(nodes)}
            parents = [-1, *(row[writer.parents[node]] for node in nodes[1:])]
            shape = TreeShape(parents, [-1] + [0] * (len(nodes) - 1))
            tokens = np.array([writer.tokens[node] for node in nodes], dtype=np.int64)
            (logits,) = self.model.tree_pass((0,), (TokenTree(shape, tokens),))
            asked = [index for index, node in enumerate(nodes) if node not in writer.target]
            self._keep(writer, [nodes[index] for index in asked], logits[asked])
            kept = min(last + 1, spine) - first  # the last token of an answer is not fed before the next turn
            if kept:
                self.model.cache.commit(0, range(kept))
            first = last + 1

    def _keep(self, writer: TrieWriter, nodes: Sequence[int], logits: torch.Tensor) -> None:
        """Keep the target's best tokens after nodes from its ``[n, V]`` logits."""
        values, best = logits.topk(self.top_k, dim=-1)
        found, scores = best.numpy(force=True), values.float().numpy(force=True)
        for index, node in enumerate(nodes):
            writer.target[node] = found[index].copy(), scores[index].copy()
