"""Drafts a tree in one replay: all passes of a draft model, with the top-k between passes computed on the device.

Without this, each level of a tree costs a copy to the device, a replay and a wait. If the last two trees had the same
number of nodes at each depth, one :class:`DraftStep` drafts such a tree in advance. Builders request candidates as
usual, and :class:`GraphedSource` takes them from the step's results. Nodes that the step did not draft are fed in a
separate pass, so the tree is the same as without the step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from specexp.core.context import Context
from specexp.core.dialogue import Candidates, Request
from specexp.core.runtime import Growth
from specexp.core.sampling import Processors, check_logits, on_host
from specexp.core.tree import NO_CANDIDATE, NodeKind
from specexp.drafters.draft_source import Fed, ModelSource
from specexp.drafters.ranking import Scoring
from specexp.models.static_slots import bucket
from specexp.models.static_step import FLOAT, INT, Arrays, Step, Window

_MOST_BEST = 64
"""The maximum number of candidates per node that a step computes."""


class DraftLevel(NamedTuple):
    """One depth of a drafted tree. A step feeds the nodes with the highest path probabilities."""

    width: int  # number of nodes
    k: int  # number of candidates per parent from which the nodes are chosen


class DraftPlan(NamedTuple):
    """The form of a tree that is drafted in one replay."""

    levels: tuple[DraftLevel, ...]  # the nodes fed at each depth below the root
    best: int  # number of candidates computed for each fed node
    scoring: Scoring
    temperature: float


class DraftStep(Step):
    """All passes of one draft tree per lane.

    The first pass feeds the committed tokens that the draft model has not processed yet, with the root last, in
    ``pending`` rows. The rows of each level follow at fixed positions. The ``logits``
    are ``[lanes, nodes, V]``, root first.
    """

    def __init__(self, window: Window, pending: int, plan: DraftPlan, runtime: Any) -> None:
        self.plan = plan
        self.pending = pending
        lanes, widths = window.lanes, [level.width for level in plan.levels]
        self.nodes = 1 + sum(widths)
        given: Arrays = {"tokens": ((lanes, pending), INT)}
        given |= dict.fromkeys(("base", "size"), ((lanes, 1), INT))
        results: Arrays = {
            "tokens": ((lanes, self.nodes, plan.best), INT),
            "places": ((lanes, self.nodes - 1), INT),
            "log_probs": ((lanes, self.nodes, plan.best), FLOAT),
        }
        scoring = plan.scoring
        self._noisy = scoring.coupled and plan.temperature > 0
        temperature = (plan.temperature or 1.0) if scoring.coupled else plan.temperature
        self._processors = Processors(temperature, scoring.top_k, scoring.top_p)
        device = runtime.device
        self._own = torch.arange(max([pending, *widths]), device=device)
        # attention among new rows: pending tokens form a chain, and a node attends to itself
        width = pending + self.nodes - 1
        self._among = torch.eye(width, device=device, dtype=torch.bool)
        self._among[:pending, :pending] = torch.ones_like(self._among[:pending, :pending]).tril()
        super().__init__(runtime, window, given, results, self.nodes, len(widths) + 1 if self._noisy else 0)

    def fill(self, lane: int, past: int, tokens: Sequence[int]) -> None:
        """Set a lane's pending tokens, which follow ``past`` committed tokens."""
        given = self._inputs.host
        given["tokens"][lane, : len(tokens)] = tokens
        given["base"][lane], given["size"][lane] = past, len(tokens)

    @override
    def run(self) -> None:
        """Move rows and feed the pending tokens, then choose and feed the nodes of each level in turn."""
        self._move_rows()
        given, plan, results = self._inputs.device, self.plan, self._results.device
        base, size, lanes = given["base"], given["size"], self.window.lanes
        own = self._own[: self.pending]
        among = self._among[: self.pending].expand(lanes, -1, -1)  # [lanes, pending, width]
        written = self._written(own < size, base + own)
        logits, _ = self._pass(given["tokens"], base + own, written, among, base)
        root = (size - 1).clamp(min=0)[..., None]  # [lanes, 1, 1]
        logits = logits.gather(1, root.expand(lanes, 1, logits.shape[2]))
        among = among.gather(1, root.expand(lanes, 1, among.shape[2]))
        # [lanes, rows] log-probability of each path
        total = torch.zeros_like(root[..., 0], dtype=torch.float32)
        first, last = 0, 1  # range of the level's nodes
        for depth, level in enumerate((*plan.levels, None)):
            self.logits[:, first:last].copy_(logits)
            log_probs, tokens = self._best(logits, depth)  # [lanes, rows, best]
            results["tokens"][:, first:last].copy_(tokens)
            results["log_probs"][:, first:last].copy_(log_probs)
            if level is None:
                break
            paths = total[..., None] + log_probs
            best = paths[..., : level.k].flatten(1).topk(level.width).indices
            places = best // level.k * plan.best + best % level.k  # [lanes, width], parent * best + rank
            results["places"][:, last - 1 : last - 1 + level.width].copy_(places)
            total = paths.flatten(1).gather(1, places)
            parents = (places // plan.best)[..., None].expand(lanes, level.width, among.shape[2])
            start = self.pending + last - 1  # first row of the level among the uncommitted rows
            among = among.gather(1, parents) | self._among[start : start + level.width]
            written = self._written(size > 0, base + start + self._own[: level.width])
            positions = (base + size + depth).expand(lanes, level.width)
            logits, _ = self._pass(tokens.flatten(1).gather(1, places), positions, written, among, base)
            first, last = last, last + level.width
        self._results.fetch()

    def _written(self, fed: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Return the cache row ``[lanes, rows]`` for each fed row: the spare row for padding and idle lanes."""
        return rows.masked_fill(~fed, self.cache.capacity)  # torch.where would copy the scalar from the host

    def _best(self, logits: torch.Tensor, depth: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the log-probabilities and tokens of the best candidates, as ``specexp.drafters.ranking`` does."""
        lanes, rows, size = logits.shape
        scores = self._processors.scores(logits.flatten(0, 1)).view(lanes, rows, size)
        if self._noisy:
            scores = scores + self.noise[:, depth : depth + 1]
        found = scores.log_softmax(-1).topk(self.plan.best, dim=-1)
        return found.values.float(), found.indices

    def outputs_of(self, lane: int) -> tuple[NDArray[np.int64], NDArray[np.float32], list[tuple[int, int]]]:
        """Return a lane's ``[nodes, best]`` tokens and log-probabilities, and each non-root node's parent and token.

        The results are valid after the device has finished, until the next replay.
        """
        tokens, places, log_probs = (self._results.host[name][lane] for name in ("tokens", "places", "log_probs"))
        parents, ranks = np.divmod(places, self.plan.best)
        above, first = 0, 0  # first node of the level above and of this level, not counting the root
        for level in self.plan.levels:
            parents[first : first + level.width] += above
            above, first = first + 1, first + level.width
        return tokens, log_probs, list(zip(parents.tolist(), tokens[parents, ranks].tolist(), strict=True))


class GraphedSource(ModelSource):
    """A :class:`ModelSource` that drafts a tree in one replay if the last two trees had the same form."""

    model: Any  # a graphed runtime

    def __init__(self, model: Any, slots: Any = None) -> None:
        super().__init__(model, slots)
        self._plan: DraftPlan | None = None  # form of the next tree
        self._before: DraftPlan | None = None  # form of the last tree
        self._begin(0)

    def _begin(self, pending: int) -> None:
        self._pending = pending
        self._rows = list(range(pending))  # drafter's row -> uncommitted row of the cache
        self._end = 0  # number of uncommitted rows in the cache
        self._step: DraftStep | None = None
        self._children: dict[tuple[int, int], int] = {}  # (row of the parent, token) -> drafted node
        self._used = 0  # number of fed nodes that the step drafted in advance
        self._fed: Counter[int] = Counter()  # depth -> number of fed nodes
        self._requested: dict[int, int] = {}  # depth of the parent -> most candidates requested
        self._scored: tuple[Scoring, float] | None = None

    @override
    def truncate(self, rows: int) -> None:
        super().truncate(rows)
        self._begin(0)

    @override
    def feed_together(self, requested: Sequence[tuple[Any, Context, Fed]]) -> list[list[Any]]:
        plan, *others = {source._plan_of(context, fed) for source, context, fed in requested}
        if plan is not None and not others:
            step = self.model.draft(
                [(source.slot, context, fed.tokens[: fed.pending]) for source, context, fed in requested],
                plan,
            )
            for source, _, _ in requested:
                source._take(step, source.slot - step.window.first)
        entered = [source._enter(fed) for source, _, fed in requested]
        slots = [source.slot for (source, _, _), (_, growth) in zip(requested, entered, strict=True) if growth]
        growths = [growth for _, growth in entered if growth]
        grown = dict(zip(slots, self.model.grow(slots, growths).logits, strict=True)) if slots else {}
        for source, context, _ in requested:
            if source.slot in grown and on_host(grown[source.slot]):
                check_logits(grown[source.slot], "draft", context)
        return [
            [(grown[source.slot] if logits is None else logits, row) for logits, row in found]
            for (source, _, _), (found, _) in zip(requested, entered, strict=True)
        ]

    def _plan_of(self, context: Context, fed: Fed) -> DraftPlan | None:
        """Before a tree's first pass, reset the state and return the plan for the tree, if any; else return None."""
        if fed.known:
            return None
        self._begin(fed.pending)
        plan = self._plan
        if plan is None or (plan.scoring.coupled and plan.temperature != context.noise_temperature):
            return None
        fits = self.length + fed.pending + len(plan.levels) <= self.context_limit
        return plan if fits else None

    def _take(self, step: DraftStep, lane: int) -> None:
        self._step = step
        self._logits = step.logits[lane]
        self._tokens, self._log_probs, nodes = step.outputs_of(lane)
        self._end = step.pending + step.nodes - 1
        rows = [self._pending - 1, *range(step.pending, self._end)]
        self._children = {(rows[parent], token): node for node, (parent, token) in enumerate(nodes, 1)}

    def _enter(self, fed: Fed) -> tuple[list[tuple[torch.Tensor | None, int]], Growth | None]:
        """Look up the new nodes in the step's results.

        Returns:
            For each new node, its logits (None if not found) and row; and the pass over the missing nodes, if any.
        """
        found: list[tuple[torch.Tensor | None, int]] = []
        missing: list[tuple[int, int, list[int]]] = []  # token, depth and visible rows
        if fed.known == 0 and self._step is not None:
            found.append((self._logits, 0))
        elif fed.known == 0:
            missing = [(fed.tokens[row], row, list(range(row + 1))) for row in range(fed.pending)]
            found.append((None, fed.pending - 1))
        new = fed.ancestors[fed.known or 1 :]
        first = len(fed.tokens) - len(new)
        for ancestors, token, depth in zip(new, fed.tokens[first:], fed.depths[first:], strict=True):
            self._fed[len(ancestors) - 1] += 1
            above = [self._rows[self._pending - 1 + node] for node in ancestors[:-1]]
            node = self._children.get((above[-1], token))
            if node is not None and self._step is not None:
                self._rows.append(self._step.pending + node - 1)
                self._used += 1
                found.append((self._logits, node))
            else:
                self._rows.append(self._end + len(missing))
                found.append((None, len(missing)))
                missing.append((token, depth, [*range(self._pending - 1), *above, self._rows[-1]]))
        if not missing:
            return found, None
        tokens, depths, observed = zip(*missing, strict=True)
        self._end += len(missing)
        visible = np.zeros((len(missing), self._end), dtype=np.bool_)
        for row, rows in enumerate(observed):
            visible[row, rows] = True
        return found, Growth(np.array(tokens), np.array(depths), visible)

    @override
    def candidates_together(
        self, scoring: Scoring, requested: Sequence[tuple[Any, Context, Request, Sequence[Any]]]
    ) -> list[Candidates]:
        found = [source._computed(scoring, *one) for source, *one in requested]
        rest = [one for one, known in zip(requested, found, strict=True) if known is None]
        ranked = iter(super().candidates_together(scoring, rest) if rest else ())
        return [next(ranked) if one is None else one for one in found]

    def _computed(
        self, scoring: Scoring, context: Context, request: Request, answers: Sequence[Any]
    ) -> Candidates | None:
        """Return candidates from the step's results, or None if a node or candidate is missing from them."""
        step, best = self._step, request.kind is NodeKind.POINT_MASS
        if step is None:  # record the form of the tree
            temperature = 1.0 if scoring.temperature is None else scoring.temperature
            scored = scoring, context.noise_temperature if scoring.coupled else temperature
            self._scored = scored if best else None
            for depth in request.depths():
                self._requested[depth] = max(self._requested.get(depth, 0), request.k)
            return None
        outside = any(logits is not self._logits for logits, _ in answers)
        if outside or not best or request.k > step.plan.best:
            return None
        rows = [row for _, row in answers]
        log_probs = self._log_probs[rows, : request.k]
        if np.isnan(log_probs).any():
            check_logits(self._logits, "draft", context)
        tokens = np.where(np.isneginf(log_probs), NO_CANDIDATE, self._tokens[rows, : request.k])
        return Candidates(tokens, log_probs)

    @override
    def commit(self, rows: Sequence[int]) -> None:
        if self._step is None:
            before = self._before
            self._before = self._growth()
            self._plan = before if before == self._before else None
        elif 2 * self._used < max(self._step.nodes - 1, self._fed.total()):
            self._plan = self._before = None  # most drafted nodes were not used
        super().commit([self._rows[row] for row in rows])
        self._begin(0)

    def _growth(self) -> DraftPlan | None:
        """Return the form of this tree, or None if a single step cannot draft it."""
        best = max(self._requested.values(), default=0)
        if self._scored is None or not self._fed or best > min(_MOST_BEST, self.vocab_size):
            return None
        levels, above = [], 1
        for depth, width in sorted(self._fed.items()):
            k = self._requested.get(depth - 1, 0)  # 0 if another drafter proposed the nodes above
            above = min(bucket(width), above * k)  # rounded up, so that fewer graphs are captured
            levels.append(DraftLevel(above, k))
        return DraftPlan(tuple(levels), best, *self._scored) if above else None
