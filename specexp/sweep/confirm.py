"""The confirmation: the best few measured again on prompts the search did not see, and the one that is deployed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna
from optuna.trial import FrozenTrial
from typing_extensions import override

from specexp.bench.analysis import AcceptanceCounter, Analysis
from specexp.bench.arm import Arm, EngineArm
from specexp.bench.experiment import EAGER
from specexp.bench.module import EvaluationModule
from specexp.bench.publish import Report
from specexp.bench.record import PromptRecord
from specexp.bench.statistics import Speedup, paired_speedup, summarise
from specexp.sweep.study import Study
from specexp.sweep.trials import Confirmed, confirmable, name_of_trial

if TYPE_CHECKING:
    from specexp.core.outcome import Outcome
    from specexp.core.parts import Parts
    from specexp.data import Prompt
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
    """The result of a confirmation."""

    confirmed: Sequence[Confirmed]
    records: Sequence[PromptRecord]  # records of all arms, of this confirmation and those it is pooled with
    arms: Mapping[str, EngineArm]  # the candidates' arms by name, closed
    watch: Watch  # what was seen of their steps
    confirmations: int = 1

    @property
    def winner(self) -> Confirmed:
        """The fastest."""
        return self.confirmed[0]


def select(study: optuna.Study, best: int, of_each: str | None = None) -> list[FrozenTrial]:
    """The trials to confirm: the ``best`` fastest of the search, then the fastest of every choice of the key
    ``of_each`` or, without such a key, every known configuration.

    Only trials measured on every prompt and within the constraints are taken, so that a known configuration that failed
    is left out as well. Of a study with several objectives the trials that none dominates come first.
    """
    finished = confirmable(study)
    several = len(study.directions) > 1
    front = {trial.number for trial in study.best_trials} if several else set()
    sign = -1 if several or study.direction.name == "MAXIMIZE" else 1
    ranked = sorted(finished, key=lambda trial: (trial.number not in front, sign * trial.values[0]))
    if of_each is None:
        others = [trial for trial in finished if "known" in trial.user_attrs]
    else:
        fastest = {trial.params.get(of_each, trial.number): trial for trial in reversed(ranked)}
        others = [*reversed(fastest.values())]
    return ranked[:best] + [trial for trial in others if trial not in ranked[:best]]


def confirm(
    trials: Sequence[FrozenTrial],
    study: Study,
    tick: Callable[[], None],
    of_each: str | None = None,
    earlier: Sequence[PromptRecord] = (),
    confirmations: int = 1,
) -> Confirmation:
    """Decode the prompts of the confirmation by every candidate, interleaved, and plainly, by us and by others.

    Every candidate starts as a deployment of it would, see :meth:`~specexp.sweep.study.Study.deployed`. A further
    confirmation is further samples of the same prompts, paired with plain decoding's of that time.
    """
    arms = {}
    for trial in trials:
        config = study.config.with_overrides(trial.user_attrs["attributes"]["resolved"])
        arm = study.compose(name_of_trial(trial), config)
        arms[arm.name] = study.deployed(arm)
    watch = Watch()
    module = EvaluationModule(
        [study.plain(), *study.other_arms(), *arms.values()],
        baseline=AR,
        samples=study.samples,
        first_sample=(confirmations - 1) * study.samples,
        on_records=lambda records: tick(),
        analyses=[watch] if all(arm.shows_steps for arm in arms.values()) else [],
    )
    try:
        study.test(module, "confirm")
    finally:
        module.close()
    records = [*earlier, *module.records]
    confirmed = [_confirmed(trial, arm, records, of_each) for trial, arm in zip(trials, arms, strict=True)]
    # Fastest first; those whose speedup was refused last.
    confirmed.sort(key=lambda one: (one.over_ar.refused is not None, -one.over_ar.mean_log_ratio))
    return Confirmation(confirmed, records, arms, watch, confirmations)


def cold_figures(one: Confirmed, study: Study, records_path: Path) -> tuple[float, Speedup] | None:
    """Tokens per step of a candidate that has learned nothing before a prompt, and its speedup over plain decoding, on
    the prompts of the confirmation; None where it does not learn from prompt to prompt.

    Args:
        records_path: File of its records and of plain decoding's beside them.
    """
    arm = study.compose(one.name, study.config.with_overrides(one.attributes["resolved"]))
    if not arm.parts.keeps_learning:
        arm.close()
        return None
    records_path.unlink(missing_ok=True)
    cold = _FirstAnswers(study.warm_started(arm))
    module = EvaluationModule(
        [study.plain(), cold], baseline=AR, records_path=records_path, samples=study.samples
    )
    try:
        study.test(module, "confirm")
    finally:
        module.close()
    speedup = paired_speedup(module.records, cold.name, AR)
    return summarise(module.records, cold.name).tokens_per_step, speedup


class _FirstAnswers(Arm):
    """A candidate that forgets what it learned before every prompt, as a deployment answers its first request."""

    def __init__(self, arm: EngineArm) -> None:
        self.arm = arm
        self.name = f"{arm.name}, cold"
        self.generation, self.verifier, self.latency = arm.generation, arm.verifier, arm.latency
        self.dtype, self.device, self.state = arm.dtype, arm.device, "cold"

    @override
    def decode(self, prompt: Prompt, sample: int = 0, max_new_tokens: int | None = None) -> PromptRecord:
        self.arm.reset()
        return replace(self.arm.decode(prompt, sample, max_new_tokens), arm=self.name, state=self.state)

    @override
    def close(self) -> None:
        self.arm.close()


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


def promoted(
    candidates: Sequence[Confirmed], records: Sequence[PromptRecord], deployed: int | None = None
) -> Confirmed | None:
    """The candidate to deploy; None where plain decoding is to be.

    The fastest of those whose interval lies above plain decoding. One that is deployed already, and whose does, stays
    until another one is faster than it, prompt by prompt, by the interval.

    Args:
        candidates: What was confirmed and can be exported, fastest first.
        deployed: Trial that is deployed already; None where none is.
    """
    gains = [one for one in candidates if one.over_ar.is_faster]
    if not gains:
        return None
    fastest = gains[0]
    held = next((one for one in gains if one.trial == deployed), fastest)
    if held is not fastest and paired_speedup(records, fastest.name, held.name).is_faster:
        return fastest
    return held
