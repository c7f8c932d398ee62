"""A table of a search's progress: the best so far with its interval, the trials by state, and the time that is left."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING

from optuna import Study
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial

from specexp.sweep.trials import (
    confirmable,
    distinct_finished,
    interval_of,
    is_modelled,
    name_of_trial,
    state_of,
)

if TYPE_CHECKING:
    from rich.table import Table

_WORDS = {
    "pruned": "pruned",
    "failed": "failed",
    "infeasible": "over a limit",
    "duplicate": "measured before",
}


class ProgressTable:
    """A table that is drawn anew after every trial.

    Args:
        objectives: Names of the study's objectives, the first of which ranks.
        wanted: Distinct finished trials that end the search.
        clock: Seconds, from any zero.
    """

    def __init__(
        self, objectives: Sequence[str], wanted: int, clock: Callable[[], float] = monotonic
    ) -> None:
        self._objectives = list(objectives)
        self._wanted = wanted
        self._clock = clock
        self._began = clock()
        self._before: int | None = None
        self.lines: dict[str, str] = {}

    def update(self, study: Study) -> None:
        """Look at the study again; its first look tells what was finished before this search began."""
        finished = distinct_finished(study)
        if self._before is None:
            self._before = len(finished)
            self._began = self._clock()
        states = Counter(map(state_of, study.get_trials(deepcopy=False)))
        asides = [f"{states[state]} {word}" for state, word in _WORDS.items() if states[state]]
        counted = min(len(finished), self._wanted)
        self.lines = {
            "best so far": self._best(study),
            "trials": ", ".join([f"{counted} of {self._wanted} done", *asides]),
            "time left": self._left(len(finished)),
        }

    def _best(self, study: Study) -> str:
        found = confirmable(study)
        if not found:
            return "none yet"
        sign = 1 if study.directions[0] is StudyDirection.MAXIMIZE else -1
        best = max(found, key=lambda trial: sign * trial.values[0])
        return f"{name_of_trial(best)}, {self._figure(best)}"

    def _figure(self, trial: FrozenTrial) -> str:
        if self._objectives[0] != "speedup":
            return f"{trial.values[0]:.2f} {self._objectives[0].replace('_', ' ')}"
        over = "x AR modelled" if is_modelled(trial) else "x AR"
        interval = interval_of(trial)
        if interval is None:
            return f"{math.exp(trial.values[0]):.2f}{over}"
        return f"{math.exp(trial.values[0]):.2f}{over} [{interval[0]:.2f}, {interval[1]:.2f}] here"

    def _left(self, finished: int) -> str:
        assert self._before is not None
        here, more = finished - self._before, self._wanted - finished
        if more <= 0:
            return "none"
        if here <= 0:
            return "not known yet"
        seconds = (self._clock() - self._began) / here * more
        return f"about {seconds:.0f} s" if seconds < 90 else f"about {seconds / 60:.0f} min"

    def __rich__(self) -> Table:
        from rich.table import Table

        table = Table.grid(padding=(0, 2))
        for name, line in self.lines.items():
            table.add_row(name, line)
        return table
