"""A study that is ready to be searched, as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.trial import FrozenTrial
from rich.console import Console

from specexp.config.sweep import Sweep
from specexp.sweep.bench import Bench
from specexp.sweep.confirmation import select
from specexp.sweep.plan import PLAN
from specexp.sweep.search import Deadlines
from specexp.sweep.study_config import StudyConfig, digest_of
from specexp.tracking.tracker import Tracker


@dataclass(frozen=True)
class PreparedStudy:
    """A study after its preparation: plain decoding is measured and acceptances are counted, so trials can run."""

    config: StudyConfig
    settings: Sweep  # without choices and known configurations that cannot be built
    bench: Bench
    trials: optuna.Study
    ends: Deadlines
    too_few: str  # the forecast, if the study takes longer than its time limit
    tracker: Tracker
    console: Console
    command: str

    @property
    def plan(self) -> Mapping[str, Any]:
        """The stored :class:`~specexp.sweep.plan.StudyPlan`."""
        plan: Mapping[str, Any] = self.trials.user_attrs[PLAN]
        return plan

    def say(self, sentence: str) -> None:
        """Print a sentence."""
        self.console.print(sentence, highlight=False, soft_wrap=True)


def chosen(settings: Sweep, trials: optuna.Study) -> list[FrozenTrial]:
    """Return the trials to confirm."""
    assert settings.confirm is not None
    most = trials.user_attrs.get(PLAN, {}).get("candidates")
    return select(trials, settings.confirm.best, settings.confirm.of_each)[:most]


def result_digest(workload: Mapping[str, Any], settings: Sweep, trials: optuna.Study) -> str:
    """Return a digest of everything on which a study's result depends, such as its workload."""
    assert settings.confirm is not None
    export = None if settings.export is None else settings.export.model_dump()
    learn = None if settings.learn is None else settings.learn.model_dump()
    prompts = trials.user_attrs.get(PLAN, {}).get("confirmed")
    digests = [trial.user_attrs.get("digest") for trial in chosen(settings, trials)]
    return digest_of([workload, settings.confirm.data, learn, prompts, digests, export])
