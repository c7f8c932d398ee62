"""Runs the tests that a file's compositions call for."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from specexp.bench.arm import EngineArm, describe
from specexp.bench.arm_spec import ArmSpec
from specexp.bench.equality import compare, token_equality
from specexp.bench.experiment import arm_specs
from specexp.bench.live import LiveBackend
from specexp.bench.make_arm import make_arm
from specexp.config import Config, build_verifier
from specexp.core.messages import first_line, type_and_line
from specexp.core.parts import Parts
from specexp.core.sampling import Processors
from specexp.verify.arms import Claim, claims_of
from specexp.verify.exercised import Exercised
from specexp.verify.first_tokens import SHARE, Starts, compare_starts, likely_starts, say
from specexp.verify.joint import Chunks, JointTest, compose, equality_test, sample_until_known
from specexp.verify.result import Finding, LosslessReport
from specexp.verify.toy_run import ToyLaw, toy_vocabulary
from specexp.verify.workers import ToyTask, ToyWorkers

if TYPE_CHECKING:
    from specexp.bench.record import PromptRecord
    from specexp.data import Prompt


_SECONDS = 10.0
"""Between two lines."""


class TimeLeft:
    """Says every few seconds how much of something is done.

    Args:
        title: Of the composition.
        say: Takes a line.
    """

    def __init__(self, title: str, say: Callable[[str], None]) -> None:
        self._title = title
        self._say = say
        self._seconds: defaultdict[str, float] = defaultdict(float)  # spent on each thing
        self._last = self._said = perf_counter()

    def __call__(self, what: str, done: int, most: int) -> None:
        """So much of at most ``most`` is done."""
        now = perf_counter()
        self._seconds[what] += now - self._last
        self._last = now
        if now - self._said < _SECONDS or done >= most:
            return
        self._said = now
        left = self._seconds[what] / done * (most - done)
        self._say(f"{self._title}: {what}, {done:,} of at most {most:,}, at most {left:.0f} s left")


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

    The level of a composition is shared by the toy targets and the configured models, whose tests keep well below it.

    Args:
        config: Configuration with our own arms alone.
        backend: The models.
        prompts: Prompts on which outputs are compared; of the first few, the law of the first tokens is tested.
        skipped: Names of the arms that were left out.
        tell: Takes a line about what is tested next, and how long it will take at most.

    Raises:
        ConfigError: the parts do not go with the models.
    """
    claims = claims_of(config)
    settings = config.get("verify")
    few = list(prompts)[: settings["prompts"]]
    specs = [dataclasses.replace(spec, latency=None) for spec in arm_specs(config)]
    if len(specs) == 1:  # the file is plain decoding itself
        specs.append(dataclasses.replace(specs[0], name=claims[0].arm.title))
    arms = [make_arm(spec, backend) for spec in specs[1:]]
    plains: dict[str, _Plain] = {}
    for claim in claims:
        if (name := describe(claim.verifier)) not in plains:
            plains[name] = _Plain(claim, specs[0], backend, few, settings)
    findings = []
    with ToyWorkers(settings["workers"]) as workers:
        begun = []  # the toys of a composition are sampled while the models are busy with those before it
        for claim in claims:
            name, vocabulary = describe(claim.verifier), backend.model.vocab_size
            finding = Finding(claim.arm.title, name, claim.verifier.lossless, settings["level"] * SHARE)
            toys = workers.beside(_check_toy, finding, claim, plains[name], vocabulary, workers, tell)
            begun.append((claim, finding, toys))
        for number, ((claim, finding, toys), arm) in enumerate(zip(begun, arms, strict=True), 1):
            assert isinstance(arm, EngineArm)
            tell(f"{number} of {len(claims)}: {claim.arm.title}: {', '.join(claim.checks)}")
            plain = plains[finding.verifier]
            if claim.deterministic:
                finding = _check_outputs(finding, arm, plain, prompts, config.get("generation.samples"))
            finding = _joined(finding, toys.result())
            if claim.sampled and not finding.deviates:  # what is found needs no second proof
                finding = _check_first_tokens(finding, claim, arm, plain)
            findings.append(finding)
    return LosslessReport(
        name=config.get("name"),
        findings=tuple(findings),
        plain=tuple(control for plain in plains.values() for control in plain.control()),
        skipped=tuple(skipped),
        level=settings["level"],
        total_variation=settings["total_variation"],
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
        settings: Mapping[str, Any],
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
        self.joint: JointTest | None = None
        self._records: dict[tuple[str, int], PromptRecord] = {}

    def record(self, prompt: Prompt, sample: int) -> PromptRecord:
        """Its own output, decoded once."""
        key = prompt.prompt_id, sample
        if key not in self._records:
            self._records[key] = self.arm.decode(prompt, sample)
        return self._records[key]

    def sample(self, run: Chunks, law: ToyLaw, tell: TimeLeft) -> JointTest:
        """The law of what is decoded so on the toy targets."""
        return sample_until_known(
            run,
            law,
            not self.claim.deterministic,
            self.settings["total_variation"],
            self.settings["level"] / 2,
            self.settings["toy_triples"],
            tell,
        )

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

    def control(self) -> list[Finding]:
        """Its samples against the target's probabilities, if they were drawn: the test must pass them."""
        if not self.starts:
            return []
        verifier = describe(self.claim.verifier)
        tests = tuple(compare_starts(starts, said) for starts, _, said in self.starts)
        level = self.settings["level"] * SHARE
        return [Finding("plain decoding", verifier, self.claim.verifier.lossless, level, first_tokens=tests)]


def _check_outputs(
    finding: Finding, arm: EngineArm, plain: _Plain, prompts: Sequence[Prompt], samples: int
) -> Finding:
    """Compare outputs token for token, every prompt and sample; an error is noted and the others go on."""
    records: list[PromptRecord] = []
    errors = []
    exercised = Exercised()
    arm.reset()
    arm.observers = (exercised.note,)
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
        exercised=exercised,
        errors=tuple(errors),
    )


def _joined(on_models: Finding, on_toys: Finding) -> Finding:
    return dataclasses.replace(
        on_models,
        toy_equality=on_toys.toy_equality,
        joint=on_toys.joint,
        not_tested=on_toys.not_tested,
        errors=on_models.errors + on_toys.errors,
    )


def _check_first_tokens(finding: Finding, claim: Claim, arm: EngineArm, plain: _Plain) -> Finding:
    """Test the law of the first tokens on the configured models; of a deterministic verifier plain decoding's alone,
    whose outputs the others must equal.
    """
    tests = []
    try:
        plain.say_first()
        for starts, prompt, said in plain.starts if not claim.deterministic else ():
            own = say(plain.model, arm.parts, starts, prompt, len(said), plain.seed)
            tests.append(compare_starts(starts, own))
    except Exception as error:  # whatever a part raises is that part's finding
        return dataclasses.replace(finding, errors=(*finding.errors, f"first tokens: {type_and_line(error)}"))
    return dataclasses.replace(finding, first_tokens=tuple(tests))


def _check_toy(
    finding: Finding, claim: Claim, plain: _Plain, models_vocabulary: int, workers: ToyWorkers, tell: Tell
) -> Finding:
    """Test equality and law on the toy targets; parts tied to the models' vocabulary get one as wide."""
    law = ToyLaw(**dataclasses.asdict(claim.law))
    try:
        law = _fitting(ToyTask(claim.arm.config, law, "law"), models_vocabulary)
    except ValueError as error:  # e.g. a matrix as wide as the models' vocabulary
        return dataclasses.replace(finding, not_tested=first_line(error))
    left = TimeLeft(claim.arm.title, tell)
    try:
        if claim.deterministic:
            run = partial(workers.run, ToyTask(claim.arm.config, law, "equality"))
            finding = dataclasses.replace(
                finding, toy_equality=equality_test(run, plain.settings["toy_tokens"], left)
            )
        if not claim.sampled:
            return finding
        if not claim.deterministic:
            run = partial(workers.run, ToyTask(claim.arm.config, law, "law"))
            return dataclasses.replace(finding, joint=plain.sample(run, law, left))
        if plain.joint is None:  # what is said without drafts is one law for all that equal it
            run = partial(workers.run, ToyTask(claim.arm.config, law, "plain law"))
            plain.joint = plain.sample(run, law, left)
        return dataclasses.replace(finding, joint=plain.joint)
    except Exception as error:  # whatever a part raises is that part's finding
        return dataclasses.replace(finding, errors=(*finding.errors, f"toy target: {type_and_line(error)}"))


def _fitting(task: ToyTask, models_vocabulary: int) -> ToyLaw:
    """The law on a toy that is just wide enough for the parts, or as wide as the models."""
    try:
        law = dataclasses.replace(task.law, vocabulary=toy_vocabulary(task.make_parts))
        compose(task.make_parts, law)
    except ValueError:
        law = dataclasses.replace(task.law, vocabulary=models_vocabulary)
        compose(task.make_parts, law)
    return law
