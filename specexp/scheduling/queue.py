"""The queues of a run: its jobs, the drafts that wait for the target, and the policies that choose among them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from specexp.core.checked import Checked
from specexp.core.tree import TokenTree


@dataclass(frozen=True)
class Job:
    """A sequence to decode.

    Attributes:
        prompt: ``[p]`` token ids, at least one. Jobs of one run with the same prompt share its prefill.
        sequence: the place its randomness is keyed by; the same one gives the same output again. Different in a run.
        max_new_tokens: greatest number of tokens to generate.
        stop: whether the output ends with these new tokens; None leaves that to EOS and the limit.
    """

    prompt: tuple[int, ...]
    sequence: int | str
    max_new_tokens: int = 128
    stop: Callable[[Sequence[int]], bool] | None = None


class Waiting(NamedTuple):
    """A draft that waits for the target.

    Attributes:
        sequence: whose it is.
        new_tokens: tokens its sequence has so far.
        tree: the draft.
    """

    sequence: int | str
    new_tokens: int
    tree: TokenTree

    @property
    def log_prob(self) -> float:
        """Draft log-probability of its most probable path; 0 where the drafter gives none, or drafted nothing."""
        log_probs = self.tree.log_probs
        return 0.0 if log_probs is None else float(log_probs[[*self.tree.best_path()]].sum())


class QueuePolicy(metaclass=Checked):
    """Orders the queue of drafts. It changes when a sequence is served, never what it says.

    The target never waits while a draft does, whatever the policy.
    """

    @abstractmethod
    def choose(self, waiting: Sequence[Waiting], most: int) -> list[int]:
        """Which drafts the next target pass verifies.

        Args:
            waiting: drafts that are ready, at least one, in the order of arrival.
            most: greatest number of drafts to choose, at least 1.

        Returns:
            Their places in ``waiting``, all different, at least one and at most ``most``.
        """


class FirstCome(QueuePolicy):
    """First come, first served, as in SEED (section 4.2): of n sequences none waits longer than n rounds."""

    def choose(self, waiting: Sequence[Waiting], most: int) -> list[int]:
        """The first."""
        return list(range(min(most, len(waiting))))


class LeastProgress(QueuePolicy):
    """The sequence with the fewest tokens first, so that all end at about the same time and few drafters idle then."""

    def choose(self, waiting: Sequence[Waiting], most: int) -> list[int]:
        """Those that are furthest behind; of equals the first to come."""
        return sorted(range(len(waiting)), key=lambda place: waiting[place].new_tokens)[:most]


class MostConfident(QueuePolicy):
    """The draft with the most probable path first: it likely gives the most tokens. A sequence may wait for long."""

    def choose(self, waiting: Sequence[Waiting], most: int) -> list[int]:
        """The surest; of equals the first to come."""
        return sorted(range(len(waiting)), key=lambda place: -waiting[place].log_prob)[:most]
