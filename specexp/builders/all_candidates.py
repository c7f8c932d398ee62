"""A builder that uses all candidates of a drafter, level by level."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field
from typing_extensions import override

from specexp.core.contracts import TreeBuilder
from specexp.core.dialogue import Build, Plan, Request
from specexp.core.tree import NO_CANDIDATE, TokenTree, TreeShape


class AllCandidates(TreeBuilder):
    """Turns every candidate of every node into a node, until the drafter has no more or the tree is full.

    Intended for drafters with few candidates, such as :class:`~specexp.drafters.Lookahead` and
    :class:`~specexp.drafters.PromptLookup`. If a drafter ranks a whole vocabulary, the first layers fill the tree.

    Args:
        max_nodes: maximum number of nodes.
        candidates: maximum number of candidates per node.
        max_depth: maximum depth.
    """

    size_arguments = ("max_nodes", "max_depth")
    accepts_fewer_candidates = True
    max_nodes: int = 1
    max_candidates: int = 1

    def __init__(
        self,
        max_nodes: Annotated[int, Field(ge=1, le=4096)] = 64,
        candidates: Annotated[int, Field(ge=1, le=256)] = 8,
        max_depth: Annotated[int, Field(ge=1)] = 64,
    ) -> None:
        self.max_nodes = max_nodes
        self.max_candidates = candidates
        self.max_depth = max_depth

    @override
    def build(self, root: int, plan: Plan) -> Build:
        room, depth = plan.within(self.max_nodes, self.max_depth)
        tokens, parents, ranks, log_probs = [root], [-1], [-1], [0.0]
        layer, given = [0], True
        while layer and depth > 0 and len(tokens) <= room:
            answer = yield Request(
                np.array(tokens),
                np.array(parents),
                np.array(ranks),
                np.array(layer),
                min(self.max_candidates, room + 1 - len(tokens)),
                log_probs=np.array(log_probs, dtype=np.float32) if given else None,
            )
            if answer is None:
                break
            start, depth, given = len(tokens), depth - 1, answer.log_probs is not None
            for number, (row, found) in enumerate(zip(layer, answer.tokens.tolist(), strict=False)):
                for rank, token in enumerate(found):
                    if token == NO_CANDIDATE or len(tokens) > room:
                        break
                    tokens.append(token)
                    parents.append(row)
                    ranks.append(rank)
                    log_probs.append(0.0 if answer.log_probs is None else float(answer.log_probs[number, rank]))
            layer = list(range(start, len(tokens)))
        shape = TreeShape(parents, ranks)
        return TokenTree(shape, np.array(tokens), np.array(log_probs, dtype=np.float32) if given else None)
