"""The jobs of a run, the drafts that wait for the target, and the policies that order these drafts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from typing_extensions import override

from specexp.base.checked import Checked
from specexp.core.constraint import Constraint
from specexp.core.tree import TokenTree


@dataclass(frozen=True)
class Job:
    """A sequence to decode."""

    # token ids ``[p]``, at least one. Jobs share the prefill of a common prefix of their prompts
    prompt: tuple[int, ...]
    sequence: int | str  # key of the random draws, unique within a run. The same key gives the same output
    max_new_tokens: int = 128
    # function of the new tokens that returns whether the output ends there
    stop: Callable[[Sequence[int]], bool] | None = None
    stop_at_repetition: bool = False
    constraint: Constraint | None = None  # what the output may be; for strategies whose drafters run in this process


class Waiting(NamedTuple):
    """A draft that waits for the target: its sequence, how many new tokens the sequence has, and the draft tree."""

    sequence: int | str
    new_tokens: int
    tree: TokenTree

    @property
    def log_prob(self) -> float:
        """The draft's log-probability of the tree's most probable path; 0 if unknown or if the tree is empty."""
        log_probs = self.tree.log_probs
        return 0.0 if log_probs is None else float(log_probs[[*self.tree.best_path()]].sum())


class QueuePolicy(metaclass=Checked):
    """A rule for the order in which waiting drafts are verified. It changes the timing but never the output."""

    @abstractmethod
    def choose(self, waiting: Sequence[Waiting], most: int) -> list[int]:
        """Return 1 to ``most`` distinct indices into ``waiting``: the drafts of the next target pass.

        There is at least one finished draft, in order of arrival.
        """


class FirstCome(QueuePolicy):
    """First come, first served, as in SEED (section 4.2). Each of n sequences waits at most n rounds."""

    @override
    def choose(self, waiting: Sequence[Waiting], most: int) -> list[int]:
        return list(range(min(most, len(waiting))))


class LeastProgress(QueuePolicy):
    """Serves the sequence with the fewest new tokens first, so that all sequences end at about the same time."""

    @override
    def choose(self, waiting: Sequence[Waiting], most: int) -> list[int]:
        return sorted(range(len(waiting)), key=lambda place: waiting[place].new_tokens)[:most]


class MostConfident(QueuePolicy):
    """Serves the draft with the most probable path first. Other drafts may wait for a long time."""

    @override
    def choose(self, waiting: Sequence[Waiting], most: int) -> list[int]:
        return sorted(range(len(waiting)), key=lambda place: -waiting[place].log_prob)[:most]
