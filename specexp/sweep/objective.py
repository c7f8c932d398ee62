"""One trial: draw a configuration, measure it prompt by prompt, tell the study."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from optuna import Trial
from optuna.exceptions import TrialPruned
from optuna.trial import FrozenTrial, TrialState

from specexp.bench.metrics import violation
from specexp.config.sweep import Sweep
from specexp.sweep.candidates import Bench, Candidate, CandidatePool, Measurement, Report, Watcher
from specexp.sweep.database import locked
from specexp.sweep.goals import MAX_DRAFT_NODES, figure_of
from specexp.sweep.space import Space
from specexp.sweep.trials import FINISHED
from specexp.tracking.names import SPEEDUP


class Objective:
    """Optuna's objective over a bench.

    A failing trial, and one whose parts do not go together, keeps its reason in the user attribute
    ``reason``. A trial that resolves to a configuration already finished is not measured: values and
    intermediate values are copied, and ``duplicate_of`` names the original. A pruned trial returns the mean
    so far, which helps the sampler, and carries ``pruned_at``: it is never confirmed. Known configurations
    are not pruned.
    """

    def __init__(
        self, settings: Sweep, bench: Bench, candidates: CandidatePool, watcher: Watcher | None = None
    ) -> None:
        self.settings = settings
        self.watcher = watcher
        self.bench = bench
        self.candidates = candidates
        self.space = Space(settings)

    def __call__(self, trial: Trial) -> float | tuple[float, ...]:
        """Run one trial."""
        try:
            return self._run(trial)
        except TrialPruned:
            raise
        except Exception as error:
            trial.set_user_attr("reason", f"{type(error).__name__}: {_one_line(error)}")
            raise

    def _run(self, trial: Trial) -> float | tuple[float, ...]:
        overrides = trial.user_attrs.get("overrides")
        if overrides is None:
            overrides = self.space.suggest(trial, self.bench.applies)
        candidate = self.candidates.take(overrides)
        same = self._claim(trial, candidate.digest)
        trial.set_user_attr("attributes", dict(candidate.attributes))
        original = _original(same, whole="known" in trial.user_attrs)
        if original is not None:
            return self._copy(trial, original)
        self._refuse_too_large(trial, candidate)
        if self.watcher is not None:
            self.watcher.begin(trial, candidate.attributes)
        measurement = self.bench.measure(candidate, self._watched(trial), trial.number)
        trial.set_user_attr("prompts", len(measurement.log_speedups))
        trial.set_user_attr("metrics", dict(measurement.metrics))
        self._constrain(trial, measurement.metrics)
        return self._values(measurement)

    def _claim(self, trial: Trial, digest: str) -> list[FrozenTrial]:
        """Sign the trial with its digest, and return the trials of the same configuration by number.

        Raises:
            ValueError: One of them is running, in another worker.
        """
        study = trial.study
        with locked(self.settings.storage, f"{study.study_name}: claim", wait=True):
            same = [
                other
                for other in study.get_trials(deepcopy=False)
                if other.user_attrs.get("digest") == digest and other.number != trial.number
            ]
            for other in same:
                if other.state is TrialState.RUNNING:
                    raise ValueError(f"trial {other.number} measures the same right now")
            trial.set_user_attr("digest", digest)
        return same

    def _watched(self, trial: Trial) -> Report:
        """The reporter, with the watcher told first."""
        report, watcher = self._reporter(trial), self.watcher
        if watcher is None:
            return report

        def told(prompt: int, log_speedup: float) -> bool:
            watcher.prompt(trial, prompt, log_speedup)
            return report(prompt, log_speedup)

        return told

    def _reporter(self, trial: Trial) -> Report:
        def report(prompt: int, log_speedup: float) -> bool:
            if not math.isfinite(log_speedup):
                raise ValueError(
                    f"prompt {prompt} gave a speedup of exp({log_speedup}); its decoding took no time or no "
                    "token"
                )
            if not self.settings.prunes:
                return False
            trial.report(log_speedup, prompt)
            if "known" in trial.user_attrs or not trial.should_prune():
                return False  # what others are compared with is measured on every prompt
            trial.set_user_attr("pruned_at", prompt + 1)
            return True

        # The pruner compares speedups; a study of another single objective must not be pruned by them.
        return report if set(self.settings.objectives) == {SPEEDUP} else lambda prompt, log_speedup: False

    def _values(self, measurement: Measurement) -> float | tuple[float, ...]:
        figures = {**measurement.metrics, SPEEDUP: fmean(measurement.log_speedups.values())}
        values = []
        for name in self.settings.objectives:
            value = figure_of(name, figures)
            if value is None:
                raise ValueError(f"objective {name} has no value here")
            values.append(value)
        return tuple(values) if len(values) > 1 else values[0]

    def _copy(self, trial: Trial, original: FrozenTrial) -> float | tuple[float, ...]:
        trial.set_user_attr("duplicate_of", original.number)
        for name in ("prompts", "pruned_at", "metrics", "infeasible"):
            if name in original.user_attrs:
                trial.set_user_attr(name, original.user_attrs[name])
        for name, excess in original.constraints.items():
            trial.set_constraint(name, excess)
        for prompt, log_speedup in original.intermediate_values.items():
            trial.report(log_speedup, prompt)
        if original.state is TrialState.PRUNED:
            raise TrialPruned
        values = tuple(original.values)
        return values if len(values) > 1 else values[0]

    def _refuse_too_large(self, trial: Trial, candidate: Candidate) -> None:
        """A tree of too many nodes is not worth measuring: the sampler learns that it is not feasible."""
        limit = self.settings.constraints.get(MAX_DRAFT_NODES)
        nodes = candidate.attributes.get("nodes")
        if limit is None or nodes is None:
            return
        trial.set_constraint(MAX_DRAFT_NODES, nodes - limit)
        if nodes > limit:
            trial.set_user_attr("infeasible", f"{nodes} nodes, {MAX_DRAFT_NODES} is {limit:g}")
            raise TrialPruned

    def _constrain(self, trial: Trial, metrics: Mapping[str, float]) -> None:
        for name, limit in self.settings.constraints.items():
            missed = None if name == MAX_DRAFT_NODES else violation(name, limit, metrics)
            if missed is None:
                continue
            trial.set_constraint(name, missed)
            if missed > 0:
                trial.set_user_attr("infeasible", f"{name} is {limit:g}, missed by {missed:g}")


def _original(same: Sequence[FrozenTrial], *, whole: bool) -> FrozenTrial | None:
    """The trial that measured a configuration, on every prompt if ``whole``; None where none did."""
    left_out = {"duplicate_of", *(["pruned_at"] if whole else [])}
    return next((one for one in same if one.state in FINISHED and not left_out & one.user_attrs.keys()), None)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:500]
