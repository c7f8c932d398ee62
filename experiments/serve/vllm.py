"""Our server and vLLM at 1, 4, 8 and 16 requests: the same prompts, weights and cores, plain and with speculation.

The three servers run at once, and take turns under each load. Greedy, SmolLM2-135M-Instruct, everyday
prompts as token ids, answers of equal length. Ratios are paired by round. Writes
runs/serve_vllm/{load.md,requests.json}.

    python -m experiments.serve.vllm --rounds 3
    python -m experiments.serve.vllm --rounds 10 --ours   # without vLLM
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from experiments.serve.load import Body, Round, conditions, free_port, load, our_server, rate, serving, speedup, table
from specexp.data import EverydayTasks, Workload
from specexp.engines.settings import VllmSettings
from specexp.engines.vllm import VLLM
from specexp.models.pair import load_pair

OURS, OUR_PLAIN, THEIRS, THEIR_PLAIN = "specexp, tree", "specexp, plain", "vLLM, n-grams", "vLLM, plain"
PAIRS = ((OURS, OUR_PLAIN), (THEIRS, THEIR_PLAIN), (OUR_PLAIN, THEIR_PLAIN), (OURS, THEIRS))


def main() -> None:
    """Measure the servers in turns, and print and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--each", type=int, default=2, help="requests of each client in a round")
    parser.add_argument("--length", type=int, default=3, help="tokens that vLLM's n-grams draft")
    parser.add_argument("--dtype", default="float32", help="of the weights")
    parser.add_argument("--python", default=".vllm/bin/python")
    parser.add_argument("--eager", action="store_true", help="start vLLM without compiling")
    parser.add_argument("--ours", action="store_true", help="measure only our server")
    parser.add_argument("--urls", nargs=2, default=[], help="running servers of vLLM, plain and with n-grams")
    parser.add_argument("--output", type=Path, default=Path("runs/serve_vllm"))
    options = parser.parse_args()
    most, pair = max(options.at_once), load_pair("smollm2", target_dtype=options.dtype)
    prompts = [list(one.token_ids) for one in Workload(EverydayTasks(), max_prompts=30).load(pair.tokenizer)]
    engine = partial(VLLM, python=options.python, eager=options.eager, concurrency=most)
    ngrams = VllmSettings("ngram", options.length, prompt_lookup_min=2, prompt_lookup_max=4)

    def body(model: str, prompt: Sequence[int], seed: int, **more: Any) -> Body:
        fixed = {"max_tokens": options.max_tokens, "temperature": 0, "ignore_eos": True}
        usage = {"stream_options": {"include_usage": True}}
        return {"model": model, "prompt": prompt, "seed": seed, **fixed, **usage, **more}

    runs = defaultdict[tuple[str, int], list[Round]](list)
    about = f"smollm2, {options.dtype}; prompts of EverydayTasks; {options.max_tokens} tokens each"
    with TemporaryDirectory(prefix="specexp-") as folder, ExitStack() as stack:
        ports, work = [free_port() for _ in range(3)], Path(folder)
        plain, drafting = (engine(one).words(port, pair) for one, port in zip((None, ngrams), ports[1:], strict=True))
        own = our_server(
            "smollm2:tree", ports[0], "--lanes", str(most), "--threads", "2", "--target-dtype", options.dtype
        )
        commands = (own,) if options.urls or options.ours else (own, plain, drafting)
        urls = [
            *(
                stack.enter_context(serving(command, port, work / f"{port}.log", 600))[1]
                for command, port in zip(commands, ports, strict=False)
            ),
            *options.urls,
        ]
        model = plain[plain.index("--model") + 1]
        arms = {
            OURS: (urls[0], partial(body, "smollm2")),
            OUR_PLAIN: (urls[0], partial(body, "smollm2", speculative=False)),
        }
        if not options.ours:
            arms |= {THEIR_PLAIN: (urls[1], partial(body, model)), THEIRS: (urls[2], partial(body, model))}
        for url, made in arms.values():
            asyncio.run(load(url, made, prompts, most, most))  # warm
        print("all servers are up", flush=True)
        for number in range(options.rounds):
            for at_once in options.at_once:
                for name in np.random.default_rng([number, at_once]).permutation([*arms]).tolist():
                    url, made = arms[name]
                    runs[name, at_once].append(
                        asyncio.run(load(url, made, prompts, at_once, max(5, options.each * at_once)))
                    )
            text = write(runs, options.output, about)  # after each round, because one takes minutes
            print(f"round {number + 1}", flush=True)
    print(text)


def write(runs: Mapping[tuple[str, int], Sequence[Round]], output: Path, about: str) -> str:
    """Write the tables and the requests of all rounds so far; returns the tables."""
    ordered = dict(sorted(runs.items(), key=lambda one: one[0][1]))
    output.mkdir(parents=True, exist_ok=True)
    text = f"{table(ordered)}\n{ratios(ordered)}\n{conditions(about)}"
    (output / "load.md").write_text(text)
    rows = [
        {"server": name, "at_once": at_once, "round": number, "seconds": seconds, **asdict(one)}
        for (name, at_once), rounds in ordered.items()
        for number, (answers, seconds) in enumerate(rounds)
        for one in answers
    ]
    (output / "requests.json").write_text(json.dumps(rows))
    return text


def ratios(runs: Mapping[tuple[str, int], Sequence[Round]]) -> str:
    """Return a markdown table of tokens per second over those of another server, with 95 % intervals over rounds."""
    loads = sorted({at_once for _, at_once in runs})
    lines = [f"| tokens per second | {' | '.join(map(str, loads))} |", "|---" + "|--:" * len(loads) + "|"]
    for name, other in (pair for pair in PAIRS if {*pair} <= {name for name, _ in runs}):
        cells = []
        for at_once in loads:
            both = zip(runs[name, at_once], runs[other, at_once], strict=True)
            cells.append(speedup(np.log([rate(*one) / rate(*two) for one, two in both])))
        lines.append(f"| {name} over {other} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
