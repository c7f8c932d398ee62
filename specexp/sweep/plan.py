"""The plan of a study: the number of prompts in each stage, how long these take, and how many fit in the time limit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from math import ceil
from time import time
from typing import Any, Self

import optuna

from specexp.base.messages import counted
from specexp.bench.equality import SECONDS
from specexp.config.sweep import Categorical, Sweep
from specexp.sweep.bench import EVERY, Bench
from specexp.sweep.confirmation import COMMON
from specexp.sweep.search import Deadlines
from specexp.sweep.space import Space

PLAN = "plan"
"""Name of the study attribute that holds the plan."""
FEWEST = 6
"""Minimum number of prompts in a trial. With fewer, there is too little data for the pruner and the intervals."""
BREADTH = 3
"""Minimum number of prompts in a trial if not even the known configurations, one for each method, would fit."""
FEWEST_CONFIRMED = 8
TOO_FEW = "which are too few"
SEARCHING = 0.6
"""Share of the time that the search and its preparation may take. The rest is left for the confirmation."""
COLD = 2
"""Number of arms that decode once more if the winner learns: it starts cold, and plain decoding is repeated."""
OTHERS = 1 + COLD
"""Number of other arms in a confirmation: plain decoding, and those that start cold."""
EAGER_FACTOR = 10
"""Prompts that plain decoding decodes in the time that Hugging Face's loop takes for one, roughly, on a CPU."""
AFTER_SECONDS = SECONDS + 10
"""Seconds reserved after the confirmation for the comparison in float32 and the report."""


@dataclass(frozen=True)
class StudyPlan:
    """The sizes of a study's stages."""

    trials: int
    prompts: int  # in each trial
    counted: int  # prompts for the acceptance counts
    learned: int  # prompts that each candidate learns from before it is measured
    best: int  # minimum number of confirmed candidates
    candidates: int  # maximum number of confirmed candidates
    confirmed: int  # minimum number of prompts of the confirmation; more are decoded if time is left
    known: int = 0  # trials to measure in any case, such as one of each method
    others: int = OTHERS  # arms of the confirmation that are not candidates, in prompts of plain decoding

    @classmethod
    def of(cls, settings: Sweep, bench: Bench, trials: int) -> Self:
        """Return a plan with the configured sizes, given the number of trials that are left."""
        stage, known = settings.confirm, settings.known

        def prompts(name: str) -> int:
            return 0 if getattr(settings, name) is None else len(bench.data(name).prompts)

        best = 0 if stage is None else stage.best
        others = len(known)
        if stage is not None and stage.of_each is not None:
            entry, space = settings.space[stage.of_each], Space(settings)
            outside = sum(space.params_of(one.overrides) is None for one in known)
            others = outside + (len(entry.choices) if isinstance(entry, Categorical) else 0)
        sizes = len(bench.data().prompts), prompts("count_acceptances"), prompts("learn")
        eager = EAGER_FACTOR if bench.config.pair.device == "cpu" else 1
        arms = OTHERS + (eager if bench.other_arms() else 0)
        return cls(trials, *sizes, best, best + others if best else 0, prompts("confirm"), len(known), arms)

    @property
    def trial(self) -> float:
        """Number of prompts that a trial decodes, including the warm start and repeated plain decoding."""
        return self.prompts * (1 + 1 / EVERY) + self.learned

    @property
    def search(self) -> float:
        """Number of prompts that are decoded up to the end of the search."""
        return self.prompts + self.counted + self.trials * self.trial

    @property
    def confirmation(self) -> float:
        """Number of prompts that the confirmation decodes. Every candidate first learns from the search's prompts."""
        learned = self.candidates * (self.prompts + self.learned)
        common = min(self.confirmed, COMMON)
        only_best = (self.confirmed - common) * (min(self.best, self.candidates) + 1)  # and plain decoding
        return learned + common * (self.candidates + self.others) + only_best

    def within(self, decoded: float, fixed: bool) -> StudyPlan:
        """Return the plan reduced to about ``decoded`` prompts, but not below the minimum of each stage.

        Prompts are reduced first, and trials last. If ``fixed``, a trial's prompts are not reduced, because earlier
        trials were measured on them.
        """
        if self.search + self.confirmation <= decoded:
            return self
        share = decoded * SEARCHING if self.candidates else decoded
        prompts = _clamp(share / (self.trials * (1 + 1 / EVERY) + 2), FEWEST, self.prompts)
        if share < self.known * prompts * (1 + 1 / EVERY):  # breadth before depth
            prompts = _clamp(share / (self.known * (1 + 1 / EVERY) + 2), BREADTH, prompts)
        prompts = self.prompts if fixed else prompts
        left = decoded - share
        learned = prompts + self.learned
        fewest = min(FEWEST_CONFIRMED, self.confirmed)
        candidates = _clamp((left - self.others * fewest) / (learned + fewest), self.best, self.candidates)
        sizes = {"prompts": prompts, "counted": min(self.counted, prompts), "candidates": candidates}
        cut = replace(self, trials=0, **sizes)
        fitting = (one for one in range(self.confirmed, fewest, -1) if replace(cut, confirmed=one).confirmation <= left)
        cut = replace(cut, confirmed=next(fitting, fewest))
        trials = (decoded - cut.confirmation - cut.search) / cut.trial
        return replace(cut, trials=_clamp(trials, min(1, self.trials), self.trials))

    def minutes_for(self, confirmed: int, seconds: float) -> int:
        """Return a time limit that lets all candidates be confirmed on ``confirmed`` prompts.

        Args:
            seconds: Plain decoding's seconds per prompt.
        """
        decoded = replace(self, confirmed=confirmed).confirmation / (1 - SEARCHING)
        return ceil((decoded * seconds + AFTER_SECONDS) / 60) + 1  # one for loading

    def forecast(self, seconds: float, minutes: float | None, start: float = 0.0) -> str:
        """Return an upper bound on the duration and plain decoding's ``seconds`` per prompt, in sentences.

        ``start`` is the number of seconds in which a candidate's server starts.
        """
        starts = (self.trials + self.candidates) * start
        whole = ((self.search + self.confirmation) * seconds + starts + AFTER_SECONDS) / 60
        trials = f"{'' if minutes is None else 'about '}{counted(self.trials, 'trial')}"
        confirmed = f", then at most {counted(self.candidates, 'candidate')} on {min(self.confirmed, COMMON)} others"
        given = "" if minutes is None or whole < 1.1 * minutes else f" instead of {minutes:g}, {TOO_FEW}"
        return (
            f"This takes at most about {counted(max(round(whole), 1), 'minute')}{given}: {trials} on "
            f"{counted(self.prompts, 'prompt')}{confirmed if self.confirmed else ''}. Plain decoding takes "
            f"{seconds:.1f} s a prompt here, and drafting about as much or less."
            + (f" A server starts in {start:.0f} s." if start else "")
            + (" The search ends early, with fewer trials." if given else "")
        )


def fit_plan(
    settings: Sweep,
    bench: Bench,
    trials: optuna.Study,
    started: float,
    done: int,
    deadline: Callable[[Mapping[str, Any], float, float], float],
) -> tuple[Deadlines, str]:
    """Fit a study into ``sweep.minutes``, reduce the bench's prompts, and store the plan for other processes.

    If plain decoding's seconds are modelled, only the search is limited.

    Args:
        started: When this start of the study began, in seconds since the epoch.
        done: Number of finished trials; if there are any, the prompts of a trial are not reduced.
        deadline: Returns the end of the search, given the stored plan, the minutes, and the end for this process.

    Returns the deadlines, and the expected duration as sentences, which are empty if seconds are modelled.
    """
    seconds, minutes = bench.reference.per_prompt, settings.minutes
    kept: Mapping[str, Any] = trials.user_attrs.get(PLAN, {})
    plan = StudyPlan.of(settings, bench, max(settings.n_trials - done, 0))
    ends = Deadlines()
    if minutes is not None:
        left = 60 * minutes - (time() - started) - AFTER_SECONDS
        if seconds and kept.get("minutes") == minutes:
            plan = replace(plan, **{name: kept[name] for name in ("counted", "candidates", "confirmed")})
        elif seconds:
            plan = plan.within(left / seconds, fixed=bool(done or kept))
        reserved = plan.confirmation * seconds if seconds else (1 - SEARCHING) * left
        last = None if not seconds else time() + left - COLD * min(plan.confirmed, COMMON) * seconds
        ends = Deadlines(deadline(kept, minutes, time() + left - reserved), reserved if seconds else 0.0, last)
    bench.cut(plan.prompts, plan.counted)
    trials.set_user_attr(PLAN, {**asdict(plan), "minutes": minutes, "until": ends.search})
    return ends, plan.forecast(seconds, minutes, bench.reference.start) if seconds else ""


def _clamp(value: float, low: int, high: int) -> int:
    return min(max(int(value), low), high)
