"""Runs the losslessness tests for every composition in a file."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from itertools import product
from math import ceil
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

from specexp.artifacts import ArtifactError, read_artifact
from specexp.artifacts.store import resolve
from specexp.base.cores import usable_cores
from specexp.base.messages import counted, first_line, restated, type_and_line
from specexp.bench.arm import LearningArm, describe
from specexp.bench.arm_spec import ArmSpec, make_arm
from specexp.bench.equality import compare, token_equality
from specexp.bench.experiment import arm_specs, load_prompts, solver_of, use_threads
from specexp.bench.live import LiveBackend
from specexp.bench.record import PromptRecord
from specexp.bench.trainer import quiet_libraries
from specexp.config import (
    ComposedArm,
    Config,
    ConfigError,
    arms_of,
    build_pair,
    build_parts,
)
from specexp.config.command import current_result
from specexp.config.named_artifacts import local
from specexp.config.schema import Verify
from specexp.core.contracts import Verifier
from specexp.core.parts import Parts
from specexp.core.runtime import Runtime
from specexp.core.sampling import Processors
from specexp.data import Prompt
from specexp.models.pair import ModelPair
from specexp.models.sources import embedded_artifacts
from specexp.report.progress import StageBar
from specexp.report.publish import publish, terminal
from specexp.tracking.names import PLAIN
from specexp.verify.first_tokens import Starts, first_tokens, likely_starts, sample_starts
from specexp.verify.joint import EqualityTest, JointTest
from specexp.verify.report import report
from specexp.verify.result import Finding, LosslessCheck, LosslessReport, StepEndings
from specexp.verify.statistics import SHARE
from specexp.verify.toy import MANNERS, Manner, Tally, ToyLaw, compare_chunk, compose, sample_chunk, toy_vocabulary

RunChunks = Callable[[Callable[[int], Tally], Sequence[int]], Iterable[Tally]]
_OTHER_NOISE = 1_000_003
"""Seed offset that gives the control different noise from the compositions."""
_TASKS = 256
"""Maximum number of tasks that a toy's chunks are grouped into, since a large sample has many thousands of chunks."""


@dataclass(frozen=True)
class LosslessClaim:
    """A composition with its verifier and sampling settings, which determine the tests."""

    arm: ComposedArm
    verifier: Verifier
    law: ToyLaw  # with the temperature, top-k and top-p of the target

    @property
    def deterministic(self) -> bool:
        """True if its outputs must equal plain decoding's token for token."""
        return self.verifier.sampling == "deterministic"

    @property
    def sampled(self) -> bool:
        """True if the distribution of its outputs must be tested."""
        return self.law.temperature > 0 or not self.deterministic

    @property
    def checks(self) -> list[str]:
        """The names of the tests that the composition needs."""
        found = ["token equality", "toy equality"] if self.deterministic else []
        found += ["toy joint"] if self.sampled else []
        return found + ([] if self.deterministic else ["first tokens"])


def our_arms(config: Config) -> tuple[Config, list[str]]:
    """Return the configuration of specexp's own arms, in float32 unless it sets a dtype, and the other arms' titles.

    Raises ConfigError if the file decodes groups of sequences.
    """
    if config.is_multi_sequence:
        raise ConfigError(
            f"{config.file}: verify cannot test an experiment that decodes groups of sequences: use python -m "
            f"specexp.run {config.file}, which compares every group with plain decoding, token for token"
        )
    arms: Mapping[str, Any] = config.get("arms") or {}
    left_out = [name for name, arm in arms.items() if arm.get("reference") or arm.get("engine")]
    layers = config.layers.copy()
    if left_out:
        ours = layers.values["arms"].items()
        layers.values["arms"] = {name: arm for name, arm in ours if name not in left_out}
    overrides: dict[str, Any] = {"baselines": [PLAIN], "generation.stop_at_repetition": False}
    if "target_dtype" not in (layers.values.get("pair") or {}):
        overrides["pair.target_dtype"] = "float32"
    titles = [arms[name].get("title") or name for name in left_out]
    titles += [name for name in config.get("baselines") or () if name != PLAIN]
    return Config(layers, config.file).with_overrides(overrides, "specexp.verify"), titles


def claims_of(config: Config) -> list[LosslessClaim]:
    """Return one claim per composition of a file. Raises ConfigError if a verifier does not declare its processors."""
    claims = []
    for arm in arms_of(config):
        verifier = arm.config.verifier
        temperature = verifier.noise_temperature
        processors = verifier.processors or (None if temperature is None else Processors(temperature))
        if processors is None:
            raise arm.config.checker.error(
                ("verifier",),
                f": {type(verifier).__name__} declares no processors, so the distribution that its output should have "
                "is unknown and cannot be verified",
            )
        law = ToyLaw(float(processors.temperature), processors.top_k, processors.top_p)
        claims.append(LosslessClaim(arm, verifier, law))
    return claims


def check_owner(config: Config, pair: ModelPair) -> None:
    """Raise ConfigError, as a deployment does, if the file is an artifact for another model or tokenizer."""
    if config.artifact:
        model = pair.target.model if isinstance(pair.target, Runtime) else pair.target
        wrong = f" must be the artifact's model, got {config.pair.target!r}"
        with restated(ArtifactError, lambda error: config.checker.error(("pair", "target"), f"{wrong}: {error}")):
            read_artifact(local(config.artifact)).check(model, pair.tokenizer)


def folder_of(config: Config) -> Path:
    """Return the folder of the report: next to the artifact and with its version's name, or in the output folder.

    Reports on artifacts that ship with specexp are in the output folder.
    """
    embedded = embedded_artifacts(config.artifact.partition(":")[0])
    if config.artifact and "output" not in dict(config.typed) and config.artifact not in embedded:
        version = resolve(local(config.artifact))
        return version.parent / "verify" / version.name
    return config.output / "verify" / config.name


def run(config: Config, pair: ModelPair | None = None) -> LosslessReport:
    """Verify a configuration, print the tables and write its folder. ``pair`` provides models that are already loaded.

    Raises ConfigError if the file, its data, models or output folder cannot be used. In this case, nothing was tested.
    Raises OSError if the report cannot be written, because the disk is full.
    """
    quiet_libraries()
    given, (config, skipped) = config, our_arms(config)
    claims = claims_of(config)  # before models are loaded, since it may raise
    pair = pair or build_pair(config)
    backend = LiveBackend(pair, solver_of(config, pair))
    check_owner(given, backend.pair)
    prompts = load_prompts(config, backend.pair).prompts
    folder = folder_of(given)
    config.save(folder)
    use_threads(config.generation.threads)
    console = terminal(180)
    with StageBar(console) as bar:
        found = _verify(config, claims, backend, prompts, skipped, bar)
    made = report(found)
    publish(made, folder, console=console)
    current_result().answer = made.title
    return found


def _verify(
    config: Config,
    claims: Sequence[LosslessClaim],
    backend: LiveBackend,
    prompts: Sequence[Prompt],
    skipped: Sequence[str],
    bar: StageBar,
) -> LosslessReport:
    """Test every composition, with half of its level for the toy targets and half for the configured models."""
    settings = config.verify
    specs = [replace(spec, latency=None) for spec in arm_specs(config, backend)]
    if len(specs) == 1:  # the file is plain decoding itself
        specs.append(replace(specs[0], name=claims[0].arm.title))
    arms = [make_arm(spec, backend) for spec in specs[1:]]
    findings = []
    with chunk_runner(settings.workers) as run_chunks:
        references: dict[str, _Reference] = {}
        toys = []  # all are started here, so that workers sample them while the models decode
        for claim in claims:
            if (name := describe(claim.verifier)) not in references:
                references[name] = _Reference(claim, specs[0], backend, prompts, settings)
            toys.append(_Toys(claim, references[name], backend.model.vocab_size, run_chunks, bar))
        answers = len(prompts) * config.generation.samples * (len(references) + len(claims))
        plain = next((one for one in references.values() if one.claim.deterministic), None)
        of_models = 0.0 if plain is None else answers * plain.seconds_of(prompts[0])
        of_toys = sum(toy.seconds for toy in toys) / (settings.workers or usable_cores().number)
        minutes = max(round((of_models + of_toys) / 60), 1)
        about = f"This takes about {counted(minutes, 'minute')}: {of_toys:.0f} s of them for toy targets."
        bar.console.print(about, style="dim")
        for number, (claim, toy, arm) in enumerate(zip(claims, toys, arms, strict=True), 1):
            assert isinstance(arm, LearningArm)
            line = f"{number} of {len(claims)}: {claim.arm.title}: {', '.join(claim.checks)}"
            bar.console.print(line, style="dim")
            decoded = len(prompts) * config.generation.samples if claim.deterministic else 0
            bar.stage(claim.arm.title, decoded + sum(test.chunks for test in toy.tests))
            findings.append(_finding(toy, arm, bar))
    return LosslessReport(
        name=config.name,
        findings=tuple(findings),
        plain=tuple(control for reference in references.values() for control in reference.control()),
        skipped=tuple(skipped),
        level=settings.level,
        total_variation=settings.total_variation,
        setting=f"target in {arms[0].dtype} on {arms[0].device}",
    )


def _finding(toys: _Toys, arm: LearningArm, bar: StageBar) -> Finding:
    """Run the tests of a composition. If a part raises an exception, it is recorded, and the other tests continue."""
    claim, plain = toys.claim, toys.plain
    checks: list[LosslessCheck] = []
    errors: list[str] = []
    records: list[PromptRecord] = []
    if claim.deterministic:
        endings = StepEndings()
        arm.reset()
        arm.observers = (endings.observe,)
        for prompt, sample in product(plain.prompts, range(plain.generation.samples)):
            try:
                reference = plain.record(prompt, sample)
                records += [reference, compare(arm.decode(prompt, sample), reference, plain.arm, prompt)]
            except Exception as error:
                errors.append(f"{prompt.prompt_id}, sample {sample}: {type_and_line(error)}")
            bar.prompt()
        found = token_equality(records, arm.name)
        outcomes = {"equal": found.equal, "near ties": found.near_ties, "wrong": found.wrong}
        decision: Literal["found", "excluded"] = "found" if found.wrong else "excluded"
        tokens = sum(len(record.token_ids) for record in records if record.arm == arm.name)
        evidence = f"0 of {tokens:,} tokens of your model differ"
        if parted := found.near_ties + found.wrong:
            of = f"{parted} of {counted(found.compared, 'answer')}"
            evidence = f"{of} of your model differ, {found.near_ties} at near ties"
        equality = LosslessCheck("token equality", decision, found.compared, evidence, outcomes=outcomes)
        checks.append(replace(equality, branches=endings))
    try:
        checks += [test.check for test in toys.tests]
    except Exception as error:
        errors.append(f"toy target: {type_and_line(error)}")
    if claim.sampled and all(check.passed for check in checks):  # one deviation is enough
        try:
            # Accessing ``starts`` enables the control, which also covers deterministic verifiers.
            starts = plain.starts
            if not claim.deterministic:
                checks.append(plain.test_starts(starts, arm.parts))
        except Exception as error:
            errors.append(f"first tokens: {type_and_line(error)}")
    differences = tuple(
        {"prompt_id": record.prompt_id, "sample": record.sample, **asdict(record.difference)}
        for record in records
        if record.difference is not None
    )
    title = claim.arm.title
    name = describe(claim.verifier)
    lossless = claim.verifier.lossless
    return Finding(title, name, lossless, tuple(checks), differences, tuple(errors), toys.not_tested)


class _Reference:
    """Plain decoding with one verifier: the reference for all compositions with this verifier."""

    def __init__(
        self, claim: LosslessClaim, spec: ArmSpec, backend: LiveBackend, prompts: Sequence[Prompt], settings: Verify
    ) -> None:
        self.claim = claim
        self.prompts = prompts
        self.settings = settings
        self.generation = spec.generation
        self.model = backend.model
        self.parts = Parts(verifier=claim.arm.config.verifier)
        arm = make_arm(replace(spec, parts=self.parts), backend)
        assert isinstance(arm, LearningArm)
        self.arm = arm
        self.joint: JointTest | None = None  # test without drafts, shared by all deterministic compositions
        self._few = [(one.prompt_id, one.turn_ids(backend.tokenizer, 0, [])) for one in prompts[: settings.prompts]]
        self._records: dict[tuple[str, int], PromptRecord] = {}

    def record(self, prompt: Prompt, sample: int) -> PromptRecord:
        """Return the plain output for a prompt. It is decoded once and then cached."""
        key = prompt.prompt_id, sample
        if key not in self._records:
            self._records[key] = self.arm.decode(prompt, sample)
        return self._records[key]

    def seconds_of(self, prompt: Prompt) -> float:
        """Return the seconds that plain decoding of a prompt takes; 0 if it fails, which is reported later."""
        with suppress(Exception):
            self.arm.decode(prompt, max_new_tokens=1)  # a warm-up
            started = perf_counter()
            self.record(prompt, 0)
            return perf_counter() - started
        return 0.0

    @cached_property
    def starts(self) -> list[Starts]:
        """The most likely beginnings of answers to the first prompts."""
        processors, tokens = self.claim.law.processors, self.settings.first_tokens
        return [likely_starts(self.model, *prompt, processors, tokens) for prompt in self._few]

    def test_starts(self, starts: Sequence[Starts], parts: Parts, seed_offset: int = 0) -> LosslessCheck:
        """Sample the first tokens of a composition and test their distribution."""
        samples, seed = self.settings.samples, self.generation.seed + seed_offset
        drawn = [sample_starts(self.model, parts, one, samples, seed) for one in starts]
        return first_tokens(starts, drawn, self.settings.level * SHARE)

    def control(self) -> list[Finding]:
        """Return the first-token test of plain decoding, which must pass; empty if ``starts`` was never used."""
        if "starts" not in vars(self):
            return []
        check = self.test_starts(self.starts, self.parts, _OTHER_NOISE)
        verifier = self.claim.verifier
        return [Finding("plain decoding", describe(verifier), verifier.lossless, (check,))]


@dataclass(frozen=True)
class _ToyTask:
    """Decodes chunks of one composition, in this process or in a worker."""

    config: Config
    law: ToyLaw
    # law: count the composition's tokens; plain law: those without drafts; equality: compare with expected tokens
    what: Literal["law", "plain law", "equality"] = "law"

    def make_parts(self, draft: Any) -> Parts:
        if self.what == "plain law":
            return Parts(verifier=self.config.verifier)
        return build_parts(self.config, draft)

    def __call__(self, manner: Manner, number: int) -> Tally:
        run_chunk = compare_chunk if self.what == "equality" else sample_chunk
        return run_chunk(self.make_parts, self.law, manner, number)


class _Toys:
    """The tests of one composition on the toys, already started. If no toy fits, ``not_tested`` gives the reason."""

    def __init__(
        self, claim: LosslessClaim, plain: _Reference, vocabulary: int, run_chunks: RunChunks, bar: StageBar
    ) -> None:
        self.claim = claim
        self.plain = plain
        self.tests: list[JointTest | EqualityTest] = []
        self.not_tested: str | None = None
        self.seconds = 0.0  # expected, in one process
        settings = plain.settings
        try:
            task = _fitting(_ToyTask(claim.arm.config, claim.law), vocabulary)
        except ValueError as error:  # e.g. a matrix as wide as the models' vocabulary
            self.not_tested = first_line(error)
            return

        def ticked(tally: Tally) -> Tally:
            bar.prompt()
            return tally

        def timed(task: _ToyTask, chunks: int) -> float:
            with suppress(Exception):  # reported by the test itself
                task(MANNERS[0], 0)  # a warm-up
                started = perf_counter()
                task(MANNERS[0], 0)
                return chunks * (perf_counter() - started)
            return 0.0

        def decode(task: _ToyTask, manner: Manner, numbers: Sequence[int]) -> Iterator[Tally]:
            # workers start here, not at the first result
            tallies = run_chunks(partial(task, manner), numbers)
            return map(ticked, tallies)

        limits = settings.total_variation, settings.level / 2, settings.toy_triples
        if not claim.deterministic:
            self.tests.append(JointTest(partial(decode, task), task.law, True, *limits))
            self.seconds = timed(task, self.tests[0].chunks)
            return
        equality = replace(task, what="equality")
        self.tests.append(EqualityTest(partial(decode, equality), settings.toy_tokens))
        self.seconds = timed(equality, self.tests[0].chunks)
        if claim.sampled:
            if plain.joint is None:
                plain_law = replace(task, what="plain law")
                plain.joint = JointTest(partial(decode, plain_law), task.law, False, *limits)
                self.seconds += timed(plain_law, plain.joint.chunks)
            self.tests.append(plain.joint)


def _fitting(task: _ToyTask, models_vocabulary: int) -> _ToyTask:
    """Return the task with the smallest toy vocabulary that fits the parts, or else with the models' vocabulary."""
    try:
        fitting = replace(task, law=replace(task.law, vocabulary=toy_vocabulary(task.make_parts)))
        compose(task.make_parts, fitting.law)
    except ValueError:
        fitting = replace(task, law=replace(task.law, vocabulary=models_vocabulary))
        compose(task.make_parts, fitting.law)
    return fitting


@contextmanager
def chunk_runner(workers: int | None) -> Iterator[RunChunks]:
    """Yield a function that runs chunks: in this process if ``workers`` is 1, otherwise in worker processes.

    None starts one worker per core. The counts do not depend on the number of workers, and results arrive in order.
    """
    workers = workers or usable_cores().number
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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and ends its workers
