"""Jobs of a run, drafts that wait for the target, and the policies that choose among them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from typing_extensions import override

from specexp.core.checked import Checked
from specexp.core.tree import TokenTree


@dataclass(frozen=True)
class Job:
    """A sequence to decode.

    Attributes:
        prompt: ``[p]`` token ids, at least one. Jobs of one run with the same prompt share its prefill.
        sequence: key of its randomness, different for each job of a run; the same key gives the same output.
        stop: whether the output ends with these new tokens.
    """

    prompt: tuple[int, ...]
    sequence: int | str
    max_new_tokens: int = 128
    stop: Callable[[Sequence[int]], bool] | None = None


class Waiting(NamedTuple):
    """A draft that waits for the target: its sequence, the tokens generated so far, and its tree."""

    sequence: int | str
    new_tokens: int
    tree: TokenTree

    @property
    def log_prob(self) -> float:
        """Draft log-probability of its most probable path; 0 if unknown, or nothing was drafted."""
        log_probs = self.tree.log_probs
        return 0.0 if log_probs is None else float(log_probs[[*self.tree.best_path()]].sum())


class QueuePolicy(metaclass=Checked):
    """Orders the queue of drafts. It changes when a sequence is served, never its output."""

    @abstractmethod
    def choose(self, waiting: Sequence[Waiting], most: int) -> list[int]:
        """Choose the drafts of the next target pass.

        Args:
            waiting: ready drafts in the order of arrival, at least one.
            most: greatest number of drafts to choose, at least 1.

        Returns:
            Distinct indices into ``waiting``, 1 to ``most``.
        """


class FirstCome(QueuePolicy):
    """First come, first served, as in SEED (section 4.2): of n sequences none waits longer than n rounds."""

    @override
    def choose(self, waiting: Sequence[Waiting], most: int) -> list[int]:
        return list(range(min(most, len(waiting))))


class LeastProgress(QueuePolicy):
    """The sequence with the fewest tokens first, so that all end at about the same time."""

    @override
    def choose(self, waiting: Sequence[Waiting], most: int) -> list[int]:
        return sorted(range(len(waiting)), key=lambda place: waiting[place].new_tokens)[:most]


class MostConfident(QueuePolicy):
    """The draft with the most probable path first, which likely gives the most tokens. A sequence may wait long."""

    @override
    def choose(self, waiting: Sequence[Waiting], most: int) -> list[int]:
        return sorted(range(len(waiting)), key=lambda place: -waiting[place].log_prob)[:most]
