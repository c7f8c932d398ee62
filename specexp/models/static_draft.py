"""A draft tree in one replay: all passes of a draft model, with the top-k between them on the device.

Pass by pass, each level of a tree costs a copy to the device, a replay and a wait. A tree that grew alike in the last
two steps is drafted by one :class:`DraftStep` instead. Builders ask for candidates as before, and
:class:`GraphedSource` answers from the step's results. Nodes outside of it are fed in a pass of their own, so the tree
never depends on the guess.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

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
from specexp.models.static_step import FLOAT, INT, Arrays, Step, StepModel, Window

if TYPE_CHECKING:
    from specexp.models.graphed import GraphedModel

_MOST_BEST = 64
"""Most candidates of a node that a step computes."""


class Level(NamedTuple):
    """The nodes of one depth that a step feeds.

    Attributes:
        width: number of nodes.
        k: candidates of each parent that they are chosen from.
        places: for each node the index of its parent in the level above and its rank, if they are the same in every
            step, as in a chain or a static tree. Empty: the nodes with the largest products of draft probabilities,
            as in a beam.
    """

    width: int
    k: int
    places: tuple[tuple[int, int], ...] = ()


class DraftPlan(NamedTuple):
    """The growth of a draft tree.

    Attributes:
        levels: nodes that are fed below the root, depth by depth.
        best: candidates computed for every fed node.
    """

    levels: tuple[Level, ...]
    best: int
    scoring: Scoring
    temperature: float


class DraftStep(Step):
    """The passes of a draft tree for each lane.

    The first pass feeds the committed tokens that the draft model lacks, with the root last, in ``pending`` rows. Each
    level's rows follow at the same place in every replay.

    Attributes:
        logits: ``[lanes, nodes, V]``, the root's first.
    """

    def __init__(self, window: Window, pending: int, plan: DraftPlan, runtime: StepModel) -> None:
        self.plan, self.pending = plan, pending
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
        self._fixed = [
            torch.tensor([parent * plan.best + rank for parent, rank in level.places], device=device)
            for level in plan.levels
        ]
        # rows that see each other: the pending tokens are a chain, a node sees itself
        width = pending + self.nodes - 1
        self._among = torch.eye(width, device=device, dtype=torch.bool)
        self._among[:pending, :pending] = torch.ones_like(self._among[:pending, :pending]).tril()
        super().__init__(runtime, window, given, results, self.nodes, len(widths) + 1 if self._noisy else 0)

    def fill(self, lane: int, past: int, tokens: Sequence[int]) -> None:
        """Set a lane's pending tokens behind ``past`` committed ones."""
        given = self._inputs.host
        given["tokens"][lane, : len(tokens)] = tokens
        given["base"][lane], given["size"][lane] = past, len(tokens)

    @override
    def run(self) -> None:
        """Move rows, feed the pending tokens, then level after level the nodes chosen from the level above."""
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
        total = torch.zeros_like(
            root[..., 0], dtype=torch.float32
        )  # [lanes, rows] log-probability of each path
        first, last = 0, 1  # the nodes of the level
        for depth, level in enumerate((*plan.levels, None)):
            self.logits[:, first:last].copy_(logits)
            log_probs, tokens = self._best(logits, depth)  # [lanes, rows, best]
            results["tokens"][:, first:last].copy_(tokens)
            results["log_probs"][:, first:last].copy_(log_probs)
            if level is None:
                break
            paths = total[..., None] + log_probs
            places = self._chosen(level, self._fixed[depth], paths)  # [lanes, width], parent * best + rank
            results["places"][:, last - 1 : last - 1 + level.width].copy_(places)
            total = paths.flatten(1).gather(1, places)
            parents = (places // plan.best)[..., None].expand(lanes, level.width, among.shape[2])
            start = self.pending + last - 1  # of its rows among the uncommitted ones
            among = among.gather(1, parents) | self._among[start : start + level.width]
            written = self._written(size > 0, base + start + self._own[: level.width])
            positions = (base + size + depth).expand(lanes, level.width)
            logits, _ = self._pass(tokens.flatten(1).gather(1, places), positions, written, among, base)
            first, last = last, last + level.width
        self._results.fetch()

    def _written(self, fed: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Return ``[lanes, rows]`` rows of the cache, the spare one for padding and idle lanes."""
        return torch.where(fed, rows, self.cache.capacity)

    def _best(self, logits: torch.Tensor, depth: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-probabilities and tokens of the best candidates, as :class:`Ranking` does pass by pass."""
        lanes, rows, size = logits.shape
        scores = self._processors.scores(logits.flatten(0, 1)).view(lanes, rows, size)
        if self._noisy:
            scores = scores + self.noise[:, depth : depth + 1]
        found = scores.log_softmax(-1).topk(self.plan.best, dim=-1)
        return found.values.float(), found.indices

    def _chosen(self, level: Level, fixed: torch.Tensor, paths: torch.Tensor) -> torch.Tensor:
        """Return ``[lanes, width]`` the chosen among the ``[lanes, rows, best]`` candidates."""
        if level.places:
            return fixed.expand(paths.shape[0], level.width)
        best = paths[..., : level.k].flatten(1).topk(level.width, dim=-1).indices
        return best // level.k * self.plan.best + best % level.k

    def read(self, lane: int) -> tuple[NDArray[np.int64], NDArray[np.float32], list[tuple[int, int]]]:
        """Return tokens and log-probabilities ``[nodes, best]`` of a lane, and parent and token of all other nodes.

        Valid once the device is done, until the next replay.
        """
        tokens, places, log_probs = (
            self._results.host[name][lane] for name in ("tokens", "places", "log_probs")
        )
        parents, ranks = np.divmod(places, self.plan.best)
        above, first = 0, 0  # the first nodes of the level above and of this one, the root left out
        for level in self.plan.levels:
            parents[first : first + level.width] += above
            above, first = first + 1, first + level.width
        return tokens, log_probs, list(zip(parents.tolist(), tokens[parents, ranks].tolist(), strict=True))


class GraphedSource(ModelSource):
    """A :class:`ModelSource` that drafts a tree in one replay if the last two grew alike."""

    model: GraphedModel

    def __init__(self, model: GraphedModel, slots: Any = None) -> None:
        super().__init__(model, slots)
        self._plan: DraftPlan | None = None  # of the next tree
        self._before: DraftPlan | None = None  # how the last tree grew
        self._begin(0)

    def _begin(self, pending: int) -> None:
        self._pending = pending
        self._rows = list(range(pending))  # row of the cache for each of the drafter's rows
        self._end = 0  # rows of the cache behind the committed ones
        self._step: DraftStep | None = None
        self._children: dict[tuple[int, int], int] = {}  # (row of the parent, token) -> drafted node
        self._used = 0  # nodes that were fed by the step
        self._nodes: dict[tuple[int, int], int] = {}  # (id of logits, row) -> node
        self._ranks: dict[tuple[int, int], int] = {}  # (node, token) -> rank
        self._fed: list[tuple[int, int]] = []  # parent and token of each node but the root
        self._asked: dict[int, int] = {}  # most candidates requested, by depth of the parent
        self._scored: tuple[Scoring, float] | None = None

    @override
    def truncate(self, rows: int) -> None:
        super().truncate(rows)
        self._begin(0)

    @override
    def feed_together(self, asked: Sequence[tuple[Any, Context, Fed]]) -> list[list[Any]]:
        sources: list[GraphedSource] = [source for source, _, _ in asked]
        plan, *others = {source._plan_of(context, fed) for source, context, fed in asked}
        if plan is not None and not others:
            lanes = [(source.slot, context, fed.tokens[: fed.pending]) for source, context, fed in asked]
            step = self.model.draft(lanes, plan)
            for source in sources:
                source._take(step, source.slot - step.window.first)
        entered = [source._enter(fed) for source, _, fed in asked]
        slots, growths, grown = [], [], {}
        for source, (_, growth) in zip(sources, entered, strict=True):
            if growth is not None:
                slots.append(source.slot)
                growths.append(growth)
        if slots:
            grown = dict(zip(slots, self.model.grow(slots, growths), strict=True))
        answers = []
        for (source, context, fed), (found, _) in zip(asked, entered, strict=True):
            own = [(grown[source.slot], row) if step is None else (step, row) for step, row in found]
            if source.slot in grown and on_host(grown[source.slot]):
                check_logits(grown[source.slot], "draft", context)
            first = len(fed.ancestors) - len(own)
            source._nodes |= {(id(one), row): first + index for index, (one, row) in enumerate(own)}
            answers.append(own)
        return answers

    def _plan_of(self, context: Context, fed: Fed) -> DraftPlan | None:
        """Return the plan of a tree if this is its first pass, and make ready for the tree."""
        if fed.known:
            return None
        self._begin(fed.pending)
        plan = self._plan
        if plan is None or (plan.scoring.coupled and plan.temperature != context.noise_temperature):
            return None
        fits = self.length + fed.pending + len(plan.levels) <= self.context_limit
        return plan if fits else None

    def _take(self, step: DraftStep, lane: int) -> None:
        """Keep the results of a step."""
        self._step, self._logits = step, step.logits[lane]
        self._tokens, self._log_probs, nodes = step.read(lane)
        rows = [self._pending - 1, *range(step.pending, step.pending + step.nodes - 1)]
        self._children = {(rows[parent], token): node for node, (parent, token) in enumerate(nodes, 1)}
        self._end = step.pending + step.nodes - 1

    def _enter(self, fed: Fed) -> tuple[list[tuple[torch.Tensor | None, int]], Growth | None]:
        """Find the new nodes in the step's results.

        Returns:
            Logits and row of each new node, None for the logits of the pass to come; and that pass, if one is needed.
        """
        found: list[tuple[torch.Tensor | None, int]] = []
        new = fed.ancestors[fed.known or 1 :]
        tokens, depths = [], []
        seen: list[list[int]] = []
        if fed.known == 0:
            if self._step is None:
                tokens, depths = list(fed.tokens[: fed.pending]), list(range(fed.pending))
                seen = [list(range(row + 1)) for row in range(fed.pending)]
                found.append((None, fed.pending - 1))
            else:
                found.append((self._logits, 0))
        for ancestors, token, depth in zip(
            new,
            fed.tokens[len(fed.tokens) - len(new) :],
            fed.depths[len(fed.tokens) - len(new) :],
            strict=True,
        ):
            self._fed.append((ancestors[-2], token))
            above = [self._rows[self._pending - 1 + node] for node in ancestors[:-1]]
            node = self._children.get((above[-1], token))
            if node is not None and self._step is not None:
                self._rows.append(self._step.pending + node - 1)
                self._used += 1
                found.append((self._logits, node))
            else:
                self._rows.append(self._end + len(tokens))
                found.append((None, len(tokens)))
                seen.append([*range(self._pending - 1), *above, self._rows[-1]])
                tokens.append(token)
                depths.append(depth)
        if not tokens:
            return found, None
        visible = np.zeros((len(tokens), self._end + len(tokens)), dtype=np.bool_)
        for row, rows in enumerate(seen):
            visible[row, rows] = True
        self._end += len(tokens)
        return found, Growth(np.array(tokens), np.array(depths), visible)

    @override
    def candidates_together(
        self, scoring: Scoring, asked: Sequence[tuple[Any, Context, Request, Sequence[Any]]]
    ) -> list[Candidates]:
        found = [source._computed(*one) for source, *one in asked]
        rest = [one for one, known in zip(asked, found, strict=True) if known is None]
        ranked = iter(super().candidates_together(scoring, rest) if rest else ())
        answered = [next(ranked) if one is None else one for one in found]
        for (source, context, request, answers), candidates in zip(asked, answered, strict=True):
            source._note(scoring, context, request, answers, candidates)
        return answered

    @override
    def candidates(
        self, scoring: Scoring, context: Context, request: Request, answers: Sequence[Any]
    ) -> Candidates:
        return self.candidates_together(scoring, [(self, context, request, answers)])[0]

    def _computed(self, context: Context, request: Request, answers: Sequence[Any]) -> Candidates | None:
        """Return the candidates that the step computed; None if some nodes or candidates are not among them."""
        step = self._step
        if step is None or request.kind is not NodeKind.POINT_MASS or request.k > step.plan.best:
            return None
        if any(logits is not self._logits for logits, _ in answers):
            return None
        rows = [row for _, row in answers]
        log_probs = self._log_probs[rows, : request.k]
        if np.isnan(log_probs).any():
            check_logits(self._logits, "draft", context)
        tokens = np.where(np.isneginf(log_probs), NO_CANDIDATE, self._tokens[rows, : request.k])
        return Candidates(tokens, log_probs)

    def _note(
        self,
        scoring: Scoring,
        context: Context,
        request: Request,
        answers: Sequence[Any],
        candidates: Candidates,
    ) -> None:
        """Note how the tree grows, unless a step drafted it."""
        if self._step is not None:
            return
        temperature = 1.0 if scoring.temperature is None else scoring.temperature
        self._scored = scoring, context.noise_temperature if scoring.coupled else temperature
        if request.kind is not NodeKind.POINT_MASS:
            self._scored = None
        nodes = [self._nodes[id(logits), row] for logits, row in answers]
        for node, depth, tokens in zip(nodes, request.depths(), candidates.tokens.tolist(), strict=True):
            self._ranks |= {(node, token): rank for rank, token in enumerate(tokens)}
            self._asked[depth] = max(self._asked.get(depth, 0), request.k)

    @override
    def commit(self, rows: Sequence[int]) -> None:
        if self._step is None:
            before, self._before = self._before, self._growth()
            self._plan = _alike(before, self._before) if before and self._before else None
        elif self._used < len(self._fed) and self._step.plan.levels[-1].places:
            self._plan = _as_beam(self._step.plan)  # its nodes were the same by chance
        elif 2 * self._used < max(self._step.nodes - 1, len(self._fed)):
            self._plan = self._before = None  # most of the work was in vain
        super().commit([self._rows[row] for row in rows])
        self._begin(0)

    def _growth(self) -> DraftPlan | None:
        """Return how this tree grew; None if it cannot be drafted in one step."""
        best = max(self._asked.values(), default=0)
        if self._scored is None or not self._fed or best > min(_MOST_BEST, self.vocab_size):
            return None
        levels: list[Level] = []
        depth_of, index_of, widths = [0], [0], [1]  # of each node, and of each level
        places: list[list[tuple[int, int]]] = [[]]
        for parent, token in self._fed:
            rank = self._ranks.get((parent, token))
            if rank is None:  # a node of another drafter
                return None
            depth = depth_of[parent] + 1
            if depth == len(widths):
                widths.append(0)
                places.append([])
            depth_of.append(depth)
            index_of.append(widths[depth])
            widths[depth] += 1
            places[depth].append((index_of[parent], rank))
        for depth in range(1, len(widths)):
            levels.append(Level(widths[depth], self._asked[depth - 1], tuple(places[depth])))
        return DraftPlan(tuple(levels), best, *self._scored)


def _alike(before: DraftPlan, now: DraftPlan) -> DraftPlan | None:
    """Return the plan of the next tree if two grew alike: with the same nodes, or else as beams of the same widths."""
    if before == now:
        return now
    return _as_beam(now) if _as_beam(before) == _as_beam(now) else None


def _as_beam(plan: DraftPlan) -> DraftPlan:
    levels, above = [], 1
    for level in plan.levels:
        above = min(bucket(level.width), above * level.k)  # few widths, so that few graphs are captured
        levels.append(Level(above, level.k))
    return plan._replace(levels=tuple(levels))
