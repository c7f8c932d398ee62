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
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from rich.table import Table

    from specexp.core.outcome import Outcome
    from specexp.core.parts import Candidates, Controller, Drafter, TreeBuilder
    from specexp.core.tree import TokenTree
    from specexp.pairs.pair import ModelPair


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
    import torch
    from rich.console import Console

    torch.set_num_threads(1)
    console = Console()
    with torch.inference_mode():
        if given.only != "reuse":
            console.print(bookkeeping_table(given.nodes, given.trees, given.step_ms))
            console.print(prefetch_table(64, given.trees))
            console.print(drawing_table(given.nodes, max(given.trees // 4, 3), given.vocabulary))
        if given.only != "trees":
            from specexp.controllers import Fixed, QLearning
            from specexp.pairs.pair import load_pair

            pair = load_pair("stdlib")
            prompts = _prompts(pair.tokenizer, given.trees)
            for controller in (QLearning(draft_cost=given.draft_ms / given.target_ms), Fixed()):
                console.print(reuse_table(controller, pair, prompts, given.target_ms, given.draft_ms))
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
        controller: decides before every draft pass.
        pair: with a draft model.
        prompts: their tokens; the cache is carried from one to the next.
        target_ms: of a target pass, which shares refer to.
        draft_ms: of a draft pass.
        max_new_tokens: of each prompt.
    """
    from rich.table import Table

    from specexp.builders import Chain, Graft
    from specexp.core.decode import Decoder
    from specexp.drafters import DraftModel, PhraseCache
    from specexp.papers.post_use_pre_cut.component_times import GRAFT, ComponentTimes

    inner = DraftModel(pair.draft)
    cache = PhraseCache(inner, state="carry")
    decoder = Decoder(pair.target, cache, Graft(Chain(24)), controller=controller)
    outside = [_clocked(cache, "propose", "costs_pass"), _clocked(cache, "observe")]
    inside = [_clocked(inner, "propose", "costs_pass"), _clocked(inner, "observe")]
    deciding, learning = _clocked(controller, "plan", "keep_drafting"), _clocked(controller, "observe")
    copies = ComponentTimes()
    copies.begin({"arm": decoder.parts})
    looking = [
        _clocked(cache, "_phrases"),
        _clocked(cache.store, "lookup"),
    ]  # carried, so it stays the same store
    clocks = [*outside, *inside, *looking, deciding, learning]
    steps: list[list[float]] = []

    def note(outcome: Outcome) -> None:
        copies.observe("arm", outcome)
        steps.append([clock.taken() for clock in clocks] + [float(outcome.draft_passes)])

    for number, prompt in enumerate(prompts):
        decoder.generate(prompt, max_new_tokens=max_new_tokens, sequence=number, observers=[note])
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
        title=f"reuse and {type(controller).__name__}: {len(steps)} steps of {passes.mean():.1f} draft passes "
        f"(share of the median in {target_ms:g} ms and {draft_ms:g} ms a draft pass)"
    )
    for column in ("a step", "median ms", "mean ms", "95 % below", "share"):
        table.add_column(column, justify="left" if column == "a step" else "right")
    for name, seconds in times.items():
        milliseconds = 1e3 * seconds
        figures = (np.median(milliseconds), milliseconds.mean(), np.quantile(milliseconds, 0.95))
        table.add_row(name, *(f"{ms:.3f}" for ms in figures), f"{figures[0] / modelled_ms:.2%}")
    return table


class _Clock:
    """Seconds spent in some methods of a part."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def taken(self) -> float:
        """Seconds since it was asked last."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds

    def around(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """The method with the clock running."""

        def clocked(*arguments: Any, **named: Any) -> Any:
            started = perf_counter()
            try:
                return method(*arguments, **named)
            finally:
                self.seconds += perf_counter() - started

        return clocked


def _clocked(part: object, *methods: str) -> _Clock:
    """Put a clock around methods of one part."""
    clock = _Clock()
    for name in methods:
        setattr(part, name, clock.around(getattr(part, name)))
    return clock


def bookkeeping_table(sizes: Sequence[int], trees: int, step_ms: float) -> Table:
    """Milliseconds of the builders alone on answers of the embedded draft at held-out prompts."""
    from rich.table import Table

    table = Table(
        title=f"bookkeeping of a tree, given the candidates ({trees} trees; share of a {step_ms:g} ms step)"
    )
    for column in ("builder", "nodes", "depth", "passes", "ms", "share"):
        table.add_column(column, justify="left" if column == "builder" else "right")
    from specexp.builders import DySpecGreedy, DySpecThreshold
    from specexp.pairs.pair import load_pair

    pair = load_pair("stdlib")
    prompts = _prompts(pair.tokenizer, trees)
    for nodes in sizes:
        for builder in (
            DySpecGreedy(nodes, prefetch=nodes),
            DySpecGreedy(nodes, prefetch=nodes, candidates="top-k"),
            DySpecThreshold(1 / nodes, max_nodes=nodes),
        ):
            grown, answers, passes = _grow_recorded(builder, pair.draft, prompts)
            milliseconds = [_replayed_ms(builder, kept) for kept in answers]
            table.add_row(
                f"{type(builder).__name__}, {'drawn' if builder.kind else 'top-k'}",
                f"{np.mean([tree.num_nodes for tree in grown]):.1f}",
                f"{np.mean([tree.shape.max_depth for tree in grown]):.1f}",
                f"{np.mean(passes):.1f}",
                f"{np.median(milliseconds):.2f}",
                f"{np.median(milliseconds) / step_ms:.1%}",
            )
    return table


def prefetch_table(nodes: int, trees: int) -> Table:
    """Draft passes by how many waiting entries are drafted together, and whether the tree stays the same.

    A tree may differ from that of one pass a node where the draft's logits, which depend on what shares a pass in their
    last bits, move two values past each other or a draw past the border of two tokens; of the trees that differ the
    largest difference of their sorted values is given.
    """
    from rich.table import Table

    from specexp.builders import DySpecGreedy
    from specexp.pairs.pair import load_pair

    table = Table(title=f"prefetch: {nodes} nodes, {trees} trees, {trees} prompts of the embedded pair")
    for column in ("candidates", "prefetch", "depth", "passes", "other trees", "values apart"):
        table.add_column(column, justify="left" if column == "candidates" else "right")
    pair = load_pair("stdlib")
    prompts = _prompts(pair.tokenizer, trees)
    for candidates in ("drawn", "top-k"):
        expected: list[TokenTree] = []
        for prefetch in (1, 4, 8, 16, 32, 64):
            builder = DySpecGreedy(nodes, prefetch=prefetch, candidates=candidates)
            grown, _, passes = _grow_recorded(builder, pair.draft, prompts)
            expected = expected or grown
            other = [pair for pair in zip(grown, expected, strict=True) if not _same(*pair)]
            apart = [np.abs(_sorted_values(one) - _sorted_values(two)).max() for one, two in other]
            table.add_row(
                candidates,
                str(prefetch),
                f"{np.mean([tree.shape.max_depth for tree in grown]):.2f}",
                f"{np.mean(passes):.2f}",
                str(len(other)),
                f"{max(apart):.1g}" if apart else "",
            )
    return table


def _sorted_values(tree: TokenTree) -> NDArray[np.float64]:
    assert tree.values is not None
    return np.sort(tree.values)


def _same(one: TokenTree, two: TokenTree) -> bool:
    return one.shape.rank_paths == two.shape.rank_paths and bool((one.tokens == two.tokens).all())


def _prompts(tokenizer: Any, count: int) -> list[list[int]]:
    from specexp.data import StdlibFunctions, Workload
    from specexp.data.prompts import PromptDataModule

    data = PromptDataModule(Workload(StdlibFunctions(), max_prompts=count), tokenizer)
    return [tokenizer(prompt.turns[0]).input_ids for prompt in data.prompts]


def _grow_recorded(
    builder: TreeBuilder, draft: Any, prompts: Sequence[Sequence[int]]
) -> tuple[list[TokenTree], list[list[Candidates]], list[int]]:
    """A tree after every prompt, the answers it was built from, and its draft passes."""
    from specexp.core.context import Context
    from specexp.drafters import DraftModel

    grown, recorded, passes = [], [], []
    for number, prompt in enumerate(prompts):
        drafter: Drafter = DraftModel(draft, temperature=0.6)
        context = Context(prompt, sequence=number)
        drafter.begin(context, None)
        answers: list[Candidates] = []
        build = builder.build(context.root, _no_limits())
        try:
            request = next(build)
            while True:
                answers.append(drafter.propose(context, request))
                request = build.send(answers[-1])
        except StopIteration as finished:
            grown.append(finished.value)
        recorded.append(answers)
        passes.append(drafter.draft_passes)
    return grown, recorded, passes


def _replayed_ms(builder: TreeBuilder, answers: Sequence[Candidates], repetitions: int = 5) -> float:
    """Median time of one build whose answers are there already."""
    times = []
    for _ in range(repetitions):
        started = perf_counter()
        build = builder.build(0, _no_limits())
        next(build)
        try:
            for answer in answers:
                build.send(answer)
        except StopIteration:
            pass
        times.append(1e3 * (perf_counter() - started))
    return float(np.median(times))


def _no_limits() -> Any:
    from specexp.core.parts import Plan

    return Plan()


def drawing_table(sizes: Sequence[int], trees: int, vocabulary: int) -> Table:
    """Milliseconds of all draws of a tree over a large vocabulary."""
    from rich.table import Table

    from specexp.builders import DySpecGreedy

    table = Table(title=f"drawing the candidates of a tree over {vocabulary:,} tokens ({trees} trees)")
    for column in ("draft", "nodes", "drafted rows", "softmax ms", "draws ms", "Gumbel top-k ms"):
        table.add_column(column, justify="left" if column == "draft" else "right")
    for exponent in (1.2, 1.6, 2.0, 3.0):
        power = -exponent * np.log(np.arange(1, vocabulary + 1))  # probabilities fall as a power of the rank
        for nodes in sizes:
            builder = DySpecGreedy(nodes, prefetch=nodes)
            costs = [_drawn_tree_ms(builder, power, seed) for seed in range(trees)]
            rows, softmax, draws, gumbel = np.median(np.array(costs), axis=0)
            best = 1 / np.exp(power).sum()
            table.add_row(
                f"best token {best:.0%}",
                str(nodes),
                f"{rows:.0f}",
                f"{softmax:.1f}",
                f"{draws:.1f}",
                f"{gumbel:.1f}",
            )
    return table


def _drawn_tree_ms(builder: TreeBuilder, power: NDArray[np.float64], seed: int) -> tuple[float, ...]:
    """Drafted rows, and the milliseconds of softmax, of our draws and of a Gumbel top-k, in one tree.

    Args:
        builder: of the tree.
        power: ``[V]`` log-probabilities; every node has them in an order of its own.
        seed: of the orders and of the draws.
    """
    import torch

    from specexp.core.context import Context
    from specexp.core.noise import gumbel, place_key
    from specexp.drafters.drawing import draw

    context = Context([0], seed=seed)
    generator = np.random.default_rng(seed)
    falling = torch.from_numpy(power.astype(np.float32))
    logits: dict[int, torch.Tensor] = {}
    softmax = draws = top_k = 0.0
    build = builder.build(0, _no_limits())
    try:
        request = next(build)
        while True:
            asked = request.rows.tolist()
            for row in asked:
                if row not in logits:
                    logits[row] = falling[generator.permutation(power.size)]
            scores = torch.stack([logits[row] for row in asked])
            started = perf_counter()
            q = scores.softmax(dim=-1)
            softmaxed = perf_counter()

            def uniforms(rows: NDArray[np.int64], start: int, count: int, asked: list[int] = asked) -> Any:
                numbers = [context.uniforms("draft", 0, (asked[row],), size=start + count) for row in rows]
                return np.stack(numbers)[:, start:]

            answer = draw(q, uniforms, request.k, enough=request.enough)
            drawn = perf_counter()
            noise = np.stack([gumbel(place_key(seed, 0, "draft"), row, power.size) for row in asked])
            (scores.log_softmax(dim=-1) + torch.from_numpy(noise)).topk(max(answer.tokens.shape[1], 1))
            softmax, draws = softmax + softmaxed - started, draws + drawn - softmaxed
            top_k += perf_counter() - drawn
            request = build.send(answer)
    except StopIteration:
        return len(logits), 1e3 * softmax, 1e3 * draws, 1e3 * top_k


if __name__ == "__main__":
    sys.exit(main())
