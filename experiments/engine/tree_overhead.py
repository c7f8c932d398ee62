"""``python -m experiments.engine.tree_overhead``: the cost of dynamic trees beside the models.

Bookkeeping: the builder runs again on the candidates that the embedded draft gave it, so that only its own time is
left. Drawing: the draws of a builder on synthetic distributions over a large vocabulary, beside a Gumbel top-k with
noise from the same keyed generator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from specexp.bench.publish import terminal
from specexp.bench.table import Table, columns
from specexp.builders import DySpecGreedy, DySpecThreshold
from specexp.core.context import Context
from specexp.core.dialogue import Candidates, Plan, Request
from specexp.core.noise import gumbel, place_key
from specexp.core.tree import TokenTree
from specexp.core.tree_builder import TreeBuilder
from specexp.data import StdlibFunctions, Workload
from specexp.drafters import DraftModel
from specexp.drafters.drawing import draw
from specexp.models.pair import load_pair

Answer = Callable[[Request], Candidates]
SIZES = (64, 768)
REPETITIONS = 5
STEP_MS = 20.0
"""Target step that the shares refer to."""


def main() -> None:
    """Print both tables."""
    torch.set_num_threads(1)
    pair = load_pair("stdlib")
    rows = Workload(StdlibFunctions(), max_prompts=40).load(pair.tokenizer)
    prompts = [pair.tokenizer(prompt.turns[0]).input_ids for prompt in rows]
    with torch.inference_mode():
        for table in (bookkeeping_table(SIZES, pair.draft, prompts), drawing_table(SIZES, 10, 32_000)):
            terminal().print(table.to_rich())


def bookkeeping_table(sizes: Sequence[int], draft: Any, prompts: Sequence[Sequence[int]]) -> Table:
    """Milliseconds of the builders on candidates of a draft model, one tree after every prompt."""
    table = Table(
        f"bookkeeping of a tree, given the candidates ({len(prompts)} trees; share of a {STEP_MS:g} ms step)",
        columns("builder | nodes:.1 | depth:.1 | passes:.1 | ms | share:.1%"),
    )
    for nodes in sizes:
        for builder in (
            DySpecGreedy(nodes, prefetch=nodes),
            DySpecGreedy(nodes, prefetch=nodes, candidates="top-k"),
            DySpecThreshold(1 / nodes, max_nodes=nodes),
        ):
            grown = [_grown(builder, draft, number, prompt) for number, prompt in enumerate(prompts)]
            shapes = [(tree.num_nodes, tree.shape.max_depth, passes) for tree, _, passes in grown]
            median = float(np.median([_bookkeeping_ms(builder, kept) for _, kept, _ in grown]))
            name = f"{type(builder).__name__}, {'drawn' if builder.kind else 'top-k'}"
            table.rows.append([name, *np.mean(shapes, axis=0).tolist(), median, median / STEP_MS])
    return table


def _grown(
    builder: TreeBuilder, draft: Any, number: int, prompt: Sequence[int]
) -> tuple[TokenTree, list[Candidates], int]:
    """A tree after a prompt, the candidates it was built from, and its draft passes."""
    drafter, kept = DraftModel(draft, temperature=0.6), list[Candidates]()
    context = Context(prompt, sequence=number)
    drafter.begin(context, None)

    def answer(request: Request) -> Candidates:
        kept.append(drafter.propose(context, request))
        return kept[-1]

    return _build(builder, context.root, answer), kept, drafter.draft_passes


def _bookkeeping_ms(builder: TreeBuilder, kept: Sequence[Candidates]) -> float:
    """Median milliseconds of a build from kept candidates."""
    times = []
    for _ in range(REPETITIONS):
        left = iter(kept)
        started = perf_counter()
        _build(builder, 0, lambda request, left=left: next(left))  # type: ignore[misc]
        times.append(1e3 * (perf_counter() - started))
    return float(np.median(times))


def _build(builder: TreeBuilder, root: int, answer: Answer) -> TokenTree:
    """The tree that a builder grows from these answers, without limits."""
    build = builder.build(root, Plan())
    try:
        request = next(build)
        while True:
            request = build.send(answer(request))
    except StopIteration as finished:
        tree: TokenTree = finished.value
        return tree


def drawing_table(sizes: Sequence[int], trees: int, vocabulary: int) -> Table:
    """Milliseconds of all draws of a tree over a large vocabulary."""
    table = Table(
        f"drawing the candidates of a tree over {vocabulary:,} tokens ({trees} trees)",
        columns("draft | nodes | drafted rows:.0 | softmax ms:.1 | draws ms:.1 | Gumbel top-k ms:.1"),
    )
    for exponent in (1.2, 1.6, 2.0, 3.0):
        power = -exponent * np.log(np.arange(1, vocabulary + 1))  # probabilities fall as a power of the rank
        best = 1 / np.exp(power).sum()
        for nodes in sizes:
            builder = DySpecGreedy(nodes, prefetch=nodes)
            costs = np.array([_drawn_tree_ms(builder, power, seed) for seed in range(trees)])
            table.rows.append([f"best token {best:.0%}", nodes, *np.median(costs, axis=0).tolist()])
    return table


def _drawn_tree_ms(builder: TreeBuilder, power: NDArray[np.float64], seed: int) -> tuple[float, ...]:
    """Drafted rows, and the milliseconds of softmax, of our draws and of a Gumbel top-k, in one tree.

    Every node has the log-probabilities ``power`` of shape ``[V]`` in an order of its own.
    """
    context = Context([0], seed=seed)
    generator = np.random.default_rng(seed)
    falling = torch.from_numpy(power.astype(np.float32))
    logits: dict[int, torch.Tensor] = {}
    spent = np.zeros(3)

    def answer(request: Request) -> Candidates:
        rows = request.rows.tolist()
        for row in rows:
            if row not in logits:
                logits[row] = falling[generator.permutation(power.size)]
        scores = torch.stack([logits[row] for row in rows])

        def uniforms(places: NDArray[np.int64], start: int, count: int) -> Any:
            numbers = [context.uniforms("draft", 0, (rows[place],), size=start + count) for place in places]
            return np.stack(numbers)[:, start:]

        times = [perf_counter()]
        q = scores.softmax(dim=-1)
        times.append(perf_counter())
        candidates = draw(q, uniforms, request.k, enough=request.enough)
        times.append(perf_counter())
        noise = torch.cat([gumbel(place_key(seed, 0, "draft"), row, 1, power.size) for row in rows])
        (scores.log_softmax(dim=-1) + noise).topk(max(candidates.tokens.shape[1], 1))
        times.append(perf_counter())
        spent[:] += np.diff(times)
        return candidates

    _build(builder, 0, answer)
    return len(logits), *(1e3 * spent).tolist()


if __name__ == "__main__":
    main()
