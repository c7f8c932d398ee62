"""The results of tests, and the findings and verdicts derived from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from specexp.core.outcome import Outcome
from specexp.verify.statistics import GoodnessOfFit

Decision = Literal["found", "excluded", "undecided"]


@dataclass
class StepEndings:
    """Counts of how steps ended. If no step took a branch of a verifier, that branch was not tested."""

    steps: int = 0  # all steps; the counts of endings below leave out steps cut short by the end of the output
    tokens: int = 0
    rows: int = 0  # rows of trees in the target's passes, roots included
    undrafted: int = 0  # steps without drafted tokens
    # by depth, steps that accepted a path down to the depth above and then rejected all of its children
    rejected: Counter[int] = field(default_factory=Counter)
    # by depth, steps with an accepted path that ended at a leaf of this depth, followed by the bonus token
    leaves: Counter[int] = field(default_factory=Counter)
    whole: int = 0  # steps with an accepted path as deep as the tree
    deepest: int = 0  # depth of the deepest tree

    def observe(self, outcome: Outcome) -> None:
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

    def __add__(self, other: StepEndings) -> StepEndings:
        total = {name: value + getattr(other, name) for name, value in vars(self).items()}
        return StepEndings(**{**total, "deepest": max(self.deepest, other.deepest)})

    @property
    def never(self) -> list[str]:
        """The branches that no step took; empty if no step drafted."""
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


@dataclass(frozen=True)
class LosslessCheck:
    """One test of a composition."""

    name: str  # ``token equality``, ``toy equality``, ``toy joint`` or ``first tokens``
    # a deviation was found, one of the stated size was excluded, or there were too few samples to exclude it
    decision: Decision
    samples: int  # number of compared outputs or tokens, or of counted samples
    evidence: str  # the result as a clause of a verdict
    # smallest deviation found with probability ``POWER``: a share of wrong tokens, or a total variation
    finds: float | None = None
    p_value: float | None = None  # p-value of all fits together, to be compared with ``level``
    level: float | None = None  # probability that the test rejects an exact composition
    fits: Mapping[str, GoodnessOfFit] = field(default_factory=dict)  # by name of the counted quantity
    outcomes: Mapping[str, int] = field(default_factory=dict)  # compared outputs or tokens by result
    # tokens on the toy targets that differ: (continuation, index, token, expected token)
    wrong: tuple[tuple[int, int, int, int], ...] = ()
    branches: StepEndings | None = None

    @property
    def passed(self) -> bool:
        """True if no deviation was found."""
        return self.decision != "found"

    @property
    def worst(self) -> str | None:
        """The fit with the lowest p-value."""
        return min(self.fits, key=lambda name: self.fits[name].p_value, default=None)


@dataclass(frozen=True)
class Finding:
    """The tests of one composition."""

    title: str  # title of the arm
    verifier: str  # the verifier with its arguments
    lossless: bool  # whether the verifier claims to be lossless
    checks: tuple[LosslessCheck, ...] = ()
    # prompt id, sample and position of each difference from plain decoding, near ties included
    differences: tuple[Mapping[str, Any], ...] = ()
    errors: tuple[str, ...] = ()  # exceptions of parts, each with the prompt or test in which it occurred
    not_tested: str | None = None  # why there is no toy test; None if there is one

    @property
    def deviates(self) -> bool:
        """True if outputs or their distribution differ from plain decoding."""
        return not all(check.passed for check in self.checks)

    @property
    def tested(self) -> bool:
        """True if anything was compared or counted."""
        return any(check.samples for check in self.checks)

    @property
    def failed(self) -> bool:
        """True if the claim is false, a part failed, or no test ran."""
        return bool(self.errors) or not self.tested or (self.lossless and self.deviates)

    @property
    def known(self) -> bool:
        """True if a deviation of the stated size was found or excluded, or the composition is labeled lossy."""
        if self.failed or not self.lossless:
            return True
        return self.not_tested is None and all(check.decision != "undecided" for check in self.checks)

    @property
    def verdict(self) -> str:
        """The result in a few words, with the size of the deviation that the tests would have found."""
        if self.errors:
            return f"{len(self.errors)} ERRORS"
        if not self.tested:
            return "NOT TESTED"
        if not self.lossless:
            return "lossy, as labeled" if self.deviates else "labeled lossy, no deviation found"
        if self.deviates:
            return "NOT LOSSLESS"
        # the user's model first
        return "; ".join(check.evidence for check in sorted(self.checks, key=lambda one: one.name.startswith("toy")))


@dataclass(frozen=True)
class LosslessReport:
    """The findings on all compositions and controls of a run."""

    name: str  # name of the file
    findings: tuple[Finding, ...]  # one for each composition
    # first-token tests of plain decoding with each sampling verifier, as controls of the test itself
    plain: tuple[Finding, ...]
    skipped: tuple[str, ...]  # arms of the file that other programs decode
    level: float  # maximum probability of rejecting an exact composition
    total_variation: float  # deviation to find or exclude in the joint distribution of three tokens
    setting: str  # dtype and device of the target

    @property
    def all(self) -> tuple[Finding, ...]:
        """The findings on all compositions, then on all controls."""
        return (*self.findings, *self.plain)

    @property
    def passed(self) -> bool:
        """True if every claim is confirmed."""
        return not any(finding.failed for finding in self.all)

    @property
    def known(self) -> bool:
        """True if the stated deviation was found or excluded for every composition."""
        return all(finding.known for finding in self.findings)


_PROPERTIES = {
    StepEndings: ("never",),
    GoodnessOfFit: ("samples",),
    Finding: ("verdict",),
    LosslessReport: ("passed", "known"),
}
"""Properties that the JSON contains in addition to the fields."""


def as_json(value: Any) -> Any:
    """Convert a result to a dict, or an array to a list rounded to six decimals, for :func:`json.dumps`."""
    if isinstance(value, np.ndarray):
        return [round(float(one), 6) for one in value]
    return {**vars(value), **{name: getattr(value, name) for name in _PROPERTIES.get(type(value), ())}}
