"""What a verification found, composition by composition, and the verdicts it leads to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from specexp.bench.equality import Equality
from specexp.bench.record import PromptRecord
from specexp.verify.exercised import Exercised
from specexp.verify.first_tokens import FirstTokens, first_p_value
from specexp.verify.joint import JointTest, ToyLawTest, chance_below
from specexp.verify.statistics import POWER, GoodnessOfFit, detectable_total_variation
from specexp.verify.toy_run import Tally


@dataclass(frozen=True)
class Finding:
    """What was found of one composition.

    Attributes:
        title: Title of the arm.
        verifier: The verifier with its arguments.
        lossless: What the verifier claims.
        level: Level of the test of the first tokens.
        equality: How many outputs equal plain decoding's; None where a verifier's need not.
        differences: Records of the outputs that part from plain decoding's, near ties included.
        exercised: How the steps ended that those outputs took.
        errors: What parts raised, and where.
        toy_equality: Tokens on the toy targets beside those that had to be said; None where they need not be equal, or
            for the reason in ``not_tested``.
        joint: Test of the law on the toy targets, of a deterministic verifier without drafts; None where there is
            nothing to sample, or for the reason in ``not_tested``.
        not_tested: Why there is no toy test.
        first_tokens: Tests on the configured models, one a prompt.
    """

    title: str
    verifier: str
    lossless: bool
    level: float
    equality: Equality | None = None
    differences: tuple[PromptRecord, ...] = ()
    exercised: Exercised | None = None
    errors: tuple[str, ...] = ()
    toy_equality: Tally | None = None
    joint: JointTest | None = None
    not_tested: str | None = None
    first_tokens: tuple[FirstTokens, ...] = ()

    @property
    def deviates(self) -> bool:
        """Whether an output or a law is not plain decoding's."""
        return (
            (self.equality is not None and self.equality.wrong > 0)
            or (self.toy_equality is not None and bool(self.toy_equality.wrong))
            or (self.joint is not None and not self.joint.passed)
            or (bool(self.first_tokens) and first_p_value(self.first_tokens) < self.level)
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
    def known(self) -> bool:
        """Whether a deviation of the stated size was found or excluded, as far as the composition claims anything."""
        if self.failed or not self.lossless:
            return True
        return self.not_tested is None and (self.joint is None or self.joint.excluded)

    @property
    def verdict(self) -> str:
        """In a few words, with what could have been found."""
        if self.errors:
            return f"{len(self.errors)} ERRORS"
        if not self.tested:
            return "NOT TESTED"
        if not self.lossless:
            return "lossy, as labelled" if self.deviates else "labelled lossy, no deviation found"
        return "NOT LOSSLESS" if self.deviates else "; ".join(self._evidence())

    def _evidence(self) -> list[str]:
        found = []
        if self.toy_equality is not None:
            share = chance_below(self.toy_equality.said)
            found.append(
                f"no token differs, fewer than 1 in {1 / share:,.0f} can (power {100 * POWER:.0f} %)"
            )
        elif self.equality is not None:
            found.append("no token differs")
        if self.joint is not None:
            found.append(self.joint.sentence)
        elif self.first_tokens:
            found.append(
                f"no deviation above total variation {self.first_detectable:.2g} of the first tokens found "
                f"(power {100 * POWER:.0f} %)"
            )
        return found

    @property
    def first_detectable(self) -> float:
        """Total variation of the first tokens' joint, over the prompts, that is surely found."""
        fits = [test.fit for test in self.first_tokens]
        samples, degrees = sum(fit.samples for fit in fits), sum(fit.degrees for fit in fits)
        return detectable_total_variation(samples, degrees, self.level)


@dataclass(frozen=True)
class LosslessReport:
    """The findings of a run.

    Attributes:
        name: Name of the file.
        findings: One a composition; plain decoding's own laws (``plain``) come after them.
        plain: Plain decoding by each verifier that draws noise of its own: the control of the test itself.
        skipped: Arms of the file that are not ours.
        level: Probability with which a composition that is exact is refused.
        total_variation: Deviation of the joint of three tokens that was to be found or excluded.
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
        """Whether every claim was borne out."""
        return not any(finding.failed for finding in self.all)

    @property
    def known(self) -> bool:
        """Whether the stated deviation was found or excluded everywhere."""
        return all(finding.known for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "name": self.name,
            "passed": self.passed,
            "known": self.known,
            "setting": self.setting,
            "level": self.level,
            "total_variation": self.total_variation,
            "power": POWER,
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
        "exercised": None if finding.exercised is None else _branches(finding.exercised),
        "errors": list(finding.errors),
        "toy_equality": None if finding.toy_equality is None else _equality(finding.toy_equality),
        "toy": None if finding.joint is None else _joint(finding.joint),
        "not_tested": finding.not_tested,
        "first_tokens": None if not finding.first_tokens else _first_tokens(finding),
    }


def _difference(record: PromptRecord) -> dict[str, Any]:
    assert record.difference is not None
    return {"prompt_id": record.prompt_id, "sample": record.sample, **asdict(record.difference)}


def _branches(branches: Exercised) -> dict[str, Any]:
    values = {**vars(branches), "never": branches.never}
    return {name: dict(value) if isinstance(value, Counter) else value for name, value in values.items()}


def _equality(tally: Tally) -> dict[str, Any]:
    return {
        "tokens": tally.said,
        "wrong": [
            dict(zip(("sequence", "token", "said", "expected"), one, strict=True)) for one in tally.wrong
        ],
        "wrong_below": chance_below(tally.said),
        "branches": _branches(tally.branches),
    }


def _joint(test: JointTest) -> dict[str, Any]:
    return {
        "sentence": test.sentence,
        "p_value": test.p_value,
        "level": test.level,
        "triples": test.blocks,
        "total_variation_below": test.below,
        "branches": _branches(test.branches),
        "targets": {toy.manner: _toy(toy) for toy in test.toys},
    }


def _toy(toy: ToyLawTest) -> dict[str, Any]:
    return {
        "decision": toy.decision,
        "triples": toy.tally.blocks,
        "total_variation_below": toy.below,
        "level_of_each_test": toy.least,
        "law": _plain(toy.law),
        "tests": {name: _fit(fit) for name, fit in toy.fits.items()},
    }


def _first_tokens(finding: Finding) -> dict[str, Any]:
    return {
        "p_value": first_p_value(finding.first_tokens),
        "level": finding.level,
        "detectable_total_variation": finding.first_detectable,
        "prompts": [{"prompt_id": test.prompt_id, **_fit(test.fit)} for test in finding.first_tokens],
    }


def _fit(fit: GoodnessOfFit) -> Mapping[str, Any]:
    values = {**asdict(fit), "samples": fit.samples}
    return {name: _plain(value) for name, value in values.items()}


def _plain(value: Any) -> Any:
    return (
        [round(float(one), 6) for one in value]
        if isinstance(value, Sequence) or hasattr(value, "shape")
        else value
    )
