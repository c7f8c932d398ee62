"""The configurations of a study: each composed once, and measured once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from optuna import Study, Trial
from optuna.trial import FrozenTrial, TrialState

from specexp.sweep.lock import locked

Report = Callable[[int, float], bool]
"""Called with prompt index and log(AR seconds per token / candidate's seconds per token); true means: stop here."""


@dataclass(frozen=True)
class Candidate:
    """A configuration ready to be measured.

    Attributes:
        digest: The same for two configurations that would run the same, such as two ways to one tree.
        attributes: What tables tell about it: ``nodes``, of a fixed shape also ``depth``, ``rank_paths`` and
            ``candidates`` (what its ranks count), and ``resolved``, its parts, as JSON values.
        arm: What the bench decodes with.
    """

    digest: str
    attributes: Mapping[str, Any]
    arm: Any = None


@dataclass(frozen=True)
class Measurement:
    """What measuring gave.

    Attributes:
        log_speedups: Speedup over plain decoding by prompt index, as a logarithm.
        metrics: Figures of all prompts together by name, such as ``tokens_per_step``.
    """

    log_speedups: Mapping[int, float]
    metrics: Mapping[str, float] = field(default_factory=dict)


class Watcher(Protocol):
    """Told of every trial that is measured, as it goes."""

    def begin(self, trial: Trial, attributes: Mapping[str, Any]) -> None:
        """A trial is about to be measured, whose candidate has these attributes."""

    def prompt(self, trial: Trial, place: int, log_speedup: float) -> None:
        """A prompt of it was measured."""


class Bench(Protocol):
    """Where candidates are measured: all on the same prompts in the same order, each from its initial state."""

    def applies(self, key: str, overrides: Mapping[str, Any]) -> bool:
        """Whether a dotted key exists in the composition with these overrides."""

    def prepare(self, overrides: Mapping[str, Any]) -> Candidate:
        """Compose a candidate; ValueError, in one sentence, where its parts do not go together."""

    def measure(self, candidate: Candidate, report: Report, trial: int) -> Measurement:
        """Decode the prompts in order until the last, or until ``report`` says stop."""


class CandidatePool:
    """Composes what a study asks for, and knows what it has measured.

    The sampler asks it whether a suggestion is new, the objective whether a trial that was asked for repeats another.

    Args:
        study: The study, whose finished trials hold the digests of what was measured.
        bench: What composes.
    """

    def __init__(self, study: Study, bench: Bench) -> None:
        self._study = study
        self._bench = bench
        self._digests: dict[str, str] = {}  # by overrides
        self._latest: tuple[str, Candidate] | None = None
        self._claimed: tuple[int, str] | None = None  # by the latest trial

    def digest(self, overrides: Mapping[str, Any]) -> str:
        """A configuration's digest; one that cannot be composed is only like itself."""
        key = _key(overrides)
        if key not in self._digests:
            try:
                self._latest = key, self._bench.prepare(overrides)
                self._digests[key] = self._latest[1].digest
            except Exception:  # the trial asks again, and records why
                self._digests[key] = key
        return self._digests[key]

    def take(self, overrides: Mapping[str, Any]) -> Candidate:
        """The candidate, composed for its digest or now.

        Raises:
            ValueError: The parts do not go together.
        """
        latest, self._latest = self._latest, None
        return (
            latest[1]
            if latest is not None and latest[0] == _key(overrides)
            else self._bench.prepare(overrides)
        )

    @staticmethod
    def measured(trials: Iterable[FrozenTrial]) -> set[str]:
        """Digests of what was measured, or is being measured by any worker, among all trials."""
        failed = TrialState.FAIL
        return {
            trial.user_attrs["digest"]
            for trial in trials
            if trial.state is not failed and "digest" in trial.user_attrs
        }

    def claim(self, trial: Trial | FrozenTrial, digest: str) -> list[FrozenTrial]:
        """Say of a trial what it is about to measure, unless another worker measures the same right now.

        Returns:
            The trials of the same configuration, in the order of their numbers; where one of them is running, nothing
            was said.
        """
        if self._claimed == (trial.number, digest):
            return []  # when it was drawn
        with locked(self._study, "claim", wait=True):
            same = [
                other
                for other in self._study.get_trials(deepcopy=False)
                if other.user_attrs.get("digest") == digest and other.number != trial.number
            ]
            if not any(other.state is TrialState.RUNNING for other in same):
                self._study._storage.set_trial_user_attr(trial._trial_id, "digest", digest)
                self._claimed = trial.number, digest
        return same


def _key(overrides: Mapping[str, Any]) -> str:
    return json.dumps(overrides, sort_keys=True, default=str)
