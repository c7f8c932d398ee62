"""``python -m specexp.profile.overhead``: what dynamic trees, phrase caches and controllers cost beside the models.

Bookkeeping: real trees are built with the embedded draft, every answer is kept, and the builder runs again on the kept
answers alone, so that its own time is all that is left. Drawing: the same builders on synthetic distributions over a
large vocabulary; the time of all draws of a tree, beside a Gumbel top-k with noise from the same keyed generator.
Reuse: the embedded pair decodes with a phrase cache at both models and a controller, clocks around their methods.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from experiments.papers.post_use_pre_cut.component_times import GRAFT, ComponentTimes
from specexp.bench.publish import terminal
from specexp.bench.table import Cell, Column, Table
from specexp.builders import Chain, DySpecGreedy, DySpecThreshold, Graft
from specexp.controllers import Fixed, QLearning
from specexp.core.context import Context
from specexp.core.controller import Controller
from specexp.core.decoder import Decoder
from specexp.core.dialogue import Candidates, Plan, Request
from specexp.core.noise import gumbel, place_key
from specexp.core.outcome import Outcome
from specexp.core.tree import TokenTree
from specexp.core.tree_builder import TreeBuilder
from specexp.data import StdlibFunctions, Workload
from specexp.drafters import DraftModel, PhraseCache
from specexp.drafters.drawing import draw
from specexp.models.pair import ModelPair, load_pair
from specexp.profile.clocked import clocked

Answer = Callable[[Request], Candidates]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print all tables."""
    parser = argparse.ArgumentParser(prog="python -m specexp.profile.overhead")
    parser.add_argument("--nodes", type=int, nargs="+", default=[64, 768], help="tree sizes")
    parser.add_argument("--trees", type=int, default=40, help="trees of each size")
    parser.add_argument("--vocabulary", type=int, default=32_000, help="tokens drawn from")
    parser.add_argument("--step-ms", type=float, default=20.0, help="target step the shares refer to")
    parser.add_argument("--target-ms", type=float, default=152.0, help="target pass of a step with reuse")
    parser.add_argument("--draft-ms", type=float, default=21.0, help="draft pass of a step with reuse")
    parser.add_argument("--only", choices=("trees", "reuse"), help="only these tables")
    given = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    torch.set_num_threads(1)
    console = terminal()
    pair = load_pair("stdlib")
    rows = Workload(StdlibFunctions(), max_prompts=given.trees).load(pair.tokenizer)
    prompts = [pair.tokenizer(prompt.turns[0]).input_ids for prompt in rows]
    with torch.inference_mode():
        if given.only != "reuse":
            console.print(bookkeeping_table(given.nodes, pair, prompts, given.step_ms).to_rich())
            console.print(prefetch_table(64, pair, prompts).to_rich())
            drawn = max(given.trees // 4, 3)
            console.print(drawing_table(given.nodes, drawn, given.vocabulary).to_rich())
        if given.only != "trees":
            for controller in (QLearning(draft_cost=given.draft_ms / given.target_ms), Fixed()):
                table = reuse_table(controller, pair, prompts, given.target_ms, given.draft_ms)
                console.print(table.to_rich())
    return 0


def reuse_table(
    controller: Controller,
    pair: ModelPair,
    prompts: Sequence[Sequence[int]],
    target_ms: float,
    draft_ms: float,
    max_new_tokens: int = 128,
) -> Table:
    """Milliseconds a step of the phrase cache, of grafts and of the controller, at the paper's sizes: chains of up to
    24, 3 phrases riding in a draft pass, 3 grafted at each of 3 anchors.

    Args:
        controller: Controller that decides before every draft pass.
        pair: Pair with a draft model.
        prompts: Tokens of the prompts; the cache is carried from one to the next.
        target_ms: Milliseconds of a target pass, which shares refer to.
        draft_ms: Milliseconds of a draft pass.
        max_new_tokens: New tokens of each prompt.
    """
    inner = DraftModel(pair.draft)
    cache = PhraseCache(inner, state="carry")
    decoder = Decoder(pair.target, cache, Graft(Chain(24)), controller=controller)
    clocks = [
        *(clocked(cache, "propose", "costs_pass"), clocked(cache, "observe")),
        *(clocked(inner, "propose", "costs_pass"), clocked(inner, "observe")),
        *(clocked(cache, "_phrases"), clocked(cache.store, "lookup")),  # carried: it stays the same store
        *(clocked(controller, "plan", "keep_drafting"), clocked(controller, "observe")),
    ]
    copies = ComponentTimes()
    copies.begin({"arm": decoder.parts})
    steps: list[list[float]] = []

    def note(outcome: Outcome) -> None:
        copies.observe("arm", outcome)
        steps.append([clock.taken() for clock in clocks] + [float(outcome.draft_passes)])

    for number, prompt in enumerate(prompts):
        decoder.generate(prompt, max_new_tokens=max_new_tokens, seed=0, sequence=number, observers=[note])
    proposed, observed, model, model_observed, phrases, keys, decided, learned, passes = np.array(steps).T
    looked = phrases + keys  # twice what a look-up for a graft takes
    grafted = copies.milliseconds("arm")[GRAFT] / 1e3
    times = {
        "phrase cache: look-ups": looked,
        "graft": grafted,
        "controller: plan and decisions": decided,
        "the three together": looked + grafted + decided,
        "phrase cache: riding": proposed - model - looked,
        "phrase cache: insertion": observed - model_observed,
        "controller: learning": learned,
    }
    modelled_ms = target_ms + draft_ms * passes.mean()
    table = Table(
        f"reuse and {type(controller).__name__}: {len(steps)} steps of {passes.mean():.1f} draft passes "
        f"(share of the median in {target_ms:g} ms and {draft_ms:g} ms a draft pass)",
        [
            Column("a step"),
            *(Column(name, 3) for name in ("median ms", "mean ms", "95 % below")),
            Column("share", 2, "%"),
        ],
    )
    for name, seconds in times.items():
        milliseconds = 1e3 * seconds
        median = float(np.median(milliseconds))
        figures = [median, float(milliseconds.mean()), float(np.quantile(milliseconds, 0.95))]
        table.rows.append([name, *figures, median / modelled_ms])
    return table


def bookkeeping_table(
    sizes: Sequence[int], pair: ModelPair, prompts: Sequence[Sequence[int]], step_ms: float
) -> Table:
    """Milliseconds of the builders alone on answers of a draft model, one tree after every prompt."""
    table = Table(
        f"bookkeeping of a tree, given the candidates ({len(prompts)} trees; share of a {step_ms:g} ms step)",
        [
            Column("builder"),
            *(Column(name, 1) for name in ("nodes", "depth", "passes")),
            Column("ms"),
            Column("share", 1, "%"),
        ],
    )
    for nodes in sizes:
        for builder in (
            DySpecGreedy(nodes, prefetch=nodes),
            DySpecGreedy(nodes, prefetch=nodes, candidates="top-k"),
            DySpecThreshold(1 / nodes, max_nodes=nodes),
        ):
            grown, answers, passes = _grow(builder, pair.draft, prompts)
            median = float(np.median([_bookkeeping_ms(builder, kept) for kept in answers]))
            name = f"{type(builder).__name__}, {'drawn' if builder.kind else 'top-k'}"
            size = float(np.mean([tree.num_nodes for tree in grown]))
            table.rows.append(
                [name, size, _mean_depth(grown), float(np.mean(passes)), median, median / step_ms]
            )
    return table


def prefetch_table(nodes: int, pair: ModelPair, prompts: Sequence[Sequence[int]]) -> Table:
    """Draft passes by how many waiting entries are drafted together, and whether the tree stays the same.

    A tree may differ from that of one pass a node where the draft's logits, which depend on what shares a pass in their
    last bits, move two values past each other or a draw past the border of two tokens; of the trees that differ the
    largest difference of their sorted values is given.
    """
    columns = [Column("candidates"), Column("prefetch"), Column("depth"), Column("passes")]
    table = Table(
        f"prefetch: {nodes} nodes, {len(prompts)} prompts",
        [*columns, Column("other trees"), Column("values apart")],
    )
    for candidates in ("drawn", "top-k"):
        expected: list[TokenTree] = []
        for prefetch in (1, 4, 8, 16, 32, 64):
            builder = DySpecGreedy(nodes, prefetch=prefetch, candidates=candidates)
            grown, _, passes = _grow(builder, pair.draft, prompts)
            expected = expected or grown
            other = [both for both in zip(grown, expected, strict=True) if not _same(*both)]
            apart = max(
                (np.abs(_sorted_values(one) - _sorted_values(two)).max() for one, two in other), default=None
            )
            shown = None if apart is None else f"{apart:.1g}"
            row: list[Cell] = [
                candidates,
                prefetch,
                _mean_depth(grown),
                float(np.mean(passes)),
                len(other),
                shown,
            ]
            table.rows.append(row)
    return table


def _mean_depth(grown: Sequence[TokenTree]) -> float:
    return float(np.mean([tree.shape.max_depth for tree in grown]))


def _sorted_values(tree: TokenTree) -> NDArray[np.float64]:
    assert tree.values is not None
    return np.sort(tree.values)


def _same(one: TokenTree, two: TokenTree) -> bool:
    return one.shape.rank_paths == two.shape.rank_paths and bool((one.tokens == two.tokens).all())


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


def _grow(
    builder: TreeBuilder, draft: Any, prompts: Sequence[Sequence[int]]
) -> tuple[list[TokenTree], list[list[Candidates]], list[int]]:
    """A tree after every prompt, the answers it was built from, and its draft passes."""
    grown, answers, passes = [], [], []
    for number, prompt in enumerate(prompts):
        drafter, kept = DraftModel(draft, temperature=0.6), list[Candidates]()
        context = Context(prompt, sequence=number)
        drafter.begin(context, None)

        def answer(
            request: Request,
            drafter: DraftModel = drafter,
            context: Context = context,
            kept: list[Candidates] = kept,
        ) -> Candidates:
            kept.append(drafter.propose(context, request))
            return kept[-1]

        grown.append(_build(builder, context.root, answer))
        answers.append(kept)
        passes.append(drafter.draft_passes)
    return grown, answers, passes


def _bookkeeping_ms(builder: TreeBuilder, answers: Sequence[Candidates], repetitions: int = 5) -> float:
    """Median time of one build whose answers are there already."""
    times = []
    for _ in range(repetitions):
        left = iter(answers)
        started = perf_counter()
        _build(builder, 0, lambda request, left=left: next(left))  # type: ignore[misc]
        times.append(1e3 * (perf_counter() - started))
    return float(np.median(times))


def drawing_table(sizes: Sequence[int], trees: int, vocabulary: int) -> Table:
    """Milliseconds of all draws of a tree over a large vocabulary."""
    heads = ("softmax ms", "draws ms", "Gumbel top-k ms")
    table = Table(
        f"drawing the candidates of a tree over {vocabulary:,} tokens ({trees} trees)",
        [Column("draft"), Column("nodes"), Column("drafted rows", 0), *(Column(head, 1) for head in heads)],
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

    Args:
        builder: Builder of the tree.
        power: ``[V]`` log-probabilities; every node has them in an order of its own.
        seed: Seed of the orders and of the draws.
    """
    context = Context([0], seed=seed)
    generator = np.random.default_rng(seed)
    falling = torch.from_numpy(power.astype(np.float32))
    logits: dict[int, torch.Tensor] = {}
    spent = np.zeros(3)

    def answer(request: Request) -> Candidates:
        asked = request.rows.tolist()
        for row in asked:
            if row not in logits:
                logits[row] = falling[generator.permutation(power.size)]
        scores = torch.stack([logits[row] for row in asked])

        def uniforms(rows: NDArray[np.int64], start: int, count: int) -> Any:
            numbers = [context.uniforms("draft", 0, (asked[row],), size=start + count) for row in rows]
            return np.stack(numbers)[:, start:]

        times = [perf_counter()]
        q = scores.softmax(dim=-1)
        times.append(perf_counter())
        candidates = draw(q, uniforms, request.k, enough=request.enough)
        times.append(perf_counter())
        noise = torch.cat([gumbel(place_key(seed, 0, "draft"), row, 1, power.size) for row in asked])
        (scores.log_softmax(dim=-1) + noise).topk(max(candidates.tokens.shape[1], 1))
        times.append(perf_counter())
        spent[:] += np.diff(times)
        return candidates

    _build(builder, 0, answer)
    return len(logits), *(1e3 * spent).tolist()


if __name__ == "__main__":
    sys.exit(main())
