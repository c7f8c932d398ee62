"""Tests of compositions in one shape, and the findings and verdicts of a verification."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from specexp.bench.record import PromptRecord
from specexp.verify.exercised import Exercised
from specexp.verify.statistics import POWER, GoodnessOfFit

Decision = Literal["found", "excluded", "undecided"]


@dataclass(frozen=True)
class LosslessCheck:
    """One test of a composition.

    Attributes:
        name: ``token equality``, ``toy equality``, ``toy joint`` or ``first tokens``.
        decision: A deviation was found, one of the stated size was excluded, or there were too few samples for that.
        samples: Number of compared outputs or tokens, or of counted samples.
        evidence: The result as a clause of a verdict.
        finds: The smallest deviation that is found with probability :data:`~specexp.verify.statistics.POWER`: the
            share of wrong tokens, or the total variation.
        p_value: One p-value for all fits, to be compared with ``level``.
        level: Probability that the test refuses an exact composition.
        fits: The chi-squares behind it, by what they count.
        outcomes: Number of compared outputs or tokens by result.
        wrong: Tokens on the toy targets that differ: (continuation, index, token, expected token).
        exercised: How the steps ended.
    """

    name: str
    decision: Decision
    samples: int
    evidence: str
    finds: float | None = None
    p_value: float | None = None
    level: float | None = None
    fits: Mapping[str, GoodnessOfFit] = field(default_factory=dict)
    outcomes: Mapping[str, int] = field(default_factory=dict)
    wrong: tuple[tuple[int, int, int, int], ...] = ()
    exercised: Exercised | None = None

    @property
    def passed(self) -> bool:
        """Whether no deviation was found."""
        return self.decision != "found"

    @property
    def worst(self) -> str | None:
        """The fit with the least p-value."""
        return min(self.fits, key=lambda name: self.fits[name].p_value, default=None)

    def to_dict(self) -> dict[str, Any]:
        """All fields, for JSON."""
        fits = {name: {**vars(fit), "samples": fit.samples} for name, fit in self.fits.items()}
        exercised = self.exercised and {**vars(self.exercised), "never": self.exercised.never}
        return {**vars(self), "fits": _plain(fits), "exercised": _plain(exercised), "power": POWER}


def _plain(value: Any) -> Any:
    """Arrays as lists of six digits, counters as tables."""
    if isinstance(value, dict | Counter):
        return {name: _plain(one) for name, one in value.items()}
    return [round(float(one), 6) for one in value] if isinstance(value, np.ndarray) else value


@dataclass(frozen=True)
class Finding:
    """The tests of one composition.

    Attributes:
        title: Title of the arm.
        verifier: The verifier with its arguments.
        lossless: Whether the verifier claims to be lossless.
        checks: The tests. The law of a deterministic verifier is tested without drafts.
        differences: Records of the outputs that differ from plain decoding's, near ties included.
        errors: Exceptions of parts, and where.
        not_tested: Why there is no toy test; None where there is one.
    """

    title: str
    verifier: str
    lossless: bool
    checks: tuple[LosslessCheck, ...] = ()
    differences: tuple[PromptRecord, ...] = ()
    errors: tuple[str, ...] = ()
    not_tested: str | None = None

    @property
    def deviates(self) -> bool:
        """Whether an output or a law differs from plain decoding's."""
        return not all(check.passed for check in self.checks)

    @property
    def tested(self) -> bool:
        """Whether anything was compared or counted."""
        return any(check.samples for check in self.checks)

    @property
    def failed(self) -> bool:
        """Whether the claim does not hold."""
        return bool(self.errors) or not self.tested or (self.lossless and self.deviates)

    @property
    def known(self) -> bool:
        """Whether a deviation of the stated size was found or excluded, if the composition claims anything."""
        if self.failed or not self.lossless:
            return True
        return self.not_tested is None and all(check.decision != "undecided" for check in self.checks)

    @property
    def verdict(self) -> str:
        """In a few words, with the deviation that could have been found."""
        if self.errors:
            return f"{len(self.errors)} ERRORS"
        if not self.tested:
            return "NOT TESTED"
        if not self.lossless:
            return "lossy, as labelled" if self.deviates else "labelled lossy, no deviation found"
        if self.deviates:
            return "NOT LOSSLESS"
        evidence = {check.name: check.evidence for check in self.checks}
        equality = evidence.get("toy equality") or evidence.get("token equality")
        law = evidence.get("toy joint") or evidence.get("first tokens")
        return "; ".join(one for one in (equality, law) if one)

    def to_dict(self) -> dict[str, Any]:
        """All fields, for JSON."""
        differences = [
            {"prompt_id": record.prompt_id, "sample": record.sample, **asdict(record.difference)}
            for record in self.differences
            if record.difference is not None
        ]
        checks = [check.to_dict() for check in self.checks]
        return {**vars(self), "verdict": self.verdict, "checks": checks, "differences": differences}


@dataclass(frozen=True)
class LosslessReport:
    """The findings of a run.

    Attributes:
        name: Name of the file.
        findings: One for each composition.
        plain: Plain decoding by each verifier that draws noise of its own: the control of the test itself.
        skipped: Arms of the file that are not ours.
        level: Probability with which an exact composition is refused.
        total_variation: Deviation of the joint of three tokens to be found or excluded.
        setting: Dtype and device of the target.
    """

    name: str
    findings: tuple[Finding, ...]
    plain: tuple[Finding, ...]
    skipped: tuple[str, ...]
    level: float
    total_variation: float
    setting: str

    @property
    def all(self) -> tuple[Finding, ...]:
        """Compositions, then controls."""
        return (*self.findings, *self.plain)

    @property
    def passed(self) -> bool:
        """Whether every claim holds."""
        return not any(finding.failed for finding in self.all)

    @property
    def known(self) -> bool:
        """Whether the stated deviation was found or excluded everywhere."""
        return all(finding.known for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """All fields, for JSON."""
        findings = {
            "findings": [finding.to_dict() for finding in self.findings],
            "plain": [finding.to_dict() for finding in self.plain],
        }
        return {**vars(self), "passed": self.passed, "known": self.known, **findings}
