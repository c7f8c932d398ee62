"""The configurations of a study: each composed once, and measured once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from optuna import Trial
from optuna.trial import FrozenTrial, TrialState

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
    """Composes the configurations of a study, each once, for the sampler and for the objective.

    Args:
        bench: Composes them.
    """

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._digests: dict[str, str] = {}  # by overrides
        self._latest: tuple[str, Candidate] | None = None

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


def _key(overrides: Mapping[str, Any]) -> str:
    return json.dumps(overrides, sort_keys=True, default=str)
