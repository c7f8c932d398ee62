"""What a verification found, composition by composition, and the verdicts it leads to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from specexp.bench.equality import Equality
from specexp.bench.record import PromptRecord
from specexp.verify.first_tokens import FirstTokens
from specexp.verify.joint import JointTest
from specexp.verify.statistics import GoodnessOfFit


@dataclass(frozen=True)
class Finding:
    """What was found of one composition.

    Attributes:
        title: Title of the arm.
        verifier: The verifier with its arguments.
        lossless: What the verifier claims.
        equality: How many outputs equal plain decoding's; None where a verifier's need not.
        differences: Records of the outputs that part from plain decoding's, near ties included.
        errors: What parts raised, and where.
        joint: Test on the toy target; None where there is nothing to sample, or for the reason in ``not_tested``.
        not_tested: Why there is no toy test.
        first_tokens: Tests on the configured models, one a prompt.
    """

    title: str
    verifier: str
    lossless: bool
    equality: Equality | None = None
    differences: tuple[PromptRecord, ...] = ()
    errors: tuple[str, ...] = ()
    joint: JointTest | None = None
    not_tested: str | None = None
    first_tokens: tuple[FirstTokens, ...] = ()

    @property
    def deviates(self) -> bool:
        """Whether an output or a law is not plain decoding's."""
        return (
            (self.equality is not None and self.equality.wrong > 0)
            or (self.joint is not None and not self.joint.passed)
            or not all(test.passed for test in self.first_tokens)
        )

    @property
    def tested(self) -> bool:
        """Whether there is anything to judge by: outputs, where they must be equal, or else a law."""
        if self.equality is not None:
            return self.equality.compared > 0
        return self.joint is not None or bool(self.first_tokens)

    @property
    def failed(self) -> bool:
        """Whether what the composition claims was not borne out."""
        return bool(self.errors) or not self.tested or (self.lossless and self.deviates)

    @property
    def verdict(self) -> str:
        """In a few words."""
        if self.errors:
            return f"{len(self.errors)} ERRORS"
        if not self.tested:
            return "NOT TESTED"
        if self.lossless:
            return "NOT LOSSLESS" if self.deviates else "lossless"
        return "lossy, as labelled" if self.deviates else "labelled lossy, no deviation found"


@dataclass(frozen=True)
class LosslessReport:
    """The findings of a run.

    Attributes:
        name: Name of the file.
        findings: One a composition; plain decoding's own laws (``plain``) come after them.
        plain: Plain decoding by each verifier that draws noise of its own: the control of the test itself.
        skipped: Arms of the file that are not ours.
        level: Probability that the run refuses compositions that are exact, all its tests together.
        tests: Statistical tests it is shared among.
        setting: Dtype and device of the target.
    """

    name: str
    findings: tuple[Finding, ...]
    plain: tuple[Finding, ...]
    skipped: tuple[str, ...]
    level: float
    tests: int
    setting: str

    @property
    def level_of_each(self) -> float:
        """Level of one test (Bonferroni)."""
        return self.level / max(1, self.tests)

    @property
    def all(self) -> tuple[Finding, ...]:
        """Compositions, then controls."""
        return (*self.findings, *self.plain)

    @property
    def passed(self) -> bool:
        """Whether every claim was borne out."""
        return not any(finding.failed for finding in self.all)

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "name": self.name,
            "passed": self.passed,
            "setting": self.setting,
            "level": self.level,
            "tests": self.tests,
            "level_of_each": self.level_of_each,
            "skipped": list(self.skipped),
            "findings": [_finding(finding) for finding in self.findings],
            "plain": [_finding(finding) for finding in self.plain],
        }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "title": finding.title,
        "verifier": finding.verifier,
        "labelled_lossless": finding.lossless,
        "verdict": finding.verdict,
        "equality": None if finding.equality is None else asdict(finding.equality),
        "differences": [_difference(record) for record in finding.differences],
        "errors": list(finding.errors),
        "toy": None if finding.joint is None else _joint(finding.joint),
        "not_tested": finding.not_tested,
        "first_tokens": [
            {"prompt_id": test.prompt_id, **_fit(test.fit), "p_value_against_plain": test.against_plain}
            for test in finding.first_tokens
        ],
    }


def _difference(record: PromptRecord) -> dict[str, Any]:
    assert record.difference is not None
    return {"prompt_id": record.prompt_id, "sample": record.sample, **asdict(record.difference)}


def _joint(test: JointTest) -> dict[str, Any]:
    return {
        "tested_tokens": test.tested_tokens,
        "steps_needed": test.steps_needed,
        "tokens_per_step": test.tokens_per_step,
        "tokens": _fit(test.tokens),
        "steps": None if test.steps is None else _fit(test.steps),
    }


def _fit(fit: GoodnessOfFit) -> Mapping[str, Any]:
    values = {**asdict(fit), "samples": fit.samples, "passed": fit.passed}
    return {name: _plain(value) for name, value in values.items()}


def _plain(value: Any) -> Any:
    return (
        [round(float(one), 6) for one in value]
        if isinstance(value, Sequence) or hasattr(value, "shape")
        else value
    )
