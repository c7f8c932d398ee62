"""A bench: composes candidates of an experiment and measures them against plain decoding on the prompts of a study.

This module has the bench with models in our loop. :mod:`specexp.sweep.live_benches` and
:mod:`specexp.sweep.replay_bench` have the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from math import log
from time import perf_counter
from typing import Any, TypeVar

import optuna

from specexp.base.messages import first_line, type_and_line
from specexp.bench.arm import Arm, LearningArm
from specexp.bench.arm_spec import ArmSpec, Backend
from specexp.bench.equality import InFloat32, in_float32
from specexp.bench.live import LiveBackend
from specexp.bench.measuring import records_by_prompt
from specexp.bench.metrics import figures_of, metric_named
from specexp.bench.record import PromptRecord, write_records
from specexp.bench.statistics import DISTURBED, IMPOSSIBLE
from specexp.core.cache import context_limit
from specexp.core.language_model import placement
from specexp.core.latency import LatencyProfile
from specexp.core.parts import Parts
from specexp.core.tree import NodeKind
from specexp.data import LoadedPrompts, Prompt
from specexp.engines.engine import EngineError
from specexp.models.pair import ModelPair
from specexp.scheduling import Execution
from specexp.sweep.plain_seconds import PlainSeconds, seconds_per_token
from specexp.sweep.study_config import Composition, StudyConfig, StudyError, digest_of
from specexp.sweep.trials import Candidate, Confirmed, Measurement, Predicted, ShouldStop
from specexp.tracking.names import EAGER, PLAIN

T = TypeVar("T")

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
FIRST = 4
"""Number of prompts on which plain decoding is timed before the study's duration is forecast."""
EVERY = 4
"""During a search, plain decoding is repeated on every fourth prompt."""


class Bench:
    """An experiment's candidates and the prompts of its stages, with the backend that makes the arms.

    Attributes:
        latency: The profile that models the seconds; None if they are measured.
        samples: Number of continuations decoded, or searches run, for each prompt. A group of sequences counts as one.
        tracks_trials: Whether a trial takes long enough to get its own W&B run.
        is_comparable: Whether one sequence at a time is decoded in our loop. Its speedup can then be compared with the
            tokens per step, which bound it, and with Hugging Face's loop.
        confirming: The bench that confirms the best few trials, on the models if they can be loaded.
        tick: Called after every prompt, for a progress bar.
        reference: Plain decoding's seconds per token, once they are loaded or measured.
    """

    tracks_trials = True
    is_comparable = True

    def __init__(self, config: StudyConfig, backend: Backend, latency: LatencyProfile | None) -> None:
        self.config = config
        self.backend = backend
        self.latency = latency
        self.pair = backend.pair
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
        kept = trials.user_attrs.get(RENDERED, {})
        found: dict[str, str] = {}
        for stage in (None, *self.config.sweep.stages):
            settings = digest_of(self.config.data_of(stage))
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
        return self.config.load_prompts(stage, self.pair)

    @cached_property
    def warm_start_prompts(self) -> Sequence[Prompt]:
        """The prompts from which every candidate learns before being measured."""
        return self.data("learn").prompts if self.config.sweep.learn else ()

    def applies(self, key: str, overrides: Mapping[str, Any]) -> bool:
        """Return whether a dotted key exists in the composition with these overrides."""
        return self.config.applies(key, overrides)

    def compose(self, name: str, overrides: Mapping[str, Any]) -> LearningArm:
        """Return a new arm for a candidate, which the caller closes; raises ValueError if the candidate is invalid."""
        return self._composed(name, self.config.compose(overrides, self.backend.draft))

    def _composed(self, name: str, composition: Composition) -> LearningArm:
        return self.arm(name, composition.parts)

    def plain(self) -> LearningArm:
        """Return the plain decoding arm."""
        return self.arm(PLAIN, self.config.plain_parts)

    def other_arms(self) -> list[Arm]:
        """Return a list with Hugging Face's plain ``generate`` as an arm, or an empty list if it cannot be compared."""
        plain = self.config.plain_parts
        wanted = self.is_comparable and EAGER in (self.config.baselines or [EAGER])
        if not wanted or plain.verifier.sampling != "deterministic" or EAGER not in self.backend.references:
            return []
        return [self.backend.arm(ArmSpec(EAGER, self.config.generation, plain, latency=self.latency, reference=EAGER))]

    def arm(self, name: str, parts: Parts, execution: Execution | None = None, engine: Any = None) -> LearningArm:
        """Return a new arm of the backend."""
        spec = ArmSpec(name, self.config.generation, parts, execution=execution, latency=self.latency, engine=engine)
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
        arm.learn(prompts)
        arm.remember()

    def decode(self, arm: Arm, prompt: Prompt) -> list[PromptRecord]:
        """Decode all samples of a prompt."""
        return [arm.decode(prompt, sample) for sample in range(self.samples)]

    def prepare(self, overrides: Mapping[str, Any]) -> Candidate:
        """Compose a candidate; raises ValueError if its parts do not fit together."""
        composition = self.config.compose(overrides, self.backend.draft)
        arm = self._composed("candidate", composition)
        made_of = dict(composition.resolved)
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
            self.reference = PlainSeconds.load(self.config.folder / REFERENCE, self.workload)
        return found.keys() <= self.reference.seconds_per_token.keys()

    @property
    def workload(self) -> str:
        """The digest of what the seconds of plain decoding depend on."""
        return digest_of([self.config.workload(), self.data().digest])

    def cut(self, prompts: int, counted: int | None = None) -> None:
        """Keep only the first prompts of the search and of the acceptance counts."""
        for stage, most in ((None, prompts), ("count_acceptances", counted)):
            if most:
                self.data(stage).keep(self.data(stage).prompts[:most])

    def time_first_prompts(self) -> None:
        """Measure plain decoding on the first few prompts, after which the duration of the study can be forecast.

        Raises StudyError if a prompt fails.
        """
        prompts = self.data().prompts[:FIRST]
        first = self._measured_plain(prompts[0], lambda: self._plain.decode(prompts[0], max_new_tokens=WARM_UP_TOKENS))
        started = perf_counter()
        seconds = {prompt.prompt_id: self._plain_seconds(prompt) for prompt in prompts}
        self.reference = PlainSeconds(seconds, (perf_counter() - started) / len(prompts), first.start_seconds or 0.0)

    def measure_reference(self) -> None:
        """Measure plain decoding on the other prompts, and save the times for resuming.

        Raises StudyError if a prompt fails.
        """
        for prompt in self.data().prompts[len(self.reference.seconds_per_token) :]:
            self.reference.seconds_per_token[prompt.prompt_id] = self._plain_seconds(prompt)
        self.reference.save(self.config.folder / REFERENCE, self.workload)

    def _plain_seconds(self, prompt: Prompt) -> float:
        seconds = self._measured_plain(prompt, lambda: seconds_per_token(self.decode(self._plain, prompt)))
        self.tick()
        return seconds

    def _measured_plain(self, prompt: Prompt, decode: Callable[[], T]) -> T:
        try:
            return decode()
        except Exception as error:
            what = f"plain decoding, with which every trial is compared, failed on prompt {prompt.prompt_id!r}"
            if isinstance(error, EngineError):
                why = f": {what}: {first_line(error)}"
                raise StudyError(str(self.config.checker.error(("engine",), why))) from error
            raise StudyError(f"{what}: {type_and_line(error)}; leave the prompt out") from error

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
                if reference and self.is_comparable:
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

    def in_float32(self, confirmed: Sequence[Confirmed], records: Sequence[PromptRecord]) -> InFloat32 | None:
        """Compare in float32 the outputs that differ from plain decoding's; None if none differ or models are away."""
        names = {record.arm for record in records if record.difference is not None}
        again = [one for one in confirmed if one.name in names]
        if not again or self.pair is None:
            return None

        def arms_of(pair: ModelPair) -> tuple[LearningArm, list[LearningArm]]:
            exact = Bench(self.config, LiveBackend(pair), self.latency)
            return exact.plain(), [exact.compose(one.name, one.attributes["resolved"]) for one in again]

        most = self.config.float32_prompts
        return in_float32(self.pair, arms_of, self.data("confirm").prompts, records, most)

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
        return self.backend.provenance(self._plain)
