"""Runs the tests that a file's compositions call for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from specexp.bench.arm import EngineArm, describe
from specexp.bench.arm_spec import ArmSpec
from specexp.bench.equality import compare, token_equality
from specexp.bench.experiment import arm_specs
from specexp.bench.live import LiveBackend
from specexp.bench.make_arm import make_arm
from specexp.config import Config, build_parts, build_verifier
from specexp.core.messages import first_line, type_and_line
from specexp.core.parts import Parts
from specexp.core.sampling import Processors
from specexp.verify.arms import Claim, claims_of, count_tests
from specexp.verify.first_tokens import Starts, compare_starts, likely_starts, say
from specexp.verify.joint import joint_test, toy_decoder
from specexp.verify.result import Finding, LosslessReport

if TYPE_CHECKING:
    from specexp.bench.record import PromptRecord
    from specexp.data import Prompt

Tell = Callable[[str], None]
"""Takes a line about the progress."""
_OTHER_NOISE = 1_000_003
"""Added to the seed where plain decoding must not draw the same noise."""


def verify(
    config: Config,
    backend: LiveBackend,
    prompts: Sequence[Prompt],
    skipped: Sequence[str] = (),
    tell: Tell = print,
) -> LosslessReport:
    """Test every composition of a file.

    Args:
        config: Configuration with our own arms alone.
        backend: The models.
        prompts: Prompts on which outputs are compared; of the first few, the law of the first tokens is tested.
        skipped: Names of the arms that were left out.
        tell: Takes a line about what is tested next.

    Raises:
        ConfigError: the parts do not go with the models.
    """
    claims = claims_of(config)
    settings = config.get("verify")
    few = list(prompts)[: settings["prompts"]]
    tests = count_tests(claims, len(few))
    level = settings["level"] / max(1, tests)
    specs = [dataclasses.replace(spec, latency=None) for spec in arm_specs(config)]
    if len(specs) == 1:  # the file is plain decoding itself
        specs.append(dataclasses.replace(specs[0], name=claims[0].arm.title))
    arms = [make_arm(spec, backend) for spec in specs[1:]]
    plains: dict[str, _Plain] = {}
    findings = []
    for claim, arm in zip(claims, arms, strict=True):
        assert isinstance(arm, EngineArm)
        tell(f"{claim.arm.title}: {', '.join(claim.checks)}")
        name = describe(claim.verifier)
        plain = plains.get(name)
        if plain is None:
            plain = plains[name] = _Plain(claim, specs[0], backend, few, settings)
        finding = Finding(claim.arm.title, name, claim.verifier.lossless)
        if claim.deterministic:
            finding = _check_outputs(finding, arm, plain, prompts, config.get("generation.samples"))
        if claim.sampled:
            finding = _check_toy(finding, claim, backend.model.vocab_size, settings, level)
            finding = _check_first_tokens(finding, claim, arm, plain, level)
        findings.append(finding)
    return LosslessReport(
        name=config.get("name"),
        findings=tuple(findings),
        plain=tuple(control for plain in plains.values() for control in plain.control(level)),
        skipped=tuple(skipped),
        level=settings["level"],
        tests=tests,
        setting=f"target in {arms[0].dtype} on {arms[0].device}",
    )


class _Plain:
    """Plain decoding by one verifier: what the compositions that use it are compared with."""

    def __init__(
        self,
        claim: Claim,
        spec: ArmSpec,
        backend: LiveBackend,
        few: Sequence[Prompt],
        settings: Mapping[str, float],
    ) -> None:
        self.claim = claim
        self.settings = settings
        self.seed = spec.generation.seed
        self.model = backend.model
        self.parts = Parts(verifier=build_verifier(claim.arm.config))
        arm = make_arm(dataclasses.replace(spec, parts=self.parts), backend)
        assert isinstance(arm, EngineArm)
        self.arm = arm
        self._few = [(prompt.prompt_id, prompt.turn_ids(backend.tokenizer, 0, [])) for prompt in few]
        self.starts: list[tuple[Starts, list[int], list[list[int]]]] = []
        self._records: dict[tuple[str, int], PromptRecord] = {}

    def record(self, prompt: Prompt, sample: int) -> PromptRecord:
        """Its own output, decoded once."""
        key = prompt.prompt_id, sample
        if key not in self._records:
            self._records[key] = self.arm.decode(prompt, sample)
        return self._records[key]

    def say_first(self) -> None:
        """Find the likeliest beginnings after the first prompts, and sample them.

        ``starts`` then holds for each prompt the beginnings, its tokens, and what was said.
        """
        if self.starts:
            return
        law = self.claim.law
        processors = Processors(law.temperature, law.top_k, law.top_p)
        tokens, samples = int(self.settings["first_tokens"]), int(self.settings["samples"])
        for prompt_id, prompt in self._few:
            starts = likely_starts(self.model, prompt_id, prompt, processors, tokens)
            said = say(self.model, self.parts, starts, prompt, samples, self.seed + _OTHER_NOISE)
            self.starts.append((starts, prompt, said))

    def control(self, level: float) -> list[Finding]:
        """Its samples against the target's probabilities, if they were drawn: the test must pass them."""
        if not self.starts:
            return []
        verifier = describe(self.claim.verifier)
        tests = tuple(compare_starts(starts, said, None, level) for starts, _, said in self.starts)
        return [Finding("plain decoding", verifier, self.claim.verifier.lossless, first_tokens=tests)]


def _check_outputs(
    finding: Finding, arm: EngineArm, plain: _Plain, prompts: Sequence[Prompt], samples: int
) -> Finding:
    """Compare outputs token for token, every prompt and sample; an error is noted and the others go on."""
    records: list[PromptRecord] = []
    errors = []
    arm.reset()
    for prompt in prompts:
        for sample in range(samples):
            try:
                reference = plain.record(prompt, sample)
                records += [
                    reference,
                    compare(arm.decode(prompt, sample), reference, plain.arm, prompt),
                ]
            except Exception as error:  # whatever a part raises is that part's finding
                errors.append(f"{prompt.prompt_id}, sample {sample}: {type_and_line(error)}")
    return dataclasses.replace(
        finding,
        equality=token_equality(records, arm.name),
        differences=tuple(record for record in records if record.difference is not None),
        errors=tuple(errors),
    )


def _check_first_tokens(
    finding: Finding, claim: Claim, arm: EngineArm, plain: _Plain, level: float
) -> Finding:
    """Test the law of the first tokens on the configured models; of a deterministic verifier plain decoding's alone,
    whose outputs the others must equal.
    """
    tests = []
    try:
        plain.say_first()
        for starts, prompt, said in plain.starts if not claim.deterministic else ():
            own = say(plain.model, arm.parts, starts, prompt, len(said), plain.seed)
            tests.append(compare_starts(starts, own, said, level))
    except Exception as error:  # whatever a part raises is that part's finding
        return dataclasses.replace(finding, errors=(*finding.errors, f"first tokens: {type_and_line(error)}"))
    return dataclasses.replace(finding, first_tokens=tuple(tests))


def _check_toy(
    finding: Finding, claim: Claim, models_vocabulary: int, settings: Mapping[str, float], level: float
) -> Finding:
    """Test the joint on the toy target; parts tied to the models' vocabulary get one as wide."""

    def make_parts(draft: Any) -> Parts:
        return build_parts(claim.arm.config, draft)

    for vocabulary in (None, models_vocabulary):
        try:
            toy_decoder(make_parts, claim.law.temperature, vocabulary)
        except ValueError as error:  # e.g. a matrix as wide as the models' vocabulary
            reason = first_line(error)
            continue
        try:
            test = joint_test(
                make_parts,
                **dataclasses.asdict(claim.law),
                samples=int(settings["toy_samples"]),
                tokens=int(settings["toy_tokens"]),
                level=level,
                vocabulary=vocabulary,
            )
        except Exception as error:  # whatever a part raises is that part's finding
            return dataclasses.replace(
                finding, errors=(*finding.errors, f"toy target: {type_and_line(error)}")
            )
        return dataclasses.replace(finding, joint=test)
    return dataclasses.replace(finding, not_tested=reason)
