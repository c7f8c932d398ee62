"""Acceptance of ``pair.mode: graphed`` on a GPU: ``python experiments/gpu/accept.py PART... [--device cpu --small]``.

Prints each figure as a JSON object as soon as it is measured. The exit code is 1 if a figure misses its bound. Minutes
per part on a data-center GPU: correct 5, passes 9, steps 8, lanes 8. No network is needed. ``--small`` runs everything
with tiny models. ``--plant`` adds a fault to the loop that ``correct`` must detect.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any, get_args

import numpy as np
import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM
from typing_extensions import override

import specexp
from specexp.builders import BeamRerank, Chain, KConfig, TokenRecyclingTree
from specexp.core.language_model import LanguageModel
from specexp.core.latency import LatencyProfile
from specexp.core.loop import Decoder, Decoding, Drafting, Lane
from specexp.core.outcome import GenerationResult, Outcome
from specexp.core.parts import Parts, join_target
from specexp.core.runtime import PassResult, RowOrder, Runtime
from specexp.core.tree import TokenTree, TreeShape
from specexp.drafters import DraftModel, PromptLookup, TokenRecycling
from specexp.models.graphed import GraphedModel, check_device
from specexp.models.static_slots import ATTENTIONS, StaticSlots
from specexp.models.static_step import TreeStep
from specexp.verifiers import Greedy, KeyedSampling, RejectionSampling

PROMPTS = [f"def task_{n}(numbers):\n    " for n in range(20)]
SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
NEW = {False: 48, True: 16}  # tokens of each output that part "correct" compares, by Run.small
SHAPES = {"tiny": (64, 128, 2, 4), "1B": (2048, 8192, 16, 32), "8B": (4096, 14336, 32, 32)}


@dataclass
class Run:
    """The device and the findings of a run.

    Attributes:
        missed: names of the figures that miss their bounds.
    """

    device: torch.device
    small: bool
    missed: list[str] = field(default_factory=list)

    def say(self, figure: str, value: Any, bound: float | None = None, *, above: bool = False) -> None:
        """Print a figure. Record it as missed if it exceeds its bound or, with ``above``, is below it."""
        ok = bound is None or (value >= bound if above else value <= bound)
        if not ok:
            self.missed.append(figure)
        shown = round(value, 5) if isinstance(value, float) else value
        print(json.dumps({"figure": figure, "value": shown, "bound": bound, "ok": ok}), flush=True)

    def wait(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def milliseconds(self, call: Callable[[], object], times: int = 20) -> float:
        """Return the median milliseconds of a call after three warm-up calls."""
        found = []
        for number in range(3 + (3 if self.small else times)):
            self.wait()
            started = perf_counter()
            call()
            self.wait()
            if number >= 3:
                found.append(1e3 * (perf_counter() - started))
        return median(found)

    def model(self, name: str, dtype: torch.dtype) -> Any:
        """Return a Llama model with random weights of a size in :data:`SHAPES`."""
        shape: dict[str, Any] = dict(zip(SIZES, SHAPES["tiny" if self.small else name], strict=True))
        config = LlamaConfig(
            **shape,
            vocab_size=4096 if self.small else 128_256,
            num_key_value_heads=2 if self.small else 8,
            max_position_embeddings=8192,
            initializer_range=0.02,
        )
        torch.manual_seed(0)
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            with self.device:
                return LlamaForCausalLM(config).eval()
        finally:
            torch.set_default_dtype(before)


# Part "correct".


def correct(run: Run) -> None:
    """Check that outputs equal those of the models' own code and that no step waits for the device unexpectedly."""
    started = perf_counter()
    check_device(run.device)
    run.say("self-test seconds", perf_counter() - started)
    pair = specexp.load_pair("stdlib", target_dtype="float32", device=str(run.device), mode="eager")
    prompts = [pair.tokenizer(text).input_ids for text in PROMPTS[: 2 if run.small else None]]
    compared = {"stdlib": pair.target, "random 1B": run.model("1B", torch.float32)}
    verifiers = {"greedy": Greedy(), "keyed": KeyedSampling(0.7), "rejection": RejectionSampling(0.7)}
    for name, model in compared.items():
        graphed, own = GraphedModel(model), LanguageModel(model)
        for kind, verifier in verifiers.items():
            decoders = [Decoder(one, TokenRecycling(), TokenRecyclingTree(), verifier) for one in (graphed, own)]
            different = 0
            for seed, prompt in enumerate(prompts):
                outputs = [one.generate(prompt, max_new_tokens=NEW[run.small], seed=seed).token_ids for one in decoders]
                different += outputs[0] != outputs[1]
            run.say(f"{name}, {kind}: outputs that differ of {len(prompts)}", different, 0)
        orders(run, name, model, prompts)
        run.say(f"{name}: steps captured", len(graphed._replayers))
        run.say(f"{name}: {graphed.provenance()['attention']}, replayed", graphed.provenance()["replayed"])
        run.say(f"{name}: GiB of cache and buffers", graphed.nbytes() / 2**30)
        if run.device.type == "cuda":
            run.say(f"{name}: GiB reserved", torch.cuda.memory_reserved(run.device) / 2**30)
    captured_drafts(run, pair, prompts)
    unexpected_waits(run, GraphedModel(pair.target), prompts[0])


def orders(run: Run, name: str, model: Any, prompts: list[list[int]]) -> None:
    """Check that rows in depth-first and heavy-path order leave the output as it is."""
    texts = {}
    for order in get_args(RowOrder):
        runtime = GraphedModel(model)
        runtime.row_order = order
        decoder = Decoder(runtime, TokenRecycling(), TokenRecyclingTree())
        texts[order] = [decoder.generate(prompt, max_new_tokens=NEW[run.small]).token_ids for prompt in prompts]
        run.say(f"{name}: attention, rows {order}", runtime.provenance()["attention"])
    different = sum(one != texts["built"] for one in texts.values())
    run.say(f"{name}: orders of rows with other outputs", different, 0)


def captured_drafts(run: Run, pair: Any, prompts: list[list[int]]) -> None:
    """Check that decoding with drafts in one replay takes as many steps as with the model's own code."""
    kinds = {"chain": (Chain(6), 0.5), "levels": (KConfig([4, 2, 2, 1]), 0.5), "beam": (BeamRerank(), 1.0)}
    for name, (builder, bound) in kinds.items():
        steps = {}
        for draft in (GraphedModel(pair.draft), LanguageModel(pair.draft)):
            drafter = DraftModel(draft)
            decoder = Decoder(GraphedModel(pair.target), drafter, builder)
            results = [decoder.generate(prompt, max_new_tokens=NEW[run.small]) for prompt in prompts]
            steps[draft.kind] = sum(result.steps for result in results)
            for runtime in drafter.models:
                if isinstance(runtime, GraphedModel):
                    passes = sum(result.draft_passes for result in results)
                    run.say(f"draft {name}: replays over passes", runtime._runs.total() / passes, bound)
        run.say(f"draft {name}: steps that differ", abs(steps["graphed"] - steps["eager"]), 0)


def unexpected_waits(run: Run, target: GraphedModel, prompt: list[int]) -> None:
    """Forbid waits for the device within steps, in a second run that has nothing left to capture."""
    for mode in ("default", "error"):
        decoding = Decoding(target)
        start(decoding, Parts(TokenRecycling(), TokenRecyclingTree()), prompt, 0, 32 if run.small else 200)
        if run.device.type == "cuda":
            torch.cuda.set_sync_debug_mode(mode)
        try:
            while decoding.lanes:
                decoding.step()
        finally:
            if run.device.type == "cuda":
                torch.cuda.set_sync_debug_mode("default")
    run.say("steps without an unexpected wait", True)


# Part "passes".


def passes(run: Run) -> None:
    """Compare the time of passes with the device's memory bandwidth."""
    source = torch.empty(1 << (20 if run.small else 30), dtype=torch.uint8, device=run.device)
    target, size = torch.empty_like(source), 256 if run.small else 8192
    bandwidth = 2e3 * source.nbytes / run.milliseconds(lambda: target.copy_(source))
    run.say("copy bandwidth GB/s, read and written", bandwidth / 1e9)
    square = torch.randn(size, size, device=run.device, dtype=torch.bfloat16)
    run.say("matrix TFLOP/s, bfloat16", 2e-9 * size**3 / run.milliseconds(lambda: square @ square))
    for name in ("1B", "8B"):
        model = run.model(name, torch.bfloat16)
        layers = sum(p.nbytes for p in model.model.layers.parameters()) + model.lm_head.weight.nbytes
        reading = 1e3 * layers / bandwidth
        run.say(f"{name}: ms to read the weights", reading)
        runtimes: dict[str, Runtime] = {"eager": LanguageModel(model, self_check=False)}
        runtimes |= {"graphed": GraphedModel(model, self_check=False)}
        ms: dict[int, float] = {}
        for prefix in (64,) if run.small else (1000, 4000):
            for kind, runtime in runtimes.items():
                runtime.cache.truncate(0, 0)
                runtime.prefill(0, [5] * prefix)
                for rows in (1, 4) if run.small else (1, 2, 4, 8, 16, 32, 64, 128, 256):
                    tree = _random_tree(rows - 1)
                    took = run.milliseconds(partial(runtime.tree_pass, [0], [tree]))
                    run.say(f"{name}: {kind} pass, {rows} rows behind {prefix}, ms", took)
                    if kind == "graphed" and prefix != 4000:
                        ms[rows] = took
            graphed = runtimes["graphed"]
            assert isinstance(graphed, GraphedModel)
            run.say(f"{name}: attention chosen", {str(shape): one for shape, one in graphed.fastest.items()})
        loose = 1e9 if run.small else 1.0
        run.say(f"{name}: one row over reading the weights", ms[1] / reading, 1.3 * loose)
        run.say(f"{name}: most rows up to 64 over one", ms[min(64, max(ms))] / ms[1], 1.15 * loose)
        profile = LatencyProfile(f"{name} bf16 on {_device_name(run)}", ms, source="measured")
        run.say(f"{name}: latency profile", profile.to_dict())
    large_trees(run)


def large_trees(run: Run) -> None:
    """Time trees of 768 rows, and block-sparse attention over many rows in depth-first and in random order."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    run.say("768 random nodes made into a tree, ms", run.milliseconds(lambda: _random_tree(767)))
    rows, took = 128 if run.small else 2048, {}
    shape = _random_tree(rows - 1).shape
    orders = {"depth-first": sorted(range(rows), key=shape.path)}
    orders["random"] = np.random.default_rng(1).permutation(rows).tolist()
    attend = flex_attention if run.device.type == "cpu" else torch.compile(flex_attention)
    q, k, v = (torch.randn(1, 8, rows, 64, device=run.device).to(torch.bfloat16) for _ in range(3))
    for name, order in orders.items():
        seen = torch.from_numpy(shape.ancestor_mask[order][:, order]).to(run.device)

        def visible(b: Any, h: Any, row: Any, key: Any, seen: torch.Tensor = seen) -> torch.Tensor:
            return seen[row, key]

        mask = create_block_mask(visible, None, None, rows, rows, device=str(run.device))
        took[name] = run.milliseconds(partial(attend, q, k, v, block_mask=mask))
        run.say(f"attention over {rows} rows, {name}, ms", took[name])
    ratio = took["random"] / took["depth-first"]
    run.say("random order over depth-first", ratio, 0.0 if run.small else 1.5, above=True)
    model, tree = run.model("1B", torch.bfloat16), _random_tree(95 if run.small else 767)
    for row_order in get_args(RowOrder):
        runtime = GraphedModel(model, self_check=False)
        runtime.row_order = row_order
        runtime.prefill(0, [5] * 64)
        ms = run.milliseconds(partial(runtime.tree_pass, [0], [tree]))
        run.say(f"1B: pass of {tree.tokens.size} rows, {row_order}, ms", ms)
        run.say(f"1B: attention, {row_order}", runtime.provenance()["attention"])


# Parts "steps" and "lanes".


class Scripted(GraphedModel):
    """A target that runs all passes but outputs a fixed script: the cost of a large model, the acceptance of real text.

    Attributes:
        script: tokens ``[n]`` of prompt and output.
        best: ``[V, k]`` top tokens after each token, by the model that wrote the script. Drafters learn them.
    """

    script: list[int]
    best: torch.Tensor

    @override
    def tree_pass(self, slots: Any, trees: Any) -> PassResult:
        result = super().tree_pass(slots, trees)
        self.synchronize()
        for slot, tree, (_, _, computed) in zip(slots, trees, result.by_tree(), strict=True):
            if computed is not None:
                places = self.cache.lengths[slot] + 1 + tree.shape.depths
                computed.tokens[:] = np.take(self.script, places, mode="clip")
                if computed.top is not None:
                    computed.top[0][:] = self.best[tree.tokens, : computed.top[0].shape[1]]
        return result


def scripted(run: Run) -> tuple[Scripted, Any]:
    """Return a scripted target and a draft model for its script, which the embedded target wrote."""
    pair = specexp.load_pair("stdlib", device=str(run.device), mode="eager")
    model, prompt = LanguageModel(pair.target), pair.tokenizer(" ".join(PROMPTS[:4])).input_ids[:32]
    best = torch.zeros((model.vocab_size, 8), dtype=torch.int64)

    def learn(outcome: Outcome) -> None:
        best[int(outcome.tree.tokens[0])] = outcome.logits[0].topk(8).indices.cpu()

    new = 64 if run.small else 500
    output = Decoder(model).generate(prompt, max_new_tokens=new, observers=[learn]).token_ids
    target = Scripted(run.model("8B", torch.bfloat16), self_check=False)
    target.script, target.best = [*prompt, *output], best
    return target, pair.draft


def steps(run: Run) -> None:
    """Time whole steps with the acceptance of real text."""
    target, draft = scripted(run)
    new = 24 if run.small else 400
    plain, _ = rate(target, (), new)
    run.say("plain tokens/s", plain)
    own = GraphedModel(draft, self_check=False)
    methods = {
        "lookup": (PromptLookup(), Chain(8)),
        "recycling": (TokenRecycling(), TokenRecyclingTree()),
        "draft chain": (DraftModel(own), Chain(6)),
        "draft tree": (DraftModel(own), KConfig([4, 2, 2, 1])),
    }
    for name, parts in methods.items():
        speed, result = rate(target, parts, new)
        per_step = len(result.token_ids) / result.steps
        run.say(f"{name}: tokens per step", per_step)
        seconds = {phase: round(1e3 * spent / result.steps, 4) for phase, spent in result.seconds.items()}
        run.say(f"{name}: ms of a step by phase", seconds)
        bound = 0.0 if run.small else 0.85
        run.say(f"{name}: tokens/s over tokens per step x plain", speed / (per_step * plain), bound, above=True)


def lanes(run: Run) -> None:
    """Time several sequences in shared passes, and rejection sampling."""
    target, _ = scripted(run)
    prompt, new = target.script[:32], 16 if run.small else 200
    for count in (1, 4) if run.small else (1, 4, 8, 16):
        for name in ("plain", "recycling"):
            decoding, made = Decoding(target), []
            target.cache.reserve(1024, count)
            for slot in range(count):
                parts = Parts() if name == "plain" else Parts(TokenRecycling(), TokenRecyclingTree())
                made.append(start(decoding, parts, prompt, slot, new))
            started = perf_counter()
            while decoding.lanes:
                decoding.step()
            tokens = sum(len(lane.result.token_ids) for lane in made)
            run.say(f"{count} lanes, {name}, tokens/s", tokens / (perf_counter() - started))
    sampled = Decoder(target, TokenRecycling(), KConfig([4, 2, 2]), RejectionSampling(0.7))
    result = sampled.generate(prompt, max_new_tokens=new, seed=0)
    run.say("rejection sampling: ms of a step", 1e3 * sum(result.seconds.values()) / result.steps)


def start(decoding: Decoding, parts: Parts, prompt: list[int], slot: int, new: int) -> Lane:
    """Start a sequence in a slot of the target, and grow the target's cache for it."""
    target: Any = decoding.target
    join_target(parts, target)
    target.cache.reserve(1024, slot + 1)
    target.cache.truncate(slot, 0)
    context = parts.context(prompt, 0, slot)
    lane = Lane(context, target, parts.verifier, Drafting(parts, context), slot=slot, max_new_tokens=new)
    decoding.start(lane)
    return lane


def rate(target: Scripted, parts: tuple[Any, ...], new: int) -> tuple[float, GenerationResult]:
    """Return the tokens per second of the second of two runs, and its result."""
    decoder = Decoder(target, *parts)
    for _ in range(2):
        result = decoder.generate(target.script[:32], max_new_tokens=new)
    return len(result.token_ids) / sum(result.seconds.values()), result


def _random_tree(nodes: int) -> TokenTree:
    rng = np.random.default_rng(0)
    parents = [-1, *(int(rng.integers(max(0, row - 40), row)) for row in range(1, nodes + 1))]
    counts, ranks = [0] * (nodes + 1), [-1]
    for parent in parents[1:]:
        ranks.append(counts[parent])
        counts[parent] += 1
    return TokenTree(TreeShape(parents, ranks), rng.integers(0, 4096, nodes + 1))


def _device_name(run: Run) -> str:
    return torch.cuda.get_device_name(run.device) if run.device.type == "cuda" else "a CPU"


def plant(fault: str) -> None:
    """Add one of two faults to the loop that occurred in engines with trees in graphs."""
    ran, committed = TreeStep.run, StaticSlots.commit

    def masked_off_by_one(step: TreeStep) -> None:
        step._inputs.device["base"] -= 1
        ran(step)

    def not_moved(slots: StaticSlots, slot: int, rows: Any) -> None:
        committed(slots, slot, rows)
        slots.moves.pop(slot, None)

    owner, name, broken = (
        (TreeStep, "run", masked_off_by_one) if fault == "mask" else (StaticSlots, "commit", not_moved)
    )
    setattr(owner, name, broken)


PARTS: dict[str, Callable[[Run], None]] = {
    "correct": correct,
    "passes": passes,
    "steps": steps,
    "lanes": lanes,
}


def _main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"one of {', '.join(PARTS)}; default: all")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--plant", choices=["mask", "commit"])
    arguments = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    run = Run(torch.device(arguments.device), arguments.small)
    versions = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": sys.version.split()[0],
    }
    run.say("environment", {**versions, "device": _device_name(run), "attentions": list(ATTENTIONS)})
    if arguments.plant:
        plant(arguments.plant)
    for name in arguments.parts or PARTS:
        started = perf_counter()
        try:
            with torch.inference_mode():
                PARTS[name](run)
        except Exception as error:  # the other parts can still run
            run.missed.append(name)
            print(json.dumps({"part": name, "error": f"{type(error).__name__}: {error}"}), flush=True)
        run.say(f"{name}: seconds", perf_counter() - started)
    print(json.dumps({"missed": run.missed}))
    return 1 if run.missed else 0


if __name__ == "__main__":
    sys.exit(_main())
