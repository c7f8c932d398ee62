"""Measures the gain by AMX tiles, in ratios of one run: ``python -m experiments.passes.amx [PART ...]``.

Prints each figure with its bound, and whether it is met; the exit code is 1 if one is missed, or if this machine has no
tiles. Nothing else may run meanwhile. Parts, and their minutes on two cores:

- ``rows`` (2): passes over 1 to 80 rows, against one row, and against the other bfloat16 products of the processor;
- ``packed`` (1): the same with weights of four bits;
- ``prefill`` (1): 512 and 1,024 tokens, against those products and torch's matrix products alone;
- ``lanes`` (3): 16 requests at once without drafts, against those products;
- ``job`` (5): the main job, with its 80-node tree.

``python -m experiments.passes.contest experiments/passes/smollm2.yaml`` compares with other engines.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from specexp.base.start import begin
from specexp.core.contracts import BuilderLimits
from specexp.core.parts import Parts
from specexp.core.runtime import Runtime
from specexp.data import EverydayTasks, Workload
from specexp.models import llama_weights
from specexp.models.compiled import CompiledModel
from specexp.models.llama_weights import Products, describe_products, kernels_of
from specexp.models.pair import ModelPair, load_pair
from specexp.profile.passes import TargetPass
from specexp.scheduling import Batched, Executor, Job
from specexp.verifiers import Greedy

PARTS = ("rows", "packed", "prefill", "lanes", "job")
BOUNDS = {16: 1.15, 32: 1.4, 48: 1.6, 80: 2.2}
PACKED_BOUNDS = {16: 1.5, 80: 2.5}
PREFIX, ROUNDS, LANES = 256, 12, 16


class List:
    """The figures of a run and the names of those missed."""

    def __init__(self) -> None:
        self.missed: list[str] = []

    def say(self, name: str, ratio: float, bound: float, *, above: bool = False) -> None:
        """Print a figure. It is met if it is at most ``bound``, or at least if ``above``."""
        met = ratio >= bound if above else ratio <= bound
        if not met:
            self.missed.append(name)
        word = "least" if above else "most"
        print(f"{'met   ' if met else 'missed'}  {name}: {ratio:.2f}, bound: at {word} {bound:g}", flush=True)


def compiled(target: str, products: Products | None = None, mode: str = "compiled") -> tuple[ModelPair, Runtime]:
    """Load a pair and compile its target, with other products of bfloat16 weights than the machine's best if given."""
    pair = load_pair(target, mode=mode)
    own = llama_weights.products_of
    with patch.object(llama_weights, "products_of", lambda *given: products or own(*given)):
        return pair, pair.target_runtime()


def seconds_of(works: dict[Any, Callable[[], float]], rounds: int = ROUNDS) -> dict[Any, float]:
    """Return median seconds of several works, measured in turns. The first round is the warm-up."""
    taken: dict[Any, list[float]] = defaultdict(list)
    for _ in range(1 + rounds):
        for name, work in works.items():
            taken[name].append(min(work() for _ in range(3)))
    return {name: median(seconds[1:]) for name, seconds in taken.items()}


def rows(figures: List, target: str, other: Products, mode: str = "compiled") -> None:
    """Time passes over several numbers of rows."""
    text = np.arange(5, 5 + 2 * PREFIX)
    bounds = BOUNDS if mode == "compiled" else PACKED_BOUNDS
    passes: dict[Any, Callable[[], float]] = {}
    for name, products in (("tiles", None), ("other", other)):
        timed = TargetPass(compiled(target, products, mode)[1], text)
        timed.prepare(PREFIX)
        passes |= {(name, count): partial(timed_once, timed, count) for count in (1, *bounds)}
    taken = seconds_of(passes)
    figures.say(f"{mode}: one row, over other products", taken["tiles", 1] / taken["other", 1], 1.03)
    for count, bound in bounds.items():
        figures.say(f"{mode}: {count} rows over one", taken["tiles", count] / taken["tiles", 1], bound)
        print(f"        with other products {taken['other', count] / taken['other', 1]:.2f}")


def timed_once(timed: TargetPass, count: int) -> float:
    """Return the seconds of a pass over ``count`` rows, at the same place in the cache each time."""
    timed.prepare(PREFIX)
    return timed.seconds(count)


def prefill(figures: List, target: str, other: Products) -> None:
    """Time prefills, and torch's products of the same sizes."""
    (pair, tiles), (_, plain) = compiled(target), compiled(target, other)
    weights = [one.weight for one in pair.target.modules() if isinstance(one, torch.nn.Linear)][:-1]

    def filled(runtime: Runtime, text: list[int]) -> float:
        runtime.cache.truncate(0, 0)
        begun = perf_counter()
        runtime.prefill(0, text)
        return perf_counter() - begun

    @torch.inference_mode()
    def products(count: int) -> float:
        inputs = {one.shape[1]: torch.ones(count, one.shape[1], dtype=torch.bfloat16) for one in weights}
        begun = perf_counter()
        for one in weights:
            torch.nn.functional.linear(inputs[one.shape[1]], one)
        return perf_counter() - begun

    for count in (512, 1024):
        text = np.arange(5, 5 + count).tolist()
        works: dict[Any, Callable[[], float]] = {
            "tiles": partial(filled, tiles, text),
            "other": partial(filled, plain, text),
            "torch": partial(products, count),
        }
        taken = seconds_of(works, rounds=4)
        ratio, share = taken["other"] / taken["tiles"], taken["torch"] / taken["tiles"]
        figures.say(f"prefill of {count} tokens, over other products", ratio, 3, above=True)
        figures.say(f"prefill of {count} tokens, over torch's products alone", share, 0.5, above=True)


def lanes(figures: List, target: str, other: Products) -> None:
    """Decode 16 requests of 64 tokens at once, without drafts."""
    with ExitStack() as stack:
        works: dict[Any, Callable[[], float]] = {}
        for name, products in (("tiles", None), ("other", other)):
            pair, _ = compiled(target, products)  # an executor's runtimes share the compiled weights
            parts = Parts(None, None, Greedy(), BuilderLimits())
            executor = stack.enter_context(Batched(LANES).open(pair.target, parts))
            prompts = Workload(EverydayTasks(), max_prompts=LANES).load(pair.tokenizer)
            jobs = [Job(tuple(one.token_ids), one.prompt_id, 64) for one in prompts]
            works[name] = partial(decoded, executor, jobs)
        taken = seconds_of(works, rounds=2)
    figures.say(f"{LANES} requests, over other products", taken["other"] / taken["tiles"], 2.5, above=True)


def decoded(executor: Executor, jobs: Sequence[Job]) -> float:
    """Return the seconds in which an executor decodes all requests."""
    begun = perf_counter()
    executor.run(jobs)
    return perf_counter() - begun


def job(figures: List, target: str, other: Products) -> None:
    """Run the main job, and read its table."""
    with TemporaryDirectory() as folder:
        command = (
            "specexp.sweep",
            "experiments/tree_shape.yaml",
            "--output",
            folder,
            "--sweep.export",
            "null",
        )
        tree = ("--sweep.confirm.best", "12")  # so that the 80-node tree is confirmed too
        subprocess.run([sys.executable, "-m", *command, "--pair.target", target, *tree], check=True)
        with (Path(folder) / "tree_shape" / "confirm.csv").open() as file:
            found = {row["tree"]: row for row in csv.DictReader(file)}
    del found["plain decoding"]
    best = max(float(row["speedup"]) for row in found.values())
    figures.say("main job: the best tree over plain decoding", best, 1.8, above=True)
    figures.say("main job: the 80-node tree", float(found["80-node tree"]["speedup"]), 1.15, above=True)
    unequal = [name for name, row in found.items() if len(set(row["equal outputs"].split("/"))) > 1]
    figures.say("main job: trees with other outputs than plain decoding", len(unequal), 0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the parts and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument("--target", default="smollm2", help="the model: smollm2 or stdlib")
    options = parser.parse_args(arguments)
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"PART must be of {', '.join(PARTS)}, got {', '.join(sorted(unknown))}")
    torch.set_num_threads(2)
    pair, runtime = compiled(options.target)
    kernels = kernels_of(pair.target)
    print(f"{describe_products(kernels)}.")
    if not isinstance(runtime, CompiledModel) or runtime._weights.products != Products.TILES:
        return 1
    figures, other = List(), Products(kernels.products(False))
    works: dict[str, Callable[[List, str, Products], None]] = {
        "rows": rows,
        "packed": partial(rows, mode="packed"),
        "prefill": prefill,
        "lanes": lanes,
        "job": job,
    }
    for part in options.parts or PARTS:
        works[part](figures, options.target, other)
    print(f"{len(figures.missed)} missed" + (f": {', '.join(figures.missed)}" if figures.missed else ""))
    return min(1, len(figures.missed))


if __name__ == "__main__":
    begin()
    sys.exit(main())
