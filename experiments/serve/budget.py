"""Tokens per second of a mixed load at 1, 4, 8 and 16 lanes, by the rule that sets draft lengths.

The rules are a fixed length, a table of lengths by lanes (vLLM's), a goodput rule, and one budget of nodes for all.
All decode the same requests to edit, summarise, write code, chat and explain, in turns. Rates are those while no lane
is idle: the end of a run lasts as long as its slowest requests, whatever the others gain. Writes
runs/serve_budget/{budget.md,rounds.json}. Each output is compared with that of plain decoding.

    python -m experiments.serve.budget --lanes 1 4 8 16 --rounds 3
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter

import numpy as np
import torch

from specexp.bench.statistics import mean_interval
from specexp.builders import Chain
from specexp.controllers import DraftLengths, NodeBudget
from specexp.core.contracts import BuilderLimits, Controller
from specexp.core.outcome import Outcome
from specexp.core.parts import Parts
from specexp.data import EverydayTasks, Prompt, Workload
from specexp.drafters import PromptLookup
from specexp.models.pair import ModelPair, load_pair
from specexp.scheduling import Batched, Executor, Job
from specexp.verifiers import Greedy

LONGEST = 8
PLAIN, BUDGET = "plain", "node budget"


def controllers() -> dict[str, Controller]:
    """Return the rules, by name; each sets the length of a chain of at most :data:`LONGEST` tokens."""
    fixed = {f"fixed {length}": DraftLengths({1: length}) for length in (1, 2, 4, LONGEST)}
    table = DraftLengths({1: 8, 2: 4, 8: 2, 16: 1})
    goodput = NodeBudget(shared_steps=1e6)
    return {PLAIN: BuilderLimits(), **fixed, "table by lanes": table, "goodput": goodput, BUDGET: NodeBudget()}


class Round:
    """One run of all requests: its tokens per second without prefills while no lane is idle, and the seconds per token
    of each request.
    """

    def __init__(self, executor: Executor, jobs: Sequence[Job]) -> None:
        times: dict[int | str, list[float]] = defaultdict(list)
        busy: list[tuple[float, int]] = []  # time and tokens of each step while no lane is idle

        def note(outcome: Outcome) -> None:
            times[outcome.context.sequence].append(perf_counter())
            if outcome.context.lanes == executor.n:
                busy.append((perf_counter(), len(outcome.new_token_ids)))

        run = executor.run(jobs, observers=[note])
        self.texts = [result.token_ids for result in run.results]
        begin, end = busy[0][0], busy[-1][0]
        prefills = (one for one in run.timeline if one.what == "prefill" and begin < one.start < end)
        seconds = end - begin - sum(one.end - one.start for one in prefills)
        self.rate = sum(tokens for _, tokens in busy[1:]) / seconds
        self.steps = sum(result.steps for result in run.results)
        self.each = [
            (times[job.sequence][-1] - times[job.sequence][0]) / max(1, len(text) - 1)
            for job, text in zip(jobs, self.texts, strict=True)
        ]


def load_parser(about: str | None, output: str, rounds: int, requests: int, tokens: int) -> argparse.ArgumentParser:
    """Return the options of an experiment that decodes a mixed load: lanes, sizes, target and output folder."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--lanes", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--requests", type=int, default=requests)
    parser.add_argument("--max-tokens", type=int, default=tokens)
    parser.add_argument("--target", default="smollm2")
    parser.add_argument("--output", default=output)
    return parser


def mixed_load(options: argparse.Namespace) -> tuple[ModelPair, list[Prompt]]:
    """Load the target in bfloat16 for two threads, and the requests to edit, summarise, code, chat and explain."""
    torch.set_num_threads(2)
    pair = load_pair(options.target, target_dtype="bfloat16", mode="compiled")
    return pair, list(Workload(EverydayTasks(), max_prompts=options.requests).load(pair.tokenizer))


def main() -> None:
    """Measure all rules at all loads, and print and write the table."""
    options = load_parser(__doc__, "runs/serve_budget", rounds=3, requests=60, tokens=48).parse_args()
    pair, prompts = mixed_load(options)
    found: dict[int, dict[str, list[Round]]] = defaultdict(lambda: defaultdict(list))
    every = [Job(tuple(one.token_ids), one.prompt_id, options.max_tokens) for one in prompts]
    tasks = [one.category for one in prompts]
    for lanes in options.lanes:
        jobs = every[: max(10, 4 * lanes)]
        with ExitStack() as stack:
            executors = {
                name: stack.enter_context(
                    Batched(lanes).open(
                        pair.target,
                        Parts(
                            None if name == PLAIN else PromptLookup(min_ngram=2),
                            None if name == PLAIN else Chain(LONGEST),
                            Greedy(),
                            rule,
                        ),
                    )
                )
                for name, rule in controllers().items()
            }
            Round(executors[BUDGET], jobs)  # learned on the same load
            Round(executors["goodput"], jobs)
            for number in range(options.rounds):
                for name in np.random.default_rng(number).permutation(list(executors)).tolist():
                    found[lanes][name].append(Round(executors[name], jobs))
            print(*rows_of(lanes, found[lanes], tasks), sep="\n", flush=True)
    folder = Path(options.output)
    folder.mkdir(parents=True, exist_ok=True)
    head = "| lanes | rule | tokens/s | over plain | slowest task | tokens/step | outputs equal |"
    lines = [
        head,
        "|---" * 7 + "|",
        *(row for lanes in found for row in rows_of(lanes, found[lanes], tasks)),
        "",
        *overall(found),
    ]
    (folder / "budget.md").write_text("\n".join(lines) + "\n")
    content = {
        lanes: {name: [{"rate": one.rate, "each": one.each} for one in own] for name, own in by_name.items()}
        for lanes, by_name in found.items()
    }
    (folder / "rounds.json").write_text(json.dumps(content))
    print(*overall(found), sep="\n")


def rows_of(lanes: int, rounds: dict[str, list[Round]], tasks: Sequence[str]) -> list[str]:
    """Return the table's rows of a load."""
    rows, plain = [], rounds[PLAIN]
    tasks = tasks[: len(plain[0].each)]
    for name, own in rounds.items():
        logs = np.log([one.rate / other.rate for one, other in zip(own, plain, strict=True)])
        low, high = np.exp(mean_interval(logs))
        each = np.median(
            [[b / a for a, b in zip(one.each, other.each, strict=True)] for one, other in zip(own, plain, strict=True)],
            axis=0,
        )
        by_task = {
            task: np.exp(np.mean([np.log(x) for x, t in zip(each, tasks, strict=True) if t == task])) for task in tasks
        }
        slowest = min(by_task, key=by_task.__getitem__)
        equal = sum(text == other for text, other in zip(own[-1].texts, plain[-1].texts, strict=True))
        per_step = sum(map(len, own[-1].texts)) / own[-1].steps
        rate = np.median([one.rate for one in own])
        speed = f"{np.exp(logs.mean()):.2f}x [{low:.2f}, {high:.2f}]"
        rows.append(
            f"| {lanes} | {name} | {rate:.0f} | {speed} | {slowest} {by_task[slowest]:.2f}x | {per_step:.2f} | "
            f"{equal} of {len(tasks)} |"
        )
    return rows


def overall(found: dict[int, dict[str, list[Round]]]) -> list[str]:
    """Return the speedup of the node budget over each rule, over all loads together."""
    lines = []
    for name in next(iter(found.values())):
        logs = [
            np.log(one.rate / other.rate)
            for by_name in found.values()
            for one, other in zip(by_name[BUDGET], by_name[name], strict=True)
        ]
        low, high = np.exp(mean_interval(np.array(logs)))
        lines.append(f"{BUDGET} over {name}: {np.exp(np.mean(logs)):.3f}x [{low:.3f}, {high:.3f}]  ")
    return lines


if __name__ == "__main__":
    main()
