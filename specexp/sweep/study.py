"""A study: candidates composed from an experiment, and measured against plain decoding by one backend."""

from __future__ import annotations

import json
import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from math import log
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specexp.artifacts.atomic_write import atomic_write
from specexp.bench.analysis import AcceptanceCounter
from specexp.bench.arm import EngineArm
from specexp.bench.arm_spec import ArmSpec
from specexp.bench.experiment import EAGER, check_prompts
from specexp.bench.live import LiveBackend
from specexp.bench.metrics import figures_of, metric_named
from specexp.bench.module import EvaluationModule
from specexp.bench.record import PromptRecord, write_records
from specexp.bench.trainer import build_trainer, interruptible
from specexp.config import Config, build_data, build_engine, prompts_error
from specexp.config.load import with_prompts_of
from specexp.core.cache import context_limit
from specexp.core.language_model import placement
from specexp.core.messages import first_line, type_and_line
from specexp.core.tree import NodeKind
from specexp.data import PromptSetError
from specexp.sweep.study_config import StudyConfig, StudyError, digest_of
from specexp.sweep.trials import Candidate, Confirmed, Measurement, Predicted, Report

if TYPE_CHECKING:
    from specexp.bench.arm import Arm
    from specexp.bench.arm_spec import Backend
    from specexp.bench.equality import InFloat32
    from specexp.core.latency import LatencyProfile
    from specexp.core.parts import Parts
    from specexp.data import Prompt
    from specexp.data.prompts import PromptDataModule
    from specexp.models.pair import ModelPair
    from specexp.scheduling import Execution

CANDIDATES = {
    NodeKind.POINT_MASS: "top-k",
    NodeKind.DRAWN: "drawn",
    NodeKind.DRAWN_WITH_REPLACEMENT: "drawn with replacement",
}
"""Meaning of a fixed shape's ranks."""

WARM_UP_TOKENS = 8

WINDOW = 3
"""Runs of plain decoding whose median is the machine's present speed: one disturbed run changes nothing."""

EVERY = 4
"""In a search, plain decoding runs on every fourth prompt too."""


class Study:
    """The candidates of an experiment and the prompts of its stages, on a backend that makes arms.

    Args:
        latency: The profile by which seconds are modelled; None where they are measured.

    Attributes:
        samples: Continuations, or searches, of every prompt, one after the other; a group of sequences is one.
        tracks_trials: Whether a trial takes long enough for a W&B run of its own.
        tick: Called after every prompt, for a progress bar.
        reference: Plain decoding's seconds per token, once :meth:`load_reference` or :meth:`measure_reference` has run.
    """

    tracks_trials = True

    def __init__(
        self,
        config: StudyConfig,
        backend: Backend,
        latency: LatencyProfile | None,
        pair: ModelPair | None = None,
    ) -> None:
        self.config = config
        self.backend = backend
        self.latency = latency
        self.pair = pair
        self.samples = config.generation.samples
        self.tick: Callable[[], None] = lambda: None
        self.reference = PlainSeconds({})
        self._data: dict[str | None, PromptDataModule] = {}

    @property
    def device(self) -> str:
        """The placement of the models."""
        assert self.pair is not None
        return placement(self.pair.target)

    def data(self, stage: str | None = None) -> PromptDataModule:
        """The prompts of the search, or of a stage, all of which can be answered. Each stage is read once.

        Raises:
            ConfigError: They cannot be read; one does not fit the target, or was not recorded.
        """
        if stage not in self._data:
            self._data[stage] = self._read_data(stage)
        return self._data[stage]

    def _read_data(self, stage: str | None) -> PromptDataModule:
        assert self.pair is not None
        staged = with_prompts_of(self.config.config, stage)
        data = build_data(staged, self.pair.tokenizer)
        try:
            check_prompts(self.config.config, data.prompts, self.pair)
        except PromptSetError as error:
            raise prompts_error(staged, error) from error
        return data

    @cached_property
    def warm_start_prompts(self) -> Sequence[Prompt]:
        """Prompts from which every candidate learns before it is measured."""
        return self.data("learn").prompts if self.config.config.get("sweep.learn") else ()

    def compose(self, name: str, config: Config) -> EngineArm:
        """A candidate in its initial state; one that keeps something running is to be closed.

        Raises:
            ValueError: The parts cannot be made, or do not go together or with the target.
        """
        if self.config.of_engine:
            return self._arm(name, *self.config.compose_plain(), engine=build_engine(config))
        return self._arm(name, *self.config.compose(config, self.backend.draft))

    def plain(self) -> EngineArm:
        """Plain decoding, in our loop or by the engine that is tuned."""
        if not self.config.of_engine:
            return self._arm("engine", *self.config.compose_plain())
        config = self.config.config
        try:
            return self._arm("engine", *self.config.compose_plain(), engine=build_engine(config).plain())
        except ValueError as error:
            raise config.checker.error(("engine",), f": {first_line(error)}") from error

    def other_arms(self) -> list[Arm]:
        """Hugging Face's plain ``generate``, if the verifier is deterministic and one sequence is decoded at a time."""
        plain, execution = self.config.compose_plain()
        follows = plain.verifier.sampling == "deterministic" and execution is None
        if self.config.of_engine or not follows or EAGER not in self.backend.references:
            return []
        spec = ArmSpec(EAGER, self.config.generation, plain, latency=self.latency, reference=EAGER)
        return [self.backend.arm(spec)]

    def _arm(self, name: str, parts: Parts, execution: Execution | None, engine: Any = None) -> EngineArm:
        latency = None if engine is not None else self.latency
        arm = self.backend.arm(
            ArmSpec(name, self.config.generation, parts, execution=execution, latency=latency, engine=engine)
        )
        assert isinstance(arm, EngineArm)
        return arm

    def warm_started(self, arm: EngineArm) -> EngineArm:
        """Teach the arm :attr:`warm_start_prompts`; later resets return to that state."""
        if self.warm_start_prompts:
            arm.reset()
            self._teach(arm, self.warm_start_prompts)
        return arm

    def deployed(self, arm: EngineArm) -> EngineArm:
        """Bring the arm to the state in which a deployment starts; later resets return to it.

        What an arm carries from prompt to prompt is learned on the search's prompts too.
        """
        self.warm_started(arm)
        if arm.parts.keeps_learning:
            self._teach(arm, self.data().prompts)
        return arm

    def _teach(self, arm: EngineArm, prompts: Sequence[Prompt]) -> None:
        for prompt in prompts:
            if self.config.multi_sequence:
                # One sequence after the other, so that what is learned does not depend on timing.
                arm.decode_observed(prompt, 0, lambda outcome: None)
            else:
                arm.decode(prompt)
        arm.remember()

    def decode(self, arm: Arm, prompt: Prompt) -> list[PromptRecord]:
        """Decode all samples of a prompt."""
        return [arm.decode(prompt, sample) for sample in range(self.samples)]

    def prepare(self, overrides: Mapping[str, Any]) -> Candidate:
        """Compose a candidate.

        Raises:
            ValueError: The parts cannot be made, or do not go together or with the target.
        """
        config = self.config.with_overrides(overrides)
        arm = self.compose("candidate", config)
        resolved = self.config.resolved(config)
        attributes: dict[str, Any] = {"resolved": resolved}
        if "execution" in resolved:
            attributes["execution"] = resolved["execution"]
        attributes |= self.attributes_of(arm)
        builder = arm.parts.builder
        made_of = dict(resolved)
        if builder is not None:
            attributes["nodes"] = builder.max_nodes
        if builder is not None and builder.rank_paths is not None:
            # Whatever class and arguments led to it, the same rank paths are the same tree.
            made_of["builder"] = attributes["rank_paths"] = builder.rank_paths
            attributes["candidates"] = CANDIDATES[builder.kind]
            if builder.kind is not NodeKind.POINT_MASS:
                made_of["candidates"] = attributes["candidates"]
            attributes["depth"] = max(map(len, builder.rank_paths))
        return Candidate(digest_of(made_of), attributes, arm)

    def try_to_compose(self, overrides: Mapping[str, Any]) -> None:
        """Compose a candidate and stop what it keeps running.

        Raises:
            ValueError: The parts cannot be made, or do not go together or with the target.
        """
        self.compose("candidate", self.config.with_overrides(overrides)).close()

    def attributes_of(self, arm: EngineArm) -> dict[str, Any]:
        """Attributes of a candidate for tables: the clock of its seconds, or its engine's settings."""
        engine = getattr(arm, "engine", None) if self.config.of_engine else None
        if engine is not None:
            settings = engine.deployed_settings()
            return {"engine": {"engine": engine.exported_as, "version": engine.version, "settings": settings}}
        return {} if self.latency is None else {"clock": self.latency.label}

    def plain_seconds_per_token(self, prompt: Prompt) -> float | None:
        """Seconds per token of plain decoding by the latency profile, for answers of full length; None if it must be
        measured.
        """
        if self.latency is None:
            return None
        assert self.pair is not None
        size = len(prompt.token_ids)
        room = context_limit(self.pair.target.config) - size
        tokens = max(min(self.config.generation.max_new_tokens, room), 1)
        return self.latency.plain_seconds(size, tokens) / tokens

    @property
    def _reference_path(self) -> Path:
        return self.config.folder / "reference.json"

    def load_reference(self) -> bool:
        """Take plain decoding's seconds from a profile, a recording or an earlier process of this study.

        Returns:
            Whether they are known.
        """
        found = {prompt.prompt_id: self.plain_seconds_per_token(prompt) for prompt in self.data().prompts}
        seconds = {prompt_id: known for prompt_id, known in found.items() if known is not None}
        if len(seconds) == len(found):
            self.reference = PlainSeconds(seconds)
            return True
        kept = PlainSeconds.load(self._reference_path, digest_of(self.config.workload()))
        if kept is None or not found.keys() <= kept.seconds_per_token.keys():
            return False
        self.reference = kept
        return True

    def measure_reference(self) -> None:
        """Measure plain decoding on every prompt, and keep it for a resumed study.

        Raises:
            StudyError: It cannot decode one, so that nothing can be compared with it.
        """
        engine, seconds = self._engine, {}
        for number, prompt in enumerate(self.data().prompts):
            try:
                if number == 0:
                    engine.decode(prompt, max_new_tokens=WARM_UP_TOKENS)
                seconds[prompt.prompt_id] = seconds_per_token(self.decode(engine, prompt))
            except Exception as error:
                raise StudyError(
                    f"plain decoding, with which every trial is compared, failed on prompt {prompt.prompt_id!r}: "
                    f"{type_and_line(error)}; leave the prompt out"
                ) from error
            self.tick()
        self.reference = PlainSeconds(seconds)
        self.reference.save(self._reference_path, digest_of(self.config.workload()))

    @cached_property
    def _engine(self) -> EngineArm:
        return self.plain()

    @cached_property
    def _trainer(self) -> Any:
        return build_trainer(self.config.config, enable_progress_bar=False)

    def test(self, module: EvaluationModule, stage: str | None = None) -> None:
        """Decode the prompts of the search, or of a stage, by the arms of a module."""
        with interruptible():
            self._trainer.test(module, datamodule=self.data(stage), verbose=False)

    def measure(self, candidate: Candidate, report: Report, trial: int) -> Measurement:
        """Decode the prompts in order until the last, or until ``report`` returns true.

        A candidate that is looked up is not reported, because pruning would save nothing.
        """
        arm: EngineArm = candidate.arm
        prompts = self.data().prompts
        found = self.look_up(arm)
        if found is not None:
            seconds, metrics = found
            plain = (self.reference.seconds_per_token[prompt.prompt_id] for prompt in prompts)
            pairs = enumerate(zip(plain, seconds, strict=True))
            return Measurement({place: log(slow / fast) for place, (slow, fast) in pairs}, metrics)
        arm.name = f"trial {trial}"
        # A modelled clock does not drift, and needs no warm machine.
        engine = [self._engine] if self.latency is None else []
        log_speedups: dict[int, float] = {}

        def note(records: Sequence[PromptRecord]) -> bool:
            own = [record for record in records if record.arm == arm.name]
            prompt_id = own[0].prompt_id
            if len(own) < len(records):
                plain = [record for record in records if record.arm != arm.name]
                self.reference.observe(prompt_id, seconds_per_token(plain))
            place = len(log_speedups)
            log_speedups[place] = log(self.reference.now(prompt_id) / seconds_per_token(own))
            self.tick()
            return report(place, log_speedups[place])

        try:
            if engine:
                arm.decode(prompts[0], max_new_tokens=WARM_UP_TOKENS)
            self.warm_started(arm)
            module = EvaluationModule(
                [*engine, arm],
                baseline=None,
                samples=self.samples,
                every={one.name: EVERY for one in engine},
                on_records=note,
            )
            with interruptible():  # here, for each frame counts on the way to the model
                self._trainer.test(module, datamodule=self.data(), verbose=False)
        finally:
            arm.close()
        records = self.config.folder / "records"
        records.mkdir(exist_ok=True)
        write_records(records / f"trial_{trial:04d}.jsonl", module.records)
        own = [record for record in module.records if record.arm == arm.name]
        drift = {"drift": self.reference.drift} if engine else {}
        return Measurement(log_speedups, {**figures_of(own), **drift})

    def look_up(self, arm: EngineArm) -> tuple[list[float], dict[str, float]] | None:
        """Seconds per token of each of the search's prompts, and metrics of all; None if they must be decoded."""
        return None

    def count_acceptances(self, overrides: Mapping[str, Any], path: Path) -> None:
        """Decode the stage's prompts with a wide tree, and write how often each rank path was accepted."""
        counter = AcceptanceCounter()
        arm = self.compose("acceptance counts", self.config.with_overrides(overrides))
        for prompt in self.data("count_acceptances").prompts:
            for sample in range(self.samples):
                arm.decode_observed(prompt, sample, counter.observe)
            self.tick()
        counter.save(path)

    @property
    def confirming(self) -> Study:
        """The study that confirms the best few: of the models, if a recording's are at hand."""
        return self

    def in_float32(self, confirmed: Sequence[Confirmed], records: Sequence[PromptRecord]) -> InFloat32 | None:
        """Compare outputs that differ from plain decoding's at near ties once more in float32.

        Returns:
            None if none differ, or no model of ours decodes.
        """
        parted = {record.arm for record in records if record.difference is not None}
        parted &= {one.name for one in confirmed}
        if not parted or self.pair is None or self.config.of_engine:
            return None
        from specexp.bench.equality import InFloat32, in_float32

        if self.config.multi_sequence:
            return InFloat32(left_out="several sequences are decoded for a prompt")

        def arms_of(pair: ModelPair) -> tuple[EngineArm, list[EngineArm]]:
            exact = live_study(self.config, pair, self.latency)
            return exact.plain(), [
                exact.compose(one.name, self.config.with_overrides(one.attributes["resolved"]))
                for one in confirmed
                if one.name in parted
            ]

        most = self.config.config.get("float32_prompts")
        return in_float32(self.pair, arms_of, self.data("confirm").prompts, records, most)

    def predict(self, overrides: Mapping[str, Any] | None) -> Predicted | None:
        """Predict a candidate, or plain decoding if ``overrides`` is None; None if nothing was replayed."""
        return None

    def sentences(self, winner: Confirmed) -> list[str]:
        """Sentences about a confirmed winner that only a replay needs."""
        return []

    def exported_metrics(self, best: Confirmed, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """The metrics of an artifact, from those of its confirmation."""
        return dict(metrics)

    def provenance(self, best: Confirmed) -> dict[str, Any]:
        """Further provenance of an artifact's figures."""
        own = isinstance(self.backend, LiveBackend) and not self.config.of_engine
        return self.backend.provenance(self._engine) if own else {}


def live_study(config: StudyConfig, pair: ModelPair, latency: LatencyProfile | None) -> Study:
    """A study on models, loaded once for all candidates, or on an engine that is started on them.

    Raises:
        ConfigError: Several sequences are decoded for every prompt, and a latency profile is to model their seconds; a
            task's file cannot be read; or the engine cannot be used.
    """
    whole = config.config
    if config.multi_sequence and latency is not None:
        raise whole.checker.error(
            ("latency",),
            f" {latency.name!r} cannot model the seconds of several sequences decoded for a prompt: leave it out",
        )
    problems = config.problems() if config.multi_sequence else None
    kind: type[LiveBackend] = LiveBackend
    if config.of_engine:
        from specexp.engines.served_arm import ServedBackend

        build_engine(whole)
        kind, latency = ServedBackend, None
    study = Study(config, kind.of(whole, pair, problems), latency, pair)
    if config.multi_sequence and not problems:
        study.samples = 1
    return study


def seconds_per_token(records: Sequence[PromptRecord]) -> float:
    """Decode seconds per token of a prompt, all its samples together.

    Raises:
        ValueError: Nothing was decoded.
    """
    found = metric_named("seconds_per_token").over(records)
    if not found:
        raise ValueError(f"prompt {records[0].prompt_id!r} gave no token with arm {records[0].arm!r}")
    return found


class PlainSeconds:
    """Plain decoding's seconds per token for every prompt, measured once, and rescaled by the machine's present speed.

    Args:
        seconds_per_token: Seconds per token by prompt id, measured at the start of the study.

    Example:
        >>> reference = PlainSeconds({"a": 0.004, "b": 0.006})
        >>> reference.observe("a", 0.005)  # the machine is 1.25 times as slow as it was
        >>> round(reference.now("b"), 4)
        0.0075
    """

    def __init__(self, seconds_per_token: Mapping[str, float]) -> None:
        self.seconds_per_token = dict(seconds_per_token)
        self._ratios: deque[float] = deque(maxlen=WINDOW)

    def observe(self, prompt_id: str, seconds_per_token: float) -> None:
        """Take in another run of plain decoding on a prompt."""
        self._ratios.append(seconds_per_token / self.seconds_per_token[prompt_id])

    @property
    def drift(self) -> float:
        """Median of the last ratios now / then; 1 before any."""
        return statistics.median(self._ratios) if self._ratios else 1.0

    def now(self, prompt_id: str) -> float:
        """Seconds per token on a prompt at the machine's present speed."""
        return self.seconds_per_token[prompt_id] * self.drift

    def save(self, path: Path, digest: str) -> None:
        """Keep the seconds for a resumed study of the same workload."""
        kept = {"digest": digest, "seconds_per_token": self.seconds_per_token}
        atomic_write(path, json.dumps(kept, indent=1))

    @classmethod
    def load(cls, path: Path, digest: str) -> PlainSeconds | None:
        """The kept seconds; None if there are none, or they are of another workload."""
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            if kept["digest"] == digest:
                return cls({str(key): float(value) for key, value in kept["seconds_per_token"].items()})
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass
        return None
