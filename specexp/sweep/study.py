"""A study: candidates composed from an experiment and measured against plain decoding in one backend."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from itertools import accumulate
from math import log
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from specexp.artifacts.atomic_write import atomic_write
from specexp.base.messages import first_line, type_and_line
from specexp.bench.arm import LearningArm
from specexp.bench.arm_spec import ArmSpec
from specexp.bench.experiment import check_prompts
from specexp.bench.live import LiveBackend
from specexp.bench.measuring import records_by_prompt
from specexp.bench.metrics import figures_of, metric_named
from specexp.bench.observers import AcceptanceCounter
from specexp.bench.record import PromptRecord, write_records
from specexp.bench.statistics import DISTURBED, IMPOSSIBLE
from specexp.config import (
    Config,
    build_data,
    build_engine,
    build_execution,
    build_parts,
    build_verifier,
    prompts_error,
)
from specexp.config.load import COSTS, with_prompts_of
from specexp.core.cache import context_limit
from specexp.core.language_model import placement
from specexp.core.latency import outcome_seconds
from specexp.core.parts import Parts
from specexp.core.tree import NodeKind
from specexp.data import PromptSetError
from specexp.sweep.study_config import StudyConfig, StudyError, digest_of
from specexp.sweep.trials import Candidate, Confirmed, Measurement, Predicted, ShouldStop
from specexp.tracking.names import EAGER, PLAIN

if TYPE_CHECKING:
    import optuna

    from specexp.bench.arm import Arm
    from specexp.bench.arm_spec import Backend
    from specexp.bench.equality import InFloat32
    from specexp.config.sweep import CountAcceptances
    from specexp.core.latency import LatencyProfile
    from specexp.core.outcome import Outcome
    from specexp.data import LoadedPrompts, Prompt
    from specexp.models.pair import ModelPair
    from specexp.scheduling import Execution

CANDIDATES = {
    NodeKind.POINT_MASS: "top-k",
    NodeKind.DRAWN: "drawn",
    NodeKind.DRAWN_WITH_REPLACEMENT: "drawn with replacement",
}
"""Labels for how the ranked candidates of a fixed tree are chosen, keyed by kind of node."""
REFERENCE = "reference.json"
"""Name of the file in a study's folder that holds plain decoding's seconds per token."""
RENDERED = "rendered"
"""Name of the study's attribute that holds the digests of its rendered prompts, by the digest of their settings."""
WARM_UP_TOKENS = 8
ROWS = (2, 3, 5, 9, 17, 33, 65, 129)
"""Sizes of the trees that are timed, in rows including the root, as long as one costs less than ``COSTLY``."""
COSTLY = 4.0
"""After a step that takes this many times as long as one with a single node, no larger trees are timed."""
STEPS, ROUNDS = 6, 3
"""Each tree is timed for this many steps per round, in this many rounds."""
FIRST = 4
"""Number of prompts on which plain decoding is timed before the study's duration is forecast."""
WINDOW = 3
"""The machine's speed is the median over this many runs of plain decoding, so a single disturbed run has no effect."""
EVERY = 4
"""During a search, plain decoding is repeated on every fourth prompt."""


class EnoughError(Exception):
    """Raised to stop decoding an answer once enough of its steps have been observed."""


class Study:
    """An experiment's candidates and the prompts of its stages, with the backend that makes the arms.

    Attributes:
        latency: The profile that models the seconds; None if they are measured.
        samples: Number of continuations decoded, or searches run, for each prompt. A group of sequences counts as one.
        tracks_trials: Whether a trial takes long enough to get its own W&B run.
        confirming: The study that confirms the best few trials, on the models if they can be loaded.
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
        self.confirming = self
        self.tick: Callable[[], None] = lambda: None
        self.reference = PlainSeconds({})
        self._data: dict[str | None, LoadedPrompts] = {}

    @property
    def device(self) -> str:
        """The device on which the models are placed."""
        assert self.pair is not None
        return placement(self.pair.target)

    def data(self, stage: str | None = None) -> LoadedPrompts:
        """Return the prompts of the search or a stage; raises ConfigError if one does not fit or was not recorded."""
        if stage not in self._data:
            self._data[stage] = self._read_data(stage)
        return self._data[stage]

    def check_rendered(self, trials: optuna.Study) -> None:
        """Store the digests of all stages' prompts in the study, or raise StudyError if it measured other tokens.

        Settings and files may be the same, and a chat template still print another date.
        """
        kept, found = trials.user_attrs.get(RENDERED, {}), dict[str, str]()
        for stage in (None, *self.config.sweep.stages):
            settings = digest_of(with_prompts_of(self.config, stage).get("data"))
            data = self.data(stage)
            found[settings] = data.digest
            if kept.get(settings, data.digest) != data.digest:
                varying = data.workload.preparation.varying or "their file or the chat template has changed"
                raise StudyError(
                    f"the study {trials.study_name!r} measured prompts with other tokens, because {varying}: give this "
                    "study another name (--name NEW)"
                )
        trials.set_user_attr(RENDERED, {**kept, **found})

    def _read_data(self, stage: str | None) -> LoadedPrompts:
        assert self.pair is not None
        staged = with_prompts_of(self.config, stage)
        data = build_data(staged, self.pair.tokenizer)
        try:
            check_prompts(self.config, data.prompts, self.pair)
        except PromptSetError as error:
            raise prompts_error(staged, error) from error
        return data

    @cached_property
    def warm_start_prompts(self) -> Sequence[Prompt]:
        """The prompts from which every candidate learns before being measured."""
        return self.data("learn").prompts if self.config.sweep.learn else ()

    def compose(self, name: str, config: Config) -> LearningArm:
        """Return a new arm for a candidate, which the caller closes; raises ValueError if the candidate is invalid."""
        if self.config.of_engine:
            return self._arm(name, self._plain_parts, engine=build_engine(config))
        parts = build_parts(config, self.backend.draft)
        return self._arm(name, parts, build_execution(config) if self.config.multi_sequence else None)

    def plain(self) -> LearningArm:
        """Return the plain decoding arm, in our loop or in the engine that is being tuned."""
        config = self.config
        try:
            engine = build_engine(config).plain() if self.config.of_engine else None
        except ValueError as error:
            raise config.checker.error(("engine",), f": {first_line(error)}") from error
        return self._arm(PLAIN, self._plain_parts, engine=engine)

    @property
    def _plain_parts(self) -> Parts:
        return Parts(verifier=build_verifier(self.config))

    def other_arms(self) -> list[Arm]:
        """Return a list with Hugging Face's plain ``generate`` as an arm, or an empty list if it cannot be compared."""
        plain = self._plain_parts
        deterministic = plain.verifier.sampling == "deterministic"
        if self.config.of_engine or self.config.multi_sequence or not deterministic:
            return []
        if EAGER not in (self.config.baselines or [EAGER]):
            return []
        spec = ArmSpec(EAGER, self.config.generation, plain, latency=self.latency, reference=EAGER)
        return [self.backend.arm(spec)] if EAGER in self.backend.references else []

    def _arm(
        self, name: str, parts: Parts, execution: Execution | None = None, engine: Any = None
    ) -> LearningArm:
        if self.config.multi_sequence and execution is None:
            from specexp.scheduling import Serial, SerialSpeculative

            execution = Serial() if parts.drafter is None else SerialSpeculative()
        latency = self.latency if engine is None else None
        spec = ArmSpec(
            name, self.config.generation, parts, execution=execution, latency=latency, engine=engine
        )
        arm = self.backend.arm(spec)
        assert isinstance(arm, LearningArm)
        return arm

    def warm_started(self, arm: LearningArm) -> LearningArm:
        """Let the arm learn from :attr:`warm_start_prompts`, and return it. Later resets restore the learned state."""
        if self.warm_start_prompts:
            arm.reset()
            self._learn(arm, self.warm_start_prompts)
        return arm

    def deployed(self, arm: LearningArm) -> LearningArm:
        """Let the arm learn from the warm-start and search prompts, as it would for deployment, and return it."""
        self.warm_started(arm)
        if arm.parts.keeps_learning:
            self._learn(arm, self.data().prompts)
        return arm

    def _learn(self, arm: LearningArm, prompts: Sequence[Prompt]) -> None:
        # One sequence at a time, so that the learned state does not depend on timing.
        alone = partial(arm.decode_observed, sample=0, observe=lambda outcome: None)
        arm.learn(prompts, alone if self.config.multi_sequence else None)
        arm.remember()

    def decode(self, arm: Arm, prompt: Prompt) -> list[PromptRecord]:
        """Decode all samples of a prompt."""
        return [arm.decode(prompt, sample) for sample in range(self.samples)]

    def prepare(self, overrides: Mapping[str, Any]) -> Candidate:
        """Compose a candidate; raises ValueError if its parts do not fit together."""
        config = self.config.with_overrides(overrides)
        arm = self.compose("candidate", config)
        made_of = self.config.resolved(config)
        attributes: dict[str, Any] = {"resolved": dict(made_of), **arm.stated}
        if "execution" in made_of:
            attributes["execution"] = made_of["execution"]
        builder = arm.parts.builder
        if builder is not None:
            attributes["nodes"] = builder.max_nodes
        if builder is not None and builder.rank_paths is not None:
            # Equal rank paths mean the same tree, whichever class and arguments produced it.
            made_of["builder"] = attributes["rank_paths"] = builder.rank_paths
            attributes["candidates"] = CANDIDATES[builder.kind]
            if builder.kind is not NodeKind.POINT_MASS:
                made_of["candidates"] = attributes["candidates"]
            attributes["depth"] = max(map(len, builder.rank_paths))
        return Candidate(digest_of(made_of), attributes, arm)

    def try_to_compose(self, overrides: Mapping[str, Any]) -> None:
        """Compose a candidate and close it; raises ValueError if its parts do not fit together."""
        self.compose("candidate", self.config.with_overrides(overrides)).close()

    def plain_seconds_per_token(self, prompt: Prompt) -> float | None:
        """Return plain decoding's modelled seconds per token for full-length answers; None if they must be measured."""
        if self.latency is None or self.pair is None:
            return None
        size = len(prompt.token_ids)
        room = context_limit(self.pair.target.config) - size
        tokens = max(min(self.config.generation.max_new_tokens, room), 1)
        return self.latency.plain_seconds(size, tokens) / tokens

    def load_reference(self) -> bool:
        """Load plain decoding's seconds from a profile, recording or earlier process; return whether all are known."""
        found = {prompt.prompt_id: self.plain_seconds_per_token(prompt) for prompt in self.data().prompts}
        self.reference = PlainSeconds({one: known for one, known in found.items() if known is not None})
        if None in found.values():
            self.reference = PlainSeconds.load(self.config.folder / REFERENCE, self._workload)
        return found.keys() <= self.reference.seconds_per_token.keys()

    @property
    def _workload(self) -> str:
        return digest_of([self.config.workload(), self.data().digest])

    def cut(self, prompts: int, counted: int | None = None, confirmed: int | None = None) -> None:
        """Keep only the first prompts of the search, the acceptance counts and the confirmation."""
        for stage, most in ((None, prompts), ("count_acceptances", counted), ("confirm", confirmed)):
            if most:
                self.data(stage).keep(self.data(stage).prompts[:most])

    def measure_reference(self, after_first: Callable[[float], None]) -> None:
        """Measure plain decoding on every prompt, and save the times for resuming; raises StudyError if a prompt fails.

        After a few prompts, ``after_first`` is called with the seconds per prompt. It may reduce the number of prompts.
        """
        seconds: dict[str, float] = {}
        while len(seconds) < len(self.data().prompts):
            prompt = self.data().prompts[len(seconds)]
            try:
                if not seconds:
                    self._plain.decode(prompt, max_new_tokens=WARM_UP_TOKENS)
                    started = perf_counter()
                seconds[prompt.prompt_id] = seconds_per_token(self.decode(self._plain, prompt))
            except Exception as error:
                raise StudyError(
                    f"plain decoding, with which every trial is compared, failed on prompt {prompt.prompt_id!r}: "
                    f"{type_and_line(error)}; leave the prompt out"
                ) from error
            self.tick()
            if len(seconds) == min(FIRST, len(self.data().prompts)):
                per_prompt = (perf_counter() - started) / len(seconds)
                after_first(per_prompt)
        self.reference = PlainSeconds(seconds, per_prompt)
        self.reference.save(self.config.folder / REFERENCE, self._workload)

    @cached_property
    def _plain(self) -> LearningArm:
        return self.plain()

    def measure(self, candidate: Candidate, should_stop: ShouldStop, trial: int) -> Measurement:
        """Measure a candidate on the prompts in order, until the last one or until ``should_stop`` returns True."""
        arm: LearningArm = candidate.arm
        arm.name = f"trial {trial}"
        # Modelled seconds do not drift, so plain decoding need not run again.
        reference = [self._plain] if self.latency is None else []
        log_speedups: dict[int, float] = {}
        measured: list[PromptRecord] = []
        try:
            if reference:
                arm.decode(self.data().prompts[0], max_new_tokens=WARM_UP_TOKENS)
            self.warm_started(arm)
            every = {one.name: EVERY for one in reference}
            rounds = records_by_prompt(
                [*reference, arm], self.data().prompts, baseline=None, samples=self.samples, every=every
            )
            for place, records in enumerate(rounds):
                measured += records
                plain = [record for record in records if record.arm != arm.name]
                own = [record for record in records if record.arm == arm.name]
                prompt_id = own[0].prompt_id
                if plain:
                    self.reference.observe(prompt_id, seconds_per_token(plain))
                speedup = self.reference.now(prompt_id) / seconds_per_token(own)
                self.tick()
                # engines count steps in their own way, and several sequences share passes
                if reference and not (self.config.of_engine or self.config.multi_sequence):
                    most = IMPOSSIBLE * (metric_named("tokens_per_step").over(own) or 1.0)
                    if speedup > most and not arm.parts.keeps_learning:
                        speedup = self._again(arm, self.data().prompts[place])
                    if speedup > most:
                        continue  # other programs slowed plain decoding down
                log_speedups[place] = log(speedup)
                if should_stop(place, log_speedups[place]):
                    break
            if not log_speedups:
                raise ValueError(f"all prompts have {DISTURBED}")
        finally:
            arm.close()
        folder = self.config.folder / "records"
        folder.mkdir(exist_ok=True)
        write_records(folder / f"trial_{trial:04d}.jsonl", measured)
        drift = {"drift": self.reference.drift} if reference else {}
        own = [record for record in measured if record.arm == arm.name]
        return Measurement(log_speedups, {**figures_of(own), **drift})

    def _again(self, arm: LearningArm, prompt: Prompt) -> float:
        """Decode a prompt again with plain decoding and a candidate, and return the speedup."""
        plain, own = (seconds_per_token(self.decode(one, prompt)) for one in (self._plain, arm))
        return plain / own

    def count_acceptances(self, stage: CountAcceptances, begin: Callable[[int], None]) -> None:
        """Decode the stage's prompts with a wide tree, and write how often each rank path was accepted.

        A few steps with trees of several sizes are also timed, and their milliseconds are written by number of rows.
        Nothing is decoded if an earlier process of this study has written the same counts. Otherwise ``begin`` is
        called with the number of prompts.
        """
        path = self.config.acceptance_counts
        assert path is not None
        resolved = self.config.resolved(self.config)
        made_of = digest_of(
            [self._workload, resolved, stage.model_dump(), self.data("count_acceptances").digest]
        )
        mark = path.with_suffix(".digest")
        if path.exists() and mark.exists() and mark.read_text(encoding="utf-8") == made_of:
            return
        counter, arm = self._counted(stage.builder, begin)
        costs = self._step_ms(arm, self.data("count_acceptances").prompts[0])
        if stage.most_cost is not None:
            most = max(rows for rows, ms in costs.items() if ms <= stage.most_cost * min(costs.values())) - 1
            given = stage.builder["init_args"]
            if most > given["nodes"]:
                counter, _ = self._counted({**stage.builder, "init_args": {**given, "nodes": most}}, begin)
        counter.save(path)
        atomic_write(path.with_name(COSTS), json.dumps(costs))
        atomic_write(mark, made_of)

    def _counted(self, builder: Any, begin: Callable[[int], None]) -> tuple[AcceptanceCounter, LearningArm]:
        """Decode the stage's prompts with a builder; return the counts and the arm, which has learned from them."""
        counter, prompts = AcceptanceCounter(), self.data("count_acceptances").prompts
        arm = self.compose("acceptance counts", self.config.with_overrides({"builder": builder}))
        begin(len(prompts))
        for prompt in prompts:
            for sample in range(self.samples):
                arm.decode_observed(prompt, sample, counter.observe)
            self.tick()
        return counter, arm

    def _step_ms(self, learned: LearningArm, prompt: Prompt) -> dict[int, float]:
        """Time trees of several sizes with an arm's learned state; return median step times in ms by number of rows."""
        found: dict[int, list[float]] = defaultdict(list)
        taken: list[float] = []
        learned.remember()

        def observe(outcome: Outcome) -> None:
            taken.append(1e3 * outcome_seconds(outcome, self.latency))
            found[outcome.tree.num_nodes + 1].append(taken[-1])
            if len(taken) == STEPS:
                raise EnoughError

        for _ in range(ROUNDS):  # because the available memory bandwidth changes within seconds
            for rows in ROWS:
                tree = {"class_path": "ParametricTree", "init_args": {"nodes": rows - 1, "depth": 8}}
                arm = self.compose("costs of steps", self.config.with_overrides({"builder": tree}))
                arm.drafter_state = learned.drafter_state
                arm.reset()
                taken.clear()
                with suppress(EnoughError):
                    arm.decode_observed(prompt, 0, observe)
                least = min(map(statistics.median, found.values()))
                if statistics.median(taken) > COSTLY * least:
                    break
        # The last steps of an answer have unusual numbers of rows, and a first pass may include compilation.
        often = {rows: statistics.median(ms) for rows, ms in sorted(found.items()) if len(ms) >= STEPS // 2}
        return dict(zip(often, accumulate(often.values(), max), strict=True))

    def in_float32(self, confirmed: Sequence[Confirmed], records: Sequence[PromptRecord]) -> InFloat32 | None:
        """Compare in float32 the outputs that differ from plain decoding's; None if none differ, or on an engine."""
        different = {record.arm for record in records if record.difference is not None}
        again = [one for one in confirmed if one.name in different]
        if not again or self.pair is None or self.config.of_engine:
            return None
        from specexp.bench.equality import InFloat32, in_float32

        if self.config.multi_sequence:
            return InFloat32(left_out="several sequences are decoded for a prompt")

        def arms_of(pair: ModelPair) -> tuple[LearningArm, list[LearningArm]]:
            exact = live_study(self.config, pair, self.latency)
            return exact.plain(), [exact.compose(one.name, exact.config_of(one)) for one in again]

        most = self.config.float32_prompts
        return in_float32(self.pair, arms_of, self.data("confirm").prompts, records, most)

    def config_of(self, one: Confirmed) -> Config:
        """Return the configuration of a confirmed candidate."""
        return self.config.with_overrides(one.attributes["resolved"])

    def predict(self, overrides: Mapping[str, Any] | None) -> Predicted | None:
        """Return the replay's prediction for a candidate, or for plain decoding if ``overrides`` is None.

        Returns None if nothing was replayed.
        """
        return None

    def sentences(self, winner: Confirmed) -> list[str]:
        """Return additional sentences about the confirmed winner; empty unless the study was replayed."""
        return []

    def exported_metrics(self, best: Confirmed, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Return the metrics to store in an artifact, given those of the confirmation."""
        return dict(metrics)

    def provenance(self, best: Confirmed) -> dict[str, Any]:
        """Return additional provenance for an artifact's figures."""
        own = isinstance(self.backend, LiveBackend) and not self.config.of_engine
        return self.backend.provenance(self._plain) if own else {}


def live_study(config: StudyConfig, pair: ModelPair, latency: LatencyProfile | None) -> Study:
    """Return a study that uses an engine, or models loaded once for all candidates; raises ConfigError on failure."""
    if config.multi_sequence and latency is not None:
        why = f" must be left out if several sequences are decoded for a prompt, got {latency.name!r}"
        raise config.checker.error(("latency",), why)
    problems = config.problems() if config.multi_sequence else None
    kind: type[LiveBackend] = LiveBackend
    if config.of_engine:
        from specexp.engines.served_arm import ServedBackend

        engine = build_engine(config)  # rejects wrong settings before models are loaded
        kind, latency = ServedBackend, None
    study = Study(config, kind.of(config, pair, problems), latency, pair)
    if config.of_engine:
        study.samples *= len(engine.loads)
    if config.multi_sequence and not problems:
        study.samples = 1
    return study


def seconds_per_token(records: Sequence[PromptRecord]) -> float:
    """Return a prompt's decode seconds per token over all samples; raises ValueError if no token was decoded."""
    found = metric_named("seconds_per_token").over(records)
    if not found:
        raise ValueError(f"arm {records[0].arm!r} decoded no token of prompt {records[0].prompt_id!r}")
    return found


class PlainSeconds:
    """Plain decoding's seconds per token by prompt id, scaled to the machine's current speed.

    ``per_prompt`` is the mean number of seconds per prompt, including the prefill; None if it was not measured.

    Example:
        >>> reference = PlainSeconds({"a": 0.004, "b": 0.006})
        >>> reference.observe("a", 0.005)  # the machine is 1.25 times as slow as it was
        >>> round(reference.now("b"), 4)
        0.0075
    """

    def __init__(self, seconds_per_token: Mapping[str, float], per_prompt: float | None = None) -> None:
        self.seconds_per_token = dict(seconds_per_token)
        self.per_prompt = per_prompt
        self._ratios: deque[float] = deque(maxlen=WINDOW)

    def observe(self, prompt_id: str, seconds_per_token: float) -> None:
        """Add the seconds per token of another plain decoding run on a prompt."""
        self._ratios.append(seconds_per_token / self.seconds_per_token[prompt_id])

    @property
    def drift(self) -> float:
        """Median of the latest ratios of current to initial seconds; 1 before the first observation."""
        return statistics.median(self._ratios) if self._ratios else 1.0

    def now(self, prompt_id: str) -> float:
        """Return the seconds per token for a prompt at the machine's current speed."""
        return self.seconds_per_token[prompt_id] * self.drift

    def save(self, path: Path, digest: str) -> None:
        """Save the seconds for a resumed study of the same workload."""
        kept = {"digest": digest, "seconds_per_token": self.seconds_per_token, "per_prompt": self.per_prompt}
        atomic_write(path, json.dumps(kept, indent=1))

    @classmethod
    def load(cls, path: Path, digest: str) -> PlainSeconds:
        """Return the saved seconds; empty if none were saved for this workload."""
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            return (
                cls(kept["seconds_per_token"], kept.get("per_prompt"))
                if kept["digest"] == digest
                else cls({})
            )
        except (OSError, ValueError, KeyError):
            return cls({})
