"""What is asked at every root of an answer while it is recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specexp.builders import BeamRerank, DySpecGreedy
from specexp.core.parts import TreeBuilder


def covering(builders: Sequence[TreeBuilder]) -> list[TreeBuilder]:
    """Builders whose questions are recorded, the wanted ones last.

    Greedy trees of growing budget hold one another, but the passes of a small one may look ahead at nodes that a large
    one does not; beams of growing width do not even hold one another. So smaller ones are recorded too; most of what
    they ask is known by then.
    """
    found: list[TreeBuilder] = []
    for builder in builders:
        if isinstance(builder, DySpecGreedy):
            budget = builder.budget // 2
            while budget >= 4:
                found.append(DySpecGreedy(budget, builder.prefetch, builder.max_depth, "top-k"))
                budget //= 2
        elif isinstance(builder, BeamRerank):
            found += [BeamRerank(builder.budget, builder.depth, beam) for beam in range(1, builder.beam)]
    return [*found, *builders]


def without_phrases(builder: TreeBuilder) -> list[TreeBuilder]:
    """What a builder has inside that asks for single tokens; itself, if that is all it does."""
    if builder.phrase_length == 1:
        return [builder]
    inside = (*getattr(builder, "builders", ()), *filter(None, [getattr(builder, "builder", None)]))
    return [one for inner in inside for one in without_phrases(inner)]


@dataclass(frozen=True)
class Coverage:
    """How much of every answer is kept.

    Attributes:
        builders: run once at every root.
        candidates: the draft's candidates kept after every token of the answer, at least.
        target_top_k: the target's best tokens kept after every recorded node.
    """

    builders: Sequence[TreeBuilder]
    candidates: int
    target_top_k: int
