"""Runs the tests of a file's compositions."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import ceil
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, Literal

from specexp.bench.arm import EngineArm, describe
from specexp.bench.arm_spec import ArmSpec, make_arm
from specexp.bench.equality import compare, token_equality
from specexp.bench.experiment import arm_specs
from specexp.bench.live import LiveBackend
from specexp.config import Config, build_parts, build_verifier
from specexp.core.messages import first_line, type_and_line
from specexp.core.parts import Parts
from specexp.core.sampling import Processors
from specexp.verify.claims import Claim, claims_of
from specexp.verify.first_tokens import Starts, first_tokens, likely_starts, sample_starts
from specexp.verify.joint import EqualityTest, JointTest
from specexp.verify.result import Finding, LosslessCheck, LosslessReport, StepEndings
from specexp.verify.statistics import SHARE
from specexp.verify.toy import Manner
from specexp.verify.toy_run import Tally, ToyLaw, compare_chunk, compose, sample_chunk, toy_vocabulary

if TYPE_CHECKING:
    from specexp.bench.progress import StageBar
    from specexp.bench.record import PromptRecord
    from specexp.data import Prompt

RunChunks = Callable[[Callable[[int], Tally], Sequence[int]], Iterable[Tally]]
_OTHER_NOISE = 1_000_003
"""Added to the seed where plain decoding must not draw the same noise."""
_TASKS = 256
"""Most tasks that the chunks of one toy become, since a large sample has many thousands of chunks."""


def verify(
    config: Config,
    backend: LiveBackend,
    prompts: Sequence[Prompt],
    skipped: Sequence[str],
    print_line: Callable[[str], None],
    bar: StageBar,
) -> LosslessReport:
    """Test every composition of a file.

    Half of a composition's level is for the toy targets, and half for the configured models.

    Args:
        config: Configuration with our own arms alone.
        prompts: Prompts on which outputs are compared. The law of the first tokens is tested on the first few.
        skipped: Names of the arms that were left out.
        bar: Shows the progress on the toy targets.

    Raises:
        ConfigError: The parts do not go with the models.
    """
    claims = claims_of(config)
    settings = config.get("verify")
    few = list(prompts)[: settings["prompts"]]
    specs = [replace(spec, latency=None) for spec in arm_specs(config)]
    if len(specs) == 1:  # the file is plain decoding itself
        specs.append(replace(specs[0], name=claims[0].arm.title))
    arms = [make_arm(spec, backend) for spec in specs[1:]]
    findings = []
    with chunk_runner(settings["workers"]) as run:
        references: dict[str, _Reference] = {}
        toys = []  # all begin now, so that other processes sample them while the models decode
        for claim in claims:
            if (name := describe(claim.verifier)) not in references:
                references[name] = _Reference(claim, specs[0], backend, few, settings)
            toys.append(_Toys(claim, references[name], backend.model.vocab_size, run, bar))
        for number, (claim, toy, arm) in enumerate(zip(claims, toys, arms, strict=True), 1):
            assert isinstance(arm, EngineArm)
            print_line(f"{number} of {len(claims)}: {claim.arm.title}: {', '.join(claim.checks)}")
            bar.stage(claim.arm.title, toy.chunks)
            reference = references[describe(claim.verifier)]
            findings.append(_finding(claim, toy, arm, reference, prompts, config.get("generation.samples")))
    return LosslessReport(
        name=config.get("name"),
        findings=tuple(findings),
        plain=tuple(control for reference in references.values() for control in reference.control()),
        skipped=tuple(skipped),
        level=settings["level"],
        total_variation=settings["total_variation"],
        setting=f"target in {arms[0].dtype} on {arms[0].device}",
    )


def _finding(
    claim: Claim, toys: _Toys, arm: EngineArm, plain: _Reference, prompts: Sequence[Prompt], samples: int
) -> Finding:
    """Run the tests of a composition. An exception of a part is noted, and the other tests go on."""
    checks: list[LosslessCheck] = []
    errors: list[str] = []
    records = _compared(arm, plain, prompts, samples, checks, errors) if claim.deterministic else []
    try:
        checks += toys.checks()
    except Exception as error:
        errors.append(f"toy target: {type_and_line(error)}")
    if claim.sampled and all(check.passed for check in checks):  # a found deviation needs no second proof
        try:
            # the outputs of a deterministic verifier equal plain decoding's, whose law is the control
            starts = plain.starts
            if not claim.deterministic:
                checks.append(plain.test_starts(starts, arm.parts))
        except Exception as error:
            errors.append(f"first tokens: {type_and_line(error)}")
    differences = tuple(record for record in records if record.difference is not None)
    title, name, lossless = claim.arm.title, describe(claim.verifier), claim.verifier.lossless
    return Finding(title, name, lossless, tuple(checks), differences, tuple(errors), toys.not_tested)


def _compared(
    arm: EngineArm,
    plain: _Reference,
    prompts: Sequence[Prompt],
    samples: int,
    checks: list[LosslessCheck],
    errors: list[str],
) -> list[PromptRecord]:
    """Compare the outputs for every prompt and sample token for token; returns the records of both."""
    records: list[PromptRecord] = []
    branches = StepEndings()
    arm.reset()
    arm.observers = (branches.observe,)
    for prompt in prompts:
        for sample in range(samples):
            try:
                reference = plain.record(prompt, sample)
                records += [reference, compare(arm.decode(prompt, sample), reference, plain.arm, prompt)]
            except Exception as error:
                errors.append(f"{prompt.prompt_id}, sample {sample}: {type_and_line(error)}")
    found = token_equality(records, arm.name)
    outcomes = {"equal": found.equal, "near ties": found.near_ties, "wrong": found.wrong}
    decision: Literal["found", "excluded"] = "found" if found.wrong else "excluded"
    evidence = "no token differs"
    checks.append(
        LosslessCheck(
            "token equality", decision, found.compared, evidence, outcomes=outcomes, branches=branches
        )
    )
    return records


class _Reference:
    """Plain decoding by one verifier: the reference of the compositions that use it."""

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
        arm = make_arm(replace(spec, parts=self.parts), backend)
        assert isinstance(arm, EngineArm)
        self.arm = arm
        self.joint: JointTest | None = None  # without drafts: one law for all deterministic compositions
        self._few = [(prompt.prompt_id, prompt.turn_ids(backend.tokenizer, 0, [])) for prompt in few]
        self._records: dict[tuple[str, int], PromptRecord] = {}

    def record(self, prompt: Prompt, sample: int) -> PromptRecord:
        """Return its own output, decoded once."""
        key = prompt.prompt_id, sample
        if key not in self._records:
            self._records[key] = self.arm.decode(prompt, sample)
        return self._records[key]

    @cached_property
    def starts(self) -> list[Starts]:
        """The likeliest beginnings of the answers to the first prompts."""
        processors, tokens = Processors(*self.claim.law), int(self.settings["first_tokens"])
        return [likely_starts(self.model, *prompt, processors, tokens) for prompt in self._few]

    def test_starts(self, starts: Sequence[Starts], parts: Parts, seed_offset: int = 0) -> LosslessCheck:
        """Sample the first tokens of a composition and test their law."""
        samples, seed = int(self.settings["samples"]), self.seed + seed_offset
        drawn = [sample_starts(self.model, parts, one, samples, seed) for one in starts]
        return first_tokens(starts, drawn, self.settings["level"] * SHARE)

    def control(self) -> list[Finding]:
        """Test its own samples, if the beginnings were needed; the test must pass."""
        if "starts" not in vars(self):
            return []
        check = self.test_starts(self.starts, self.parts, _OTHER_NOISE)
        verifier = self.claim.verifier
        return [Finding("plain decoding", describe(verifier), verifier.lossless, (check,))]


@dataclass(frozen=True)
class _ToyTask:
    """Decodes chunks of one composition, here or in another process."""

    config: Config
    law: ToyLaw
    # count the composition's tokens, those of its verifier without drafts, or compare them with the expected ones
    what: Literal["law", "plain law", "equality"]

    def make_parts(self, draft: Any) -> Parts:
        if self.what == "plain law":
            return Parts(verifier=build_verifier(self.config))
        return build_parts(self.config, draft)

    def __call__(self, manner: Manner, number: int) -> Tally:
        run = compare_chunk if self.what == "equality" else sample_chunk
        return run(self.make_parts, self.law, manner, number)


class _Toys:
    """The tests of one composition on the toy targets."""

    def __init__(
        self, claim: Claim, plain: _Reference, vocabulary: int, run: RunChunks, bar: StageBar
    ) -> None:
        self.not_tested: str | None = None  # why there is no test; None if there is one
        self._run, self._bar = run, bar
        self._begun: list[JointTest | EqualityTest] = []
        config, settings = claim.arm.config, plain.settings
        try:
            law = _fitting(_ToyTask(config, ToyLaw(*claim.law), "law"), vocabulary)
        except ValueError as error:  # e.g. a matrix as wide as the models' vocabulary
            self.not_tested = first_line(error)
            return
        limits = settings["total_variation"], settings["level"] / 2, settings["toy_triples"]
        if not claim.deterministic:
            chunks = partial(self._decode, _ToyTask(config, law, "law"))
            self._begun.append(JointTest(chunks, law, True, *limits))
            return
        equality = partial(self._decode, _ToyTask(config, law, "equality"))
        self._begun.append(EqualityTest(equality, settings["toy_tokens"]))
        if claim.sampled:
            if plain.joint is None:
                chunks = partial(self._decode, _ToyTask(config, law, "plain law"))
                plain.joint = JointTest(chunks, law, False, *limits)
            self._begun.append(plain.joint)

    @property
    def chunks(self) -> int:
        """Most chunks to decode."""
        return sum(begun.chunks for begun in self._begun)

    def _decode(self, task: _ToyTask, manner: Manner, numbers: Sequence[int]) -> Iterator[Tally]:
        tallies = self._run(partial(task, manner), numbers)  # begins now; the generator below would wait

        def advancing() -> Iterator[Tally]:
            for tally in tallies:
                self._bar.prompt()
                yield tally

        return advancing()

    def checks(self) -> list[LosslessCheck]:
        return [begun.check for begun in self._begun]


def _fitting(task: _ToyTask, models_vocabulary: int) -> ToyLaw:
    """Return the law on a toy that is just wide enough for the parts, or as wide as the models."""
    try:
        law = replace(task.law, vocabulary=toy_vocabulary(task.make_parts))
        compose(task.make_parts, law)
    except ValueError:
        law = replace(task.law, vocabulary=models_vocabulary)
        compose(task.make_parts, law)
    return law


@contextmanager
def chunk_runner(workers: int | None) -> Iterator[RunChunks]:
    """Run chunks in this process if there is one worker, else in as many processes; as many as cores if None.

    The counts are the same. Several processes begin at once, and give their results in order.
    """
    workers = workers or len(os.sched_getaffinity(0))
    if workers == 1:
        yield lambda task, numbers: map(task, numbers)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_prepare) as pool:
        try:
            yield lambda task, numbers: pool.map(task, numbers, chunksize=ceil(len(numbers) / _TASKS))
        finally:
            pool.shutdown(cancel_futures=True)


def _prepare() -> None:
    import torch

    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the command, which ends its processes
