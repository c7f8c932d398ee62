"""How steps ended: a branch of a verifier that no step took was not tested."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from specexp.core.outcome import Outcome


@dataclass
class Exercised:
    """How the steps of a composition ended.

    Attributes:
        steps: Number of steps. Those that the limit of tokens cut short are not counted below.
        tokens: Tokens that they gave.
        rows: Rows of trees that the target answered, roots included.
        undrafted: Steps with nothing drafted.
        rejected: By depth, steps in which every node of that depth below the accepted path was rejected.
        leaves: By depth, steps whose accepted path ended at a leaf, so that the bonus token came after it.
        whole: Steps whose accepted path was as deep as the tree.
        deepest: Depth of the deepest tree.
    """

    steps: int = 0
    tokens: int = 0
    rows: int = 0
    undrafted: int = 0
    rejected: Counter[int] = field(default_factory=Counter)
    leaves: Counter[int] = field(default_factory=Counter)
    whole: int = 0
    deepest: int = 0

    def note(self, outcome: Outcome) -> None:
        """Count a step."""
        shape, accepted = outcome.tree.shape, outcome.accepted
        self.steps += 1
        self.tokens += len(outcome.new_token_ids)
        self.rows += outcome.tree.tokens.size
        if shape.num_nodes == 0:
            self.undrafted += 1
            return
        self.deepest = max(self.deepest, shape.max_depth)
        if len(outcome.new_token_ids) <= len(accepted):  # the output ended inside the accepted path
            return
        if shape.children[accepted[-1] if accepted else 0]:
            self.rejected[len(accepted) + 1] += 1
            return
        self.leaves[len(accepted)] += 1
        self.whole += len(accepted) == shape.max_depth

    def __add__(self, other: Exercised) -> Exercised:
        total = {name: value + getattr(other, name) for name, value in vars(self).items()}
        return Exercised(**{**total, "deepest": max(self.deepest, other.deepest)})

    @property
    def never(self) -> list[str]:
        """Branches that no step took; empty where nothing is ever drafted."""
        if self.deepest == 0:
            return []
        depths = [str(depth) for depth in range(1, self.deepest + 1) if not self.rejected[depth]]
        found = [f"rejected at depth {', '.join(depths)}"] if depths else []
        return found + ([] if self.whole else ["all accepted"])

    def __str__(self) -> str:
        if self.deepest == 0:
            return f"{self.steps:,} steps, nothing drafted"
        depths = ", ".join(f"{self.rejected[depth]:,}" for depth in range(1, self.deepest + 1))
        return (
            f"rejected at depth 1 to {self.deepest}: {depths}; bonus at a leaf {sum(self.leaves.values()):,}, "
            f"of them all accepted {self.whole:,}; nothing drafted {self.undrafted:,}"
        )
