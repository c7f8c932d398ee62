"""How often the first, second, ... child tried is the accepted one: what Sequoia builds its tree from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from typing_extensions import override

from specexp.bench.analysis import Analysis, drafting, visited
from specexp.bench.publish import Report
from specexp.bench.record import PromptRecord
from specexp.bench.table import Column, Table, columns
from specexp.core.outcome import Outcome
from specexp.core.parts import Parts


class AcceptanceVector(Analysis):
    """How likely each child of a visited node is the accepted one, in the order tried (Chen et al. 2024, section 3).

    Only nodes with at least ``width`` draws below them are counted, of which the first ``width`` are looked at; a
    token drawn again (with replacement) counts at its first place. Give it trees that are wide everywhere, such as
    ``KConfig``: where a builder widens some nodes only, those are not like the others.

    ``acceptance.json`` holds ``acceptance`` (``width`` probabilities, then that none of them is accepted; they sum to
    one), ``visited`` (nodes counted), ``accepted`` (how often each was it) and ``arm``.

    Args:
        width: Children looked at below a node.
        arm: Arm whose vector the file holds; the first that drafts if None.
    """

    name: ClassVar[str] = "acceptance"

    def __init__(self, width: Annotated[int, Field(ge=1)] = 8, arm: str | None = None) -> None:
        self.width = width
        self.arm = arm
        self._counts: dict[str, NDArray[np.int64]] = {}

    @override
    def begin(self, arms: Mapping[str, Parts]) -> None:
        self._counts = {arm: np.zeros(self.width + 1, dtype=np.int64) for arm in drafting(arms)}

    @override
    def observe(self, arm: str, outcome: Outcome) -> None:
        if arm not in self._counts:
            return
        for depth, row in enumerate(visited(outcome)):
            tried = outcome.tree.draw_order(row)
            if len(tried) >= self.width:
                accepted = outcome.accepted[depth] if depth < len(outcome.accepted) else None
                place = tried.index(accepted) if accepted is not None else self.width
                self._counts[arm][min(place, self.width)] += 1

    @override
    def report(self, records: Sequence[PromptRecord]) -> Report:
        places = [Column(title, 3) for title in (*(f"#{n + 1}" for n in range(self.width)), "none")]
        table = Table(
            "Which child of a visited node is accepted, in the order tried",
            [*columns("arm | nodes visited"), *places],
        )
        for arm, counts in self._counts.items():
            visits = int(counts.sum())
            shares = (counts / visits).tolist() if visits else [None] * (self.width + 1)
            table.rows.append([arm, visits, *shares])
            if not visits:
                table.notes.append(f"{arm}: no visited node had {self.width} children; lower width")
        chosen = self.arm if self.arm is not None else next(iter(self._counts), None)
        if chosen not in self._counts:
            table.notes.append(f"no arm {chosen!r} was watched, so there is no acceptance.json")
            return Report({self.name: table})
        counts = self._counts[chosen]
        visits = int(counts.sum())
        if not visits:
            return Report({self.name: table})
        vector = {
            "acceptance": (counts / visits).tolist(),
            "visited": visits,
            "accepted": counts[:-1].tolist(),
            "arm": chosen,
        }
        return Report({self.name: table}, files={"acceptance.json": json.dumps(vector, indent=2) + "\n"})
