"""What benches over a composition share: candidates are overrides of it, measured on the same prompts, after the same
lessons.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specexp.bench import clock
from specexp.bench.acceptance_counts import HitCounter
from specexp.bench.arm import EngineArm
from specexp.bench.record import PromptRecord
from specexp.bench.statistics import summarise
from specexp.builders import StaticTree
from specexp.config import Generation
from specexp.core.tree import NodeKind
from specexp.sweep.composition import Composed, Composition
from specexp.sweep.drift import Reference
from specexp.sweep.objective import Candidate, Measurement, Report
from specexp.sweep.study import digest_of

if TYPE_CHECKING:
    from lightning import Trainer
    from transformers import PreTrainedModel

    from specexp.core.latency import LatencyProfile
    from specexp.data import Prompt
    from specexp.data.prompts import PromptDataModule
    from specexp.drafters.draft_source import DraftSource

CANDIDATES = {
    NodeKind.POINT_MASS: "top-k",
    NodeKind.DRAWN: "drawn",
    NodeKind.DRAWN_WITH_REPLACEMENT: "drawn with replacement",
}
"""What a fixed shape's ranks count."""


class CompositionBench(ABC):
    """Measures candidates of a composition against plain decoding.

    Args:
        composition: what candidates are overrides of.
        data: the prompts, in one fixed order.
        folder: of the study.
        latency: by which seconds are modelled; measured if None.

    Attributes:
        tick: called after every prompt, for a progress bar.
        samples: continuations of every prompt, one after the other.
        lessons: prompts that a candidate's drafter and controller learn from before it is measured.
        reference: plain decoding's seconds per token, once :meth:`load_reference` or :meth:`measure_reference` has run.
        engine: plain decoding.
    """

    engine: EngineArm

    def __init__(
        self,
        composition: Composition,
        data: PromptDataModule,
        folder: Path,
        latency: LatencyProfile | None,
    ) -> None:
        self.composition = composition
        self.data = data
        self.prompts = data.prompts
        self.folder = folder
        self.latency = latency
        self.generation: Generation = composition.generation()
        self.samples = self.generation.samples
        self.lessons: Sequence[Prompt] = ()
        self.tick: Callable[[], None] = lambda: None
        self.reference = Reference({})

    @property
    @abstractmethod
    def draft(self) -> PreTrainedModel | DraftSource | None:
        """What a candidate's draft model has its answers from."""

    @abstractmethod
    def arm(self, name: str, composed: Composed) -> EngineArm:
        """A candidate as an arm; one that keeps something running is to be closed.

        Raises:
            ValueError: the parts do not go together, or with the target.
        """

    @abstractmethod
    def load_reference(self) -> bool:
        """Take plain decoding's seconds where they are known without decoding; whether they are."""

    @abstractmethod
    def measure_reference(self) -> None:
        """Measure plain decoding on every prompt, and keep it for a resumed study."""

    @abstractmethod
    def measure(self, candidate: Candidate, report: Report, trial: int) -> Measurement:
        """Decode the prompts in order until the last, or until ``report`` says stop."""

    @cached_property
    def trainer(self) -> Trainer:
        """Drives every test; no bar of Lightning's own, for the sweep shows one."""
        from specexp.bench.trainer import build_trainer

        return build_trainer(self.composition.config, enable_progress_bar=False)

    def applies(self, key: str, overrides: Mapping[str, Any]) -> bool:
        """Whether a dotted key exists in the composition with these overrides."""
        return self.composition.applies(key, overrides)

    def compose(self, overrides: Mapping[str, Any]) -> Composed:
        """New objects of a candidate.

        Raises:
            ConfigError: they cannot be made, or do not go together.
        """
        return self.composition.compose(overrides, self.draft)

    def prepare(self, overrides: Mapping[str, Any]) -> Candidate:
        """Compose a candidate.

        Raises:
            ValueError: the parts cannot be made, or do not go together or with the target.
        """
        composed = self.compose(overrides)
        arm = self.arm("candidate", composed)
        resolved = self.composition.resolved(overrides)
        attributes: dict[str, Any] = {"resolved": resolved}
        if composed.execution is not None:
            attributes["execution"] = resolved["execution"] or {
                "class_path": type(composed.execution).__name__,
                "init_args": {},
            }
        attributes |= self.said_of(arm)
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

    def said_of(self, arm: EngineArm) -> dict[str, Any]:
        """Attributes of a candidate that tell what its figures are."""
        return {} if self.latency is None else {"clock": self.latency.label}

    def taught(self, arm: EngineArm) -> EngineArm:
        """The arm, having learned from :attr:`lessons`, from where every later reset of it starts."""
        if self.lessons:
            self.teach(arm)
            arm.remember()
        return arm

    def teach(self, arm: EngineArm) -> EngineArm:
        """Decode the lessons from the initial state."""
        arm.reset()
        for prompt in self.lessons:
            arm.decode(prompt)
        return arm


def record_hits(
    bench: CompositionBench, overrides: Mapping[str, Any], prompts: Sequence[Prompt], path: Path
) -> None:
    """Decode ``prompts`` with a wide tree and write how often each rank path was accepted.

    Args:
        bench: target and composition.
        overrides: the recording's builder.
        prompts: other prompts than the search's.
        path: the hits file; written whole or not at all.
    """
    counter = HitCounter()
    arm = bench.arm("record hits", bench.compose(overrides))
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
