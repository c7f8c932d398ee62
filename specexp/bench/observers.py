"""Observers of a run's steps: their contract, the sources of new tokens, and counts of accepted nodes."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import ClassVar

from specexp.artifacts.atomic_write import atomic_write
from specexp.base.checked import Checked
from specexp.core.contracts import Drafter
from specexp.core.outcome import Outcome
from specexp.core.parts import Parts
from specexp.core.tree import RankPath
from specexp.scheduling.timeline import TimeLine

CORRECTED, BONUS = -1, -2
"""Sources of the target's own tokens: after all drafted candidates were rejected, or where none were drafted."""
GRAFTED = "grafted phrases"
"""Source of the nodes that :class:`~specexp.builders.Graft` adds."""


class Observer(metaclass=Checked):
    """Observes our arms during ``python -m specexp.run``, outside measured time and without side effects."""

    # True: it observes single steps of arms that decode one sequence at a time; False: time lines and records
    watches_steps: ClassVar[bool] = True
    needs_models: ClassVar[bool] = False  # whether it uses logits or measured times, which recordings lack

    @abstractmethod
    def begin(self, arms: Mapping[str, Parts]) -> None:
        """Start a run after the warm-up, discarding data from earlier runs.

        ``arms`` maps each observed arm, including plain decoding, to its parts. Raises ValueError if an arm named in
        the analysis's configuration is missing.
        """

    def observe(self, arm: str, outcome: Outcome) -> None:
        """Observe one step. Copy any of the outcome's arrays before keeping them."""

    def observe_run(self, arm: str, prompt_id: str, timeline: TimeLine) -> None:
        """Observe one time line that covers all of an arm's runs for a prompt."""


def ended_inside(outcome: Outcome) -> bool:
    """Return whether the output ended inside the draft, without a bonus token."""
    return len(outcome.new_token_ids) == len(outcome.accepted)


class Sources:
    """An observer of a decoder that records the source of each new token, e.g. ``[0, 0, 1, -1, -2]``, and counts nodes
    by the drafter that proposed them.
    """

    def __init__(self, drafter: Drafter | None = None) -> None:
        # for each new token, the rank of its drafted node among its siblings, or CORRECTED or BONUS
        self.found: list[int] = []
        # numbers of nodes fed to the target and of accepted nodes, by the drafter that proposed them
        self.nodes: Counter[str] = Counter()
        self.accepted: Counter[str] = Counter()
        self._drafter = drafter

    def _count(self, outcome: Outcome, drafter: Drafter) -> None:
        tree = outcome.tree
        for row in range(1, tree.num_nodes + 1):
            path = tuple(tree.tokens[list(tree.shape.path(row))].tolist())
            grafted = tree.grafted is not None and tree.grafted[row]
            source = GRAFTED if grafted else drafter.source_of(outcome.context, path)
            self.nodes[source] += 1
            self.accepted[source] += row in outcome.accepted

    def __call__(self, outcome: Outcome) -> None:
        """Add the sources of one step's tokens and nodes."""
        shape = outcome.tree.shape
        if self._drafter is not None:
            self._count(outcome, self._drafter)
        self.found += [int(shape.ranks[row]) for row in outcome.accepted]
        if not ended_inside(outcome):
            last = outcome.accepted[-1] if outcome.accepted else 0
            self.found.append(CORRECTED if shape.children[last] else BONUS)


def steps_of(sources: Sequence[int], turn_tokens: Sequence[int]) -> Iterator[range]:
    """Yield the positions of each step's tokens. A step ends with the target's own token or at the end of its turn.

    Example:
        >>> [list(step) for step in steps_of([0, 0, -1, -2, 1], [3, 2])]
        [[0, 1, 2], [3], [4]]
    """
    first, ends = 0, set(accumulate(turn_tokens))
    for place, source in enumerate(sources, start=1):
        if source < 0 or place in ends:
            yield range(first, place)
            first = place


class AcceptanceCounter:
    """Counts, for every rank path, the steps in which it was drafted and those in which it was accepted."""

    def __init__(self) -> None:
        self.steps = 0
        self.counts: Counter[RankPath] = Counter()
        self.drafted: Counter[RankPath] = Counter()

    def observe(self, outcome: Outcome) -> None:
        """Count one step."""
        self.steps += 1
        paths = outcome.tree.shape.rank_paths
        self.drafted.update(paths[1:])
        self.counts.update(paths[row] for row in outcome.accepted)

    def save(self, path: str | Path) -> None:
        """Write acceptance counts as JSON, keyed by rank path (e.g. ``"0,2,1"``). The root ``""`` counts all steps."""
        text = {",".join(map(str, rank_path)): count for rank_path, count in self.counts.most_common()}
        text[""] = self.steps
        atomic_write(Path(path), json.dumps(text, indent=0) + "\n")
