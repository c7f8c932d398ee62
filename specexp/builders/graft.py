"""Post-use: attaches phrases to the last nodes of a drafted tree (Post-use & Pre-cut, algorithm 3)."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import numpy as np
from pydantic import Field
from typing_extensions import override

from specexp.core.contracts import TreeBuilder
from specexp.core.dialogue import Build, Plan, Request
from specexp.core.tree import NO_CANDIDATE, NodeKind, TokenTree, TreeShape
from specexp.core.wrappers import BuilderWrapper


class Graft(BuilderWrapper):
    """Extends another builder's tree with phrases from a :class:`~specexp.drafters.PhraseCache` below its anchors.

    A draft that is accepted up to an anchor may continue with a phrase.

    Anchors are the last ``num_anchors`` nodes of the most probable path, including the root if the path is shorter. A
    phrase reuses any nodes that the tree already has. Grafted nodes are point masses and come after their siblings, so
    every verifier stays exact. If the plan's limits leave too little room, the deepest anchors have priority.

    Args:
        num_anchors: number of nodes that get phrases; the paper uses 3.
        phrases_per_anchor: maximum number of phrases below each anchor; the paper's W.
        phrase_length: maximum number of tokens in a phrase; the paper's beta.

    Example:
        >>> Graft(Chain(4), num_anchors=3, phrases_per_anchor=3, phrase_length=5).max_nodes  # doctest: +SKIP
        49
    """

    def __init__(
        self,
        builder: TreeBuilder,
        num_anchors: Annotated[int, Field(ge=1, le=64)] = 3,
        phrases_per_anchor: Annotated[int, Field(ge=1, le=64)] = 3,
        phrase_length: Annotated[int, Field(ge=2, le=64)] = 5,
    ) -> None:
        self.inner = (builder,)
        self.num_anchors = num_anchors
        self.phrases_per_anchor = phrases_per_anchor
        self.length = phrase_length
        self.phrase_length = max(phrase_length, builder.phrase_length)
        self.max_nodes = builder.max_nodes + num_anchors * phrases_per_anchor * phrase_length

    @override
    def build(self, root: int, plan: Plan) -> Build:
        tree = yield from self.inner[0].build(root, plan)
        return (yield from self.extend(tree, plan))

    @override
    def extend(self, tree: TokenTree, plan: Plan) -> Build:
        room = self.max_nodes if plan.max_nodes is None else plan.max_nodes - tree.num_nodes
        deepest = self.max_nodes if plan.max_depth is None else plan.max_depth
        depths = tree.shape.depths.tolist()
        # the anchors t_(L - K + 1), ..., t_L of the drafted path, the deepest first (algorithm 3)
        anchors = [row for row in reversed((0, *tree.best_path())[-self.num_anchors :]) if depths[row] < deepest]
        if room <= 0 or not anchors:
            return tree
        shape = tree.shape
        answer = yield Request(
            tree.tokens,
            shape.parents,
            shape.ranks,
            np.array(anchors, dtype=np.int64),
            self.phrases_per_anchor,
            length=self.length,
            log_probs=tree.log_probs,
        )
        if answer is None:
            return tree
        phrases = [
            (anchor, phrase[: deepest - depths[anchor]])
            for anchor, below in zip(anchors, answer.tokens.tolist(), strict=True)
            for phrase in below
        ]
        return grafted(tree, phrases, room)


def grafted(tree: TokenTree, phrases: list[tuple[int, list[int]]], room: int) -> TokenTree:
    """Return the tree with phrases added below its rows, or the same tree if no node is added. Rows keep their numbers.

    Args:
        phrases: pairs of a row and the tokens to add below it. Tokens from the first ``NO_CANDIDATE`` on are ignored;
            earlier pairs have priority.
        room: maximum number of nodes to add.
    """
    size = tree.tokens.size
    old_tokens = tree.tokens.tolist()
    old_ranks = tree.shape.ranks.tolist()
    old_children = tree.shape.children
    tokens: list[int] = []
    parents: list[int] = []
    ranks: list[int] = []
    below: dict[int, dict[int, int]] = {}  # children of a row by token
    next_rank: dict[int, int] = {}
    for row, phrase in phrases:
        for token in phrase:
            if token == NO_CANDIDATE:
                break
            children = below.get(row)
            if children is None:
                known = old_children[row] if row < size else ()
                children = below[row] = {old_tokens[child]: child for child in known}
                next_rank[row] = 1 + max((old_ranks[child] for child in known), default=-1)
            child = children.get(token)
            if child is None:
                if len(tokens) == room:
                    break
                child = children[token] = size + len(tokens)
                tokens.append(token)
                parents.append(row)
                ranks.append(next_rank[row])
                next_rank[row] += 1
            row = child
    added = len(tokens)
    if added == 0:
        return tree
    graft = np.ones(size + added, dtype=np.bool_)
    graft[:size] = False if tree.grafted is None else tree.grafted

    def longer(values: Any, rest: float) -> Any:
        return None if values is None else np.append(values, np.full(added, rest, dtype=values.dtype))

    return replace(
        tree,
        shape=_longer_shape(tree.shape, parents, ranks),
        tokens=np.append(tree.tokens, tokens),
        log_probs=longer(tree.log_probs, np.nan),
        kinds=longer(tree.kinds, NodeKind.POINT_MASS),
        values=longer(tree.values, 0.0),
        grafted=graft,
    )


def _longer_shape(shape: TreeShape, parents: list[int], ranks: list[int]) -> TreeShape:
    size = shape.parents.size
    longer = TreeShape(np.append(shape.parents, parents), np.append(shape.ranks, ranks))
    depths = shape.depths.tolist()
    children = [*shape.children, *((),) * len(parents)]
    mask = np.zeros((size + len(parents),) * 2, dtype=np.bool_)
    mask[:size, :size] = shape.ancestor_mask
    for row, parent in enumerate(parents, start=size):
        depths.append(depths[parent] + 1)
        children[parent] = (*children[parent], row)
        mask[row] = mask[parent]
        mask[row, row] = True
    # cached properties of the longer shape, from those of the shorter one
    longer.__dict__.update(depths=np.array(depths), ancestor_mask=mask, children=tuple(children))
    return longer
