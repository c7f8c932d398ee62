"""Re-measuring the best few on prompts the search did not see, and promoting by what that says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optuna import Study
from optuna.trial import FrozenTrial
from typing_extensions import override

from specexp.bench.acceptance_counts import AcceptanceCounter
from specexp.bench.analysis import Analysis
from specexp.bench.arm import EngineArm
from specexp.bench.module import EvaluationModule
from specexp.bench.publish import Report
from specexp.bench.record import PromptRecord
from specexp.bench.statistics import paired_speedup, summarise
from specexp.bench.trainer import build_trainer, interruptible
from specexp.sweep.backend import EAGER, StudyBackend
from specexp.sweep.confirmed import Confirmed
from specexp.sweep.trials import confirmable, name_of_trial

if TYPE_CHECKING:
    from specexp.core.outcome import Outcome
    from specexp.core.parts import Parts
    from specexp.scheduling import TimeLine

AR = "engine"


class Watch(Analysis):
    """Counts what is accepted while candidates are confirmed, and keeps the time lines of the first prompt.

    Attributes:
        acceptance_counts: Counts by arm; empty where an arm has no steps to watch, and nothing is counted of several
            sequences decoded together.
        time_lines: Time lines by arm; empty where one sequence is decoded at a time.
    """

    name = "confirmation"

    def __init__(self) -> None:
        self.acceptance_counts: dict[str, AcceptanceCounter] = {}
        self.time_lines: dict[str, TimeLine] = {}

    @override
    def begin(self, arms: Mapping[str, Parts]) -> None:
        self.acceptance_counts = {name: AcceptanceCounter() for name in arms}
        self.time_lines = {}

    @override
    def observe(self, arm: str, outcome: Outcome) -> None:
        self.acceptance_counts[arm].observe(outcome)

    @override
    def observe_run(self, arm: str, prompt_id: str, timeline: TimeLine) -> None:
        self.time_lines.setdefault(arm, timeline)

    @override
    def report(self, records: Sequence[PromptRecord]) -> Report:
        return Report()  # pictures are drawn of the winner alone


@dataclass(frozen=True)
class Confirmation:
    """What a confirmation gave.

    Attributes:
        confirmed: The candidates, fastest first.
        records: Records of all arms.
        arms: The candidates' arms by name, closed.
        watch: What was seen of their steps.
    """

    confirmed: Sequence[Confirmed]
    records: Sequence[PromptRecord]
    arms: Mapping[str, EngineArm]
    watch: Watch

    @property
    def winner(self) -> Confirmed:
        """The fastest."""
        return self.confirmed[0]


def select(study: Study, best: int, of_each: str | None = None) -> list[FrozenTrial]:
    """The trials to confirm: the ``best`` fastest of the search, then the fastest of every choice of the key
    ``of_each`` or, without such a key, every known configuration.

    Only trials measured on every prompt and within the constraints are asked; a known configuration that
    failed is left out as well. Of a study with several objectives the trials that none dominates come first.
    """
    finished = confirmable(study)
    if len(study.directions) > 1:
        front = {trial.number for trial in study.best_trials}
        ranked = sorted(finished, key=lambda trial: (trial.number not in front, -trial.values[0]))
    else:
        sign = -1 if study.direction.name == "MAXIMIZE" else 1
        ranked = sorted(finished, key=lambda trial: sign * trial.values[0])
    if of_each is None:
        others = [trial for trial in finished if "known" in trial.user_attrs]
    else:
        others = list(
            {trial.params.get(of_each, trial.number): trial for trial in reversed(ranked)}.values()
        )[::-1]
    return ranked[:best] + [trial for trial in others if trial not in ranked[:best]]


def confirm(
    trials: Sequence[FrozenTrial],
    backend: StudyBackend,
    records_path: Path,
    tick: Callable[[], None],
    of_each: str | None = None,
) -> Confirmation:
    """Decode the prompts of the confirmation by every candidate, interleaved, and plainly, by us and by others.

    Args:
        trials: What is confirmed.
        backend: Who answers.
        records_path: File of all records; what an earlier confirmation left there is removed.
        tick: Called after every prompt.
        of_each: Key of the space whose choices are compared.
    """
    records_path.unlink(missing_ok=True)
    arms = {}
    for trial in trials:
        config = backend.study_config.with_overrides(trial.user_attrs["attributes"]["resolved"])
        arm = backend.compose(name_of_trial(trial), config)
        arms[arm.name] = backend.warm_started(arm)
    watch = Watch()
    module = EvaluationModule(
        [backend.plain(), *backend.other_arms(), *arms.values()],
        baseline=AR,
        records_path=records_path,
        samples=backend.samples,
        on_records=lambda records: tick(),
        analyses=[watch] if all(arm.shows_steps for arm in arms.values()) else [],
    )
    trainer = build_trainer(backend.study_config.config, enable_progress_bar=False)
    try:
        with interruptible():
            trainer.test(module, datamodule=backend.data("confirm"), verbose=False)
    finally:
        module.close()
    records = module.records
    confirmed = [_confirmed(trial, arm, records, of_each) for trial, arm in zip(trials, arms, strict=True)]
    return Confirmation(rank(confirmed), records, arms, watch)


def _confirmed(
    trial: FrozenTrial, arm: str, records: Sequence[PromptRecord], of_each: str | None
) -> Confirmed:
    summary = summarise(records, arm)
    attributes = dict(trial.user_attrs.get("attributes", {}))
    eager = any(record.arm == EAGER for record in records)
    return Confirmed(
        name=arm,
        trial=trial.number,
        chosen=tuple(_chosen(trial.params, "rank_paths" in attributes)),
        attributes=attributes,
        searched=trial.values[0] if trial.values else None,
        tokens_per_step=summary.tokens_per_step,
        tokens_per_second=summary.tokens_per_second,
        over_ar=paired_speedup(records, arm, AR),
        over_eager=paired_speedup(records, arm, EAGER) if eager else None,
        choice=None if of_each is None else str(trial.params.get(of_each, arm)),
    )


def _chosen(params: Mapping[str, Any], fixed_tree: bool) -> Iterator[str]:
    for key, value in params.items():
        if isinstance(value, str):
            yield value
        elif not fixed_tree or key.startswith("execution."):
            yield f"{key.rpartition('.')[2]}={value:.3g}"


def rank(confirmed: Sequence[Confirmed]) -> list[Confirmed]:
    """Fastest first by the confirmed speedup over AR; those whose speedup was refused last."""
    return sorted(confirmed, key=lambda one: (one.over_ar.refused is not None, -one.over_ar.mean_log_ratio))
