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
        self._objective, self._wanted, self._clock = objectives[0], wanted, clock
        self._began, self._before = clock(), -1
        self.lines: dict[str, str] = {}

    def update(self, study: Study) -> None:
        """Look at the study again; the first look counts the trials that were finished before this search began."""
        finished = len(distinct_finished(study))
        if self._before < 0:
            self._began, self._before = self._clock(), finished
        states = Counter(map(state_of, study.get_trials(deepcopy=False)))
        asides = [f"{states[state]} {word}" for state, word in _WORDS.items() if states[state]]
        sign = 1 if study.directions[0] is StudyDirection.MAXIMIZE else -1
        best = max(confirmable(study), key=lambda trial: sign * trial.values[0], default=None)
        self.lines = {
            "best so far": "none yet" if best is None else f"{name_of_trial(best)}, {self._figure(best)}",
            "trials": ", ".join([f"{min(finished, self._wanted)} of {self._wanted} done", *asides]),
            "time left": self._left(finished),
        }

    def _figure(self, trial: FrozenTrial) -> str:
        if self._objective != "speedup":
            return f"{trial.values[0]:.2f} {self._objective.replace('_', ' ')}"
        interval = interval_of(trial)
        shown = "" if interval is None else f" [{interval[0]:.2f}, {interval[1]:.2f}] here"
        return f"{math.exp(trial.values[0]):.2f}x AR{' modelled' if is_modelled(trial) else ''}{shown}"

    def _left(self, finished: int) -> str:
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
