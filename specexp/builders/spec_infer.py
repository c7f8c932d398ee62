"""SpecInfer's trees (Miao et al. 2023): sequences of draws with replacement, merged where they begin alike."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from specexp.builders.regular_trees import size_of
from specexp.core.contracts import TreeBuilder
from specexp.core.dialogue import Build, Plan, Request
from specexp.core.tree import NodeKind, TokenTree, TreeShape


class SpecInfer(TreeBuilder):
    """A tree of tokens drawn with replacement (Miao et al. 2023, section 3: "expansion-based").

    A token drawn again below the same parent adds no node: it is fed once, but the verifier counts every draw. Every
    draw goes on below that node with draws of its own, as a separate sequence would.

    Args:
        widths: number of draws that follow each draw, depth by depth: ``[8, 1, 1]`` draws eight sequences of three.

    Raises:
        ValueError: ``widths`` is empty, has a number below 1, or defines more than 4,096 draws.
    """

    kind = NodeKind.DRAWN_WITH_REPLACEMENT
    accepts_fewer_candidates = True  # a node may be drawn more often than there are tokens
    max_nodes: int = 1
    max_candidates: int = 1

    def __init__(self, widths: list[int]) -> None:
        self.widths = list(widths)
        self.max_nodes, self.max_candidates = size_of(type(self).__name__, widths)

    @override
    def build(self, root: int, plan: Plan) -> Build:
        most, depth = plan.within(self.max_nodes, len(self.widths))
        tokens, parents, ranks, log_probs = [root], [-1], [-1], [0.0]
        drawn = [1]  # how often each row was drawn
        draws: dict[int, tuple[int, ...]] = {}
        q: dict[int, NDArray[np.float32]] = {}
        known = False  # whether candidates have log-probabilities
        level = [0]
        for width in self.widths[:depth]:
            wanted = [drawn[row] * width for row in level]
            if not level or most == 0:
                break
            answer = yield Request(
                np.array(tokens, dtype=np.int64),
                np.array(parents, dtype=np.int64),
                np.array(ranks, dtype=np.int64),
                np.array(level, dtype=np.int64),
                max(wanted),
                self.kind,
                log_probs=np.array(log_probs, dtype=np.float32) if known else None,
            )
            if answer is None:
                break
            known, above, level = answer.log_probs is not None, level, []
            for at, parent in enumerate(above):
                # a budget cuts draws before they are merged: which ones are left must not depend on their tokens
                offered = answer.tokens[at, : min(wanted[at], most)]
                offered = offered[offered >= 0]
                most -= offered.size
                rows: dict[int, int] = {}
                for rank, token in enumerate(offered.tolist()):
                    if token not in rows:
                        rows[token] = len(tokens)
                        level.append(len(tokens))
                        tokens.append(token)
                        parents.append(parent)
                        ranks.append(rank)
                        drawn.append(0)
                        log_probs.append(0.0 if answer.log_probs is None else float(answer.log_probs[at, rank]))
                    drawn[rows[token]] += 1
                if rows:
                    draws[parent] = tuple(rows[token] for token in offered.tolist())
                    if answer.q is not None:
                        q[parent] = answer.q[at]
        return TokenTree(
            TreeShape(parents, ranks),
            np.array(tokens, dtype=np.int64),
            np.array(log_probs, dtype=np.float32) if known else None,
            np.full(len(tokens), self.kind, dtype=np.int8) if q else None,
            q or None,
            draws or None,
        )
