"""Measures candidates of a study: all on the same prompts in the same order, against plain decoding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from math import log
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specexp.bench.analysis import AcceptanceCounter
from specexp.bench.metrics import figures_of
from specexp.bench.module import EvaluationModule
from specexp.bench.record import PromptRecord, write_records
from specexp.bench.trainer import build_trainer, interruptible
from specexp.core.messages import type_and_line
from specexp.core.tree import NodeKind
from specexp.sweep.candidates import Candidate, Measurement, Report
from specexp.sweep.drift import EVERY, PlainSeconds, seconds_per_token
from specexp.sweep.error import StudyError
from specexp.sweep.study import digest_of

if TYPE_CHECKING:
    from lightning import Trainer

    from specexp.bench.arm import EngineArm
    from specexp.sweep.backend import StudyBackend

CANDIDATES = {
    NodeKind.POINT_MASS: "top-k",
    NodeKind.DRAWN: "drawn",
    NodeKind.DRAWN_WITH_REPLACEMENT: "drawn with replacement",
}
"""What a fixed shape's ranks count."""

WARM_UP_TOKENS = 8


class StudyBench:
    """Measures candidates against plain decoding.

    Args:
        backend: Who answers.
        folder: The study's: keeps plain decoding's seconds and every trial's records.

    Attributes:
        prompts: Those of the search, in one fixed order.
        tick: Called after every prompt, for a progress bar.
        reference: Plain decoding's seconds per token, once :meth:`load_reference` or :meth:`measure_reference` has run.
    """

    def __init__(self, backend: StudyBackend, folder: Path) -> None:
        self.backend = backend
        self.folder = folder
        self.study_config = backend.study_config
        self.data = backend.data()
        self.prompts = self.data.prompts
        self.tick: Callable[[], None] = lambda: None
        self.reference = PlainSeconds({})
        self._engine = backend.plain()
        self._reference_path = folder / "reference.json"
        self._workload = digest_of(self.study_config.workload())

    @cached_property
    def trainer(self) -> Trainer:
        """Drives every test; no bar of Lightning's own, for the sweep shows one."""
        return build_trainer(self.study_config.config, enable_progress_bar=False)

    def applies(self, key: str, overrides: Mapping[str, Any]) -> bool:
        """Whether a dotted key exists in the composition with these overrides."""
        return self.study_config.applies(key, overrides)

    def prepare(self, overrides: Mapping[str, Any]) -> Candidate:
        """Compose a candidate.

        Raises:
            ValueError: The parts cannot be made, or do not go together or with the target.
        """
        config = self.study_config.with_overrides(overrides)
        arm = self.backend.compose("candidate", config)
        resolved = self.study_config.resolved(config)
        attributes: dict[str, Any] = {"resolved": resolved}
        if "execution" in resolved:
            attributes["execution"] = resolved["execution"]
        attributes |= self.backend.attributes_of(arm)
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

    def load_reference(self) -> bool:
        """Take plain decoding's seconds where they are known: by the backend, or from an earlier process of this study;
        whether they are.
        """
        known = {prompt.prompt_id: self.backend.plain_seconds_per_token(prompt) for prompt in self.prompts}
        seconds = {prompt_id: found for prompt_id, found in known.items() if found is not None}
        if len(seconds) == len(known):
            self.reference = PlainSeconds(seconds)
            return True
        kept = PlainSeconds.load(self._reference_path, self._workload)
        if kept is None or not known.keys() <= kept.seconds_per_token.keys():
            return False
        self.reference = kept
        return True

    def measure_reference(self) -> None:
        """Measure plain decoding on every prompt, and keep it for a resumed study.

        Raises:
            StudyError: It cannot decode one, so that nothing can be compared with it.
        """
        seconds = {}
        for number, prompt in enumerate(self.prompts):
            try:
                if number == 0:
                    self._engine.decode(prompt, max_new_tokens=WARM_UP_TOKENS)
                seconds[prompt.prompt_id] = seconds_per_token(self.backend.decode(self._engine, prompt))
            except Exception as error:
                raise StudyError(
                    f"plain decoding, with which every trial is compared, failed on prompt {prompt.prompt_id!r}: "
                    f"{type_and_line(error)}; leave the prompt out"
                ) from error
            self.tick()
        self.reference = PlainSeconds(seconds)
        self.reference.save(self._reference_path, self._workload)

    def measure(self, candidate: Candidate, report: Report, trial: int) -> Measurement:
        """Decode the prompts in order until the last, or until ``report`` says stop.

        What is looked up is whole at once, so it is reported to nobody: there is nothing to save by pruning.
        """
        arm: EngineArm = candidate.arm
        found = self.backend.look_up(arm)
        if found is not None:
            seconds, metrics = found
            plain = (self.reference.seconds_per_token[prompt.prompt_id] for prompt in self.prompts)
            pairs = enumerate(zip(plain, seconds, strict=True))
            return Measurement({place: log(slow / fast) for place, (slow, fast) in pairs}, metrics)
        arm.name = f"trial {trial}"
        # A modelled clock does not drift, and needs no warm machine.
        engine = [self._engine] if self.backend.latency is None else []
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
                arm.decode(self.prompts[0], max_new_tokens=WARM_UP_TOKENS)
            self.backend.warm_started(arm)
            module = EvaluationModule(
                [*engine, arm],
                baseline=None,
                samples=self.backend.samples,
                every={one.name: EVERY for one in engine},
                on_records=note,
            )
            with interruptible():
                self.trainer.test(module, datamodule=self.data, verbose=False)
        finally:
            arm.close()
        records = self.folder / "records"
        records.mkdir(exist_ok=True)
        write_records(records / f"trial_{trial:04d}.jsonl", module.records)
        own = [record for record in module.records if record.arm == arm.name]
        drift = {"drift": self.reference.drift} if engine else {}
        return Measurement(log_speedups, {**figures_of(own), **drift})


def record_acceptance_counts(
    backend: StudyBackend, overrides: Mapping[str, Any], path: Path, tick: Callable[[], None]
) -> None:
    """Decode the stage's prompts with a wide tree, and write how often each rank path was accepted.

    Args:
        backend: Who answers.
        overrides: The recording's builder.
        path: File of the counts; written whole or not at all.
        tick: Called after every prompt.
    """
    counter = AcceptanceCounter()
    arm = backend.compose("acceptance counts", backend.study_config.with_overrides(overrides))
    for prompt in backend.data("count_acceptances").prompts:
        for sample in range(backend.samples):
            arm.decode_observed(prompt, sample, counter.observe)
        tick()
    counter.save(path)
