"""The bench of real decoding: models and prompts loaded once, candidates measured one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning import LightningModule, Trainer

from specexp.builders import StaticTree
from specexp.composition import Parts
from specexp.config import ConfigError
from specexp.data import Prompt
from specexp.decoder import Decoder
from specexp.evaluation import clock
from specexp.evaluation.arm import EngineArm, Generation
from specexp.evaluation.decoder_arm import DecoderArm
from specexp.evaluation.execution_arm import ExecutionArm
from specexp.evaluation.groups import Groups
from specexp.evaluation.record import PromptRecord, write_records
from specexp.evaluation.statistics import summarise
from specexp.evaluation.trainer import build_trainer
from specexp.execution import Serial, SerialSpeculative
from specexp.hits import HitCounter
from specexp.models.language_model import LanguageModel
from specexp.search.composition import Composed, Composition
from specexp.search.drift import Reference
from specexp.search.objective import Candidate, Measurement, Report
from specexp.search.study import digest_of
from specexp.search.trial_module import TrialModule, decode_all, seconds_per_token
from specexp.tree import NodeKind

if TYPE_CHECKING:
    from specexp.data.prompts import PromptDataModule
    from specexp.models.pair import ModelPair

WARM_UP_TOKENS = 8
CANDIDATES = {
    NodeKind.POINT_MASS: "top-k",
    NodeKind.DRAWN: "drawn",
    NodeKind.DRAWN_WITH_REPLACEMENT: "drawn with replacement",
}
"""What a fixed shape's ranks count."""


class LiveBench:
    """Measures candidates against AR on the prompts of the search, or models their seconds where the experiment has a
    latency profile.

    Args:
        composition: what candidates are overrides of.
        pair: the models.
        data: the prompts of the search, in one fixed order.
        folder: of the study: keeps AR's seconds and every trial's records.

    Raises:
        ConfigError: several sequences are decoded for every prompt and a latency profile is to model their seconds.
        TaskFileError: a task's file cannot be read.

    Attributes:
        tick: called after every prompt, for a progress bar.
        samples: continuations, or searches, of every prompt, one after the other; a group is one.
        model: the target, wrapped once for all candidates.
        trainer: drives every test.
        lessons: prompts that a candidate's drafter and controller learn from before it is measured.
        reference: AR's seconds per token, once :meth:`load_reference` or :meth:`measure_reference` has run.
    """

    def __init__(
        self,
        composition: Composition,
        pair: ModelPair,
        data: PromptDataModule,
        folder: Path,
    ) -> None:
        self.composition = composition
        self.pair = pair
        self.model = LanguageModel(pair.target)
        self.data = data
        self.prompts = data.prompts
        self.folder = folder
        self.lessons: Sequence[Prompt] = ()
        self.tick: Callable[[], None] = lambda: None
        self.generation: Generation = composition.generation()
        self.latency = composition.latency()
        self.groups = self._groups() if composition.grouped else None
        grouped = self.groups is not None and not self.groups.problems
        self.samples = 1 if grouped else self.generation.samples
        plain = Parts(None, None, composition.verifier())
        self.engine = self.arm("engine", Composed(plain, Serial()))
        self.reference = Reference({})
        # no bar of Lightning's own: the sweep shows one
        self.trainer = build_trainer(composition.config, enable_progress_bar=False)
        self._reference_path = folder / "reference.json"
        self._workload = digest_of(composition.workload())

    def _groups(self) -> Groups:
        """What all arms have in common."""
        if self.latency is not None:
            raise ConfigError(
                f"{self.composition.config.source_of(('latency',))}: latency {self.latency.name!r} cannot model the "
                "seconds of several sequences decoded for a prompt: leave it out"
            )
        groups = Groups(self.composition.config, self.pair, self.model)
        groups.problems = self.composition.problems()
        return groups

    def taught(self, arm: DecoderArm | ExecutionArm) -> DecoderArm | ExecutionArm:
        """The arm, having learned from :attr:`lessons`, from where every later reset of it starts."""
        if not self.lessons:
            return arm
        if isinstance(arm, DecoderArm):
            self._teach(arm)
            arm.remember()
            return arm
        assert self.groups is not None
        arm.close()
        # One after the other, so that what is learned does not depend on timing; the parts are the arm's own.
        one_by_one = self._teach(self.groups.arm("lessons", SerialSpeculative(), arm.parts))
        strategy = one_by_one.strategy
        arm.controller_state = deepcopy(strategy.controller.state_dict())
        arm.drafter_state = {} if strategy.drafter is None else deepcopy(strategy.drafter.state_dict())
        return arm

    def _teach(self, arm: EngineArm) -> EngineArm:
        arm.reset()
        for prompt in self.lessons:
            arm.decode(prompt)
        return arm

    def applies(self, key: str, overrides: Mapping[str, Any]) -> bool:
        """Whether a dotted key exists in the composition with these overrides."""
        return self.composition.applies(key, overrides)

    def arm(self, name: str, composed: Composed) -> DecoderArm | ExecutionArm:
        """A candidate as an arm; one that decodes several sequences is to be closed.

        Raises:
            ValueError: the parts do not go together or with the target.
        """
        if self.groups is not None:
            assert composed.execution is not None
            return self.groups.arm(name, composed.execution, composed.parts)
        decoder = Decoder(self.model, *composed.parts)
        return DecoderArm(name, decoder, self.pair.tokenizer, self.generation, latency=self.latency)

    def prepare(self, overrides: Mapping[str, Any]) -> Candidate:
        """Compose a candidate.

        Raises:
            ValueError: the parts cannot be made, or do not go together or with the target.
        """
        composed = self.composition.compose(overrides, self.pair.draft)
        self.arm("candidate", composed)
        resolved = self.composition.resolved(overrides)
        attributes: dict[str, Any] = {"resolved": resolved}
        if composed.execution is not None:
            attributes["execution"] = resolved["execution"] or {
                "class_path": type(composed.execution).__name__,
                "init_args": {},
            }
        if self.latency is not None:
            attributes["clock"] = self.latency.label
        builder = composed.parts.builder
        made_of = dict(resolved)
        if builder is not None:
            attributes["nodes"] = builder.max_nodes
        if isinstance(builder, StaticTree):
            # Whatever class and arguments led to it, the same rank paths are the same tree.
            made_of["builder"] = attributes["rank_paths"] = builder.rank_paths
            attributes["candidates"] = CANDIDATES[builder.kind]
            if builder.kind is not NodeKind.POINT_MASS:
                made_of["candidates"] = attributes["candidates"]
            attributes["depth"] = builder.shape.max_depth
        return Candidate(digest_of(made_of), attributes, composed)

    def load_reference(self) -> bool:
        """Take AR's seconds that an earlier process of this study measured, or those of the latency profile for answers
        of full length, where a token is a plain step; whether there are any.
        """
        if self.latency is not None:
            self.reference = Reference({prompt.prompt_id: self._modelled(prompt) for prompt in self.prompts})
            return True
        kept = Reference.load(self._reference_path, self._workload)
        if kept is None or any(prompt.prompt_id not in kept.seconds_per_token for prompt in self.prompts):
            return False
        self.reference = kept
        return True

    def _modelled(self, prompt: Prompt) -> float:
        """AR's seconds per token on a prompt by the latency profile."""
        assert self.latency is not None
        wanted = min(self.generation.max_new_tokens, self.model.context_limit - len(prompt.token_ids))
        tokens = max(wanted, 1)
        return self.latency.plain_seconds(len(prompt.token_ids), tokens) / tokens

    def measure_reference(self) -> None:
        """Measure AR on every prompt, and keep it for a resumed study."""
        self.engine.decode(self.prompts[0], max_new_tokens=WARM_UP_TOKENS)
        seconds = {}
        for prompt in self.prompts:
            seconds[prompt.prompt_id] = seconds_per_token(decode_all(self.engine, prompt, self.samples))
            self.tick()
        self.reference = Reference(seconds)
        self.reference.save(self._reference_path, self._workload)

    def measure(self, candidate: Candidate, report: Report, trial: int) -> Measurement:
        """Decode the prompts in order until the last, or until ``report`` says stop."""
        arm = self.arm(f"trial {trial}", candidate.parts)
        engine = self.engine if self.latency is None else None  # a modelled clock does not drift
        try:
            arm.decode(self.prompts[0], max_new_tokens=WARM_UP_TOKENS)
            self.taught(arm)
            module = TrialModule(arm, engine, self.reference, self.samples, report, self.tick)
            run_test(self.trainer, module, self.data)
        finally:
            arm.close()
        records = self.folder / "records"
        records.mkdir(exist_ok=True)
        write_records(records / f"trial_{trial:04d}.jsonl", module.records)
        own = [record for record in module.records if record.arm == arm.name]
        drift = {} if engine is None else {"drift": self.reference.drift}
        return Measurement(module.log_speedups, {**metrics_of(own), **drift})


def record_hits(
    bench: LiveBench, overrides: Mapping[str, Any], prompts: Sequence[Prompt], path: Path
) -> None:
    """Decode ``prompts`` with a wide tree and write how often each rank path was accepted.

    Args:
        bench: target and composition.
        overrides: the recording's builder.
        prompts: other prompts than the search's.
        path: the hits file; written whole or not at all.
    """
    counter = HitCounter()
    arm = bench.arm("record hits", bench.composition.compose(overrides, bench.pair.draft))
    for prompt in prompts:
        for sample in range(bench.samples):
            arm.replay(prompt, sample, counter.observe)
        bench.tick()
    counter.save(path)


def metrics_of(records: Sequence[PromptRecord]) -> dict[str, float]:
    """Means per target pass and decode speed, over all tokens of one arm's records; modelled ones are called so.

    Of groups also the share of the time in which the target was busy.
    """
    summary = summarise(records, records[0].arm)
    before = clock.key(summary.clock)
    phases = {phase: sum(record.seconds[phase] for record in records) for phase in records[0].seconds}
    groups = [record.group for record in records if record.group is not None]
    busy = sum(group.busy_seconds for group in groups)
    return {
        **({"target_utilisation": busy / sum(group.wall_seconds for group in groups)} if groups else {}),
        "tokens_per_step": summary.tokens_per_step,
        "drafted_nodes": summary.nodes_per_step,
        "draft_passes": summary.draft_passes_per_step,
        f"{before}tokens_per_second": summary.tokens_per_second,
        f"{before}decode_seconds": sum(record.decode_seconds for record in records),
        **{f"{before}seconds/{phase}": spent for phase, spent in phases.items()},
    }


def run_test(trainer: Trainer, module: LightningModule, data: PromptDataModule) -> None:
    """``Trainer.test`` that can be interrupted: Lightning turns a KeyboardInterrupt into an exit."""
    try:
        trainer.test(module, datamodule=data, verbose=False)
    except SystemExit as interrupt:
        raise KeyboardInterrupt from interrupt
