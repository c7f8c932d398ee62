"""Our drafter inside vLLM against vLLM's own n-grams: one request, by default prompts to edit and to summarise.

All servers run at once, and each prompt is decoded by all of them before the next one. Ratios are paired by prompt.
Outputs are compared with vLLM's plain ones. Writes runs/vllm_drafters/{drafters.md,prompts.json}.

    python -m experiments.engines.vllm_drafters --artifact smollm2:tree
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np

from experiments.serve.load import conditions, speedup
from specexp.data import EverydayTasks, Workload
from specexp.engines.engine import EngineAnswer
from specexp.engines.settings import PROPOSER, VllmSettings
from specexp.engines.vllm import VLLM
from specexp.models.pair import load_pair

PLAIN, DEFAULT, BEST, OURS = "plain", "default n-grams", "best n-grams", "our drafter"


def engines(options: argparse.Namespace) -> dict[str, VLLM]:
    """Return vLLM without speculation, with its n-grams by default and with the best limits, and with our drafter."""
    shortest, longest = options.ngrams
    settings = {
        PLAIN: None,
        DEFAULT: VllmSettings("ngram", 4),
        BEST: VllmSettings("ngram", options.length, prompt_lookup_min=shortest, prompt_lookup_max=longest),
        OURS: VllmSettings("custom_class", options.ours, PROPOSER, options.artifact),
    }
    return {name: VLLM(one, options.python, eager=True) for name, one in settings.items()}


def main() -> None:
    """Measure all prompts with all engines, and print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--artifact", default="smollm2:tree")
    parser.add_argument("--ours", type=int, default=5, help="most tokens that our drafter drafts")
    parser.add_argument("--length", type=int, default=4, help="tokens that the best n-grams draft")
    parser.add_argument("--ngrams", type=int, nargs=2, default=(2, 4), help="their shortest and longest n-gram")
    parser.add_argument("--tasks", nargs="+", default=["edit a file", "summarise"])
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--offset", type=int, default=0, help="in the set, after what an artifact has learned")
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--dtype", default="float32", help="of the weights")
    parser.add_argument("--python", default=".vllm/bin/python")
    parser.add_argument("--urls", nargs=4, default=[], help="running servers, in the order of the table")
    parser.add_argument("--output", type=Path, default=Path("runs/vllm_drafters"))
    options = parser.parse_args()
    pair = load_pair("smollm2", target_dtype=options.dtype)
    every = Workload(EverydayTasks(), offset=options.offset).load(pair.tokenizer)
    prompts = [one for one in every if one.category in options.tasks][: options.prompts]
    made = engines(options)
    for name, url in zip(made, options.urls, strict=False):
        made[name].url = url
    found: dict[str, list[EngineAnswer]] = {name: [] for name in made}
    with ExitStack() as stack:
        with ThreadPoolExecutor() as pool:  # a start takes about a minute
            started = {name: pool.submit(one.start, pair) for name, one in made.items()}
        running = {name: stack.enter_context(closing(one.result())) for name, one in started.items()}
        for name, one in made.items():
            running[name].answer(one, every[3].token_ids, 16, frozenset())  # warm
        print("all servers are up", flush=True)
        for number, prompt in enumerate(prompts):
            names = [*made]
            for name in names[number % len(names) :] + names[: number % len(names)]:
                ids = list(prompt.token_ids)
                found[name].append(running[name].answer(made[name], ids, options.max_tokens, frozenset()))
            print(prompt.prompt_id, flush=True)
    options.output.mkdir(parents=True, exist_ok=True)
    content = {
        name: [[one.decode_seconds, one.decode_tokens, one.accepted_drafts, one.token_ids] for one in own]
        for name, own in found.items()
    }
    (options.output / "prompts.json").write_text(json.dumps(content))
    tasks = ", ".join(options.tasks)
    about = f"smollm2, {options.dtype}; {options.artifact}; {tasks}; {options.max_tokens} tokens each"
    lines = [*table(found), "", *conditions(about).splitlines()]
    (options.output / "drafters.md").write_text("\n".join(lines) + "\n")
    print(*lines, sep="\n")


def table(found: dict[str, list[EngineAnswer]]) -> list[str]:
    """Return a markdown table of speeds and of our drafter's paired ratios over the others, with 95 % intervals."""
    head = f"| drafts | drafted | accepted | tokens per step | over {PLAIN} | {OURS} over it | equal outputs |"
    lines = [head, "|---" + "|--:" * 6 + "|"]
    for name, own in found.items():
        drafted, accepted = sum(one.drafted_nodes for one in own), sum(one.accepted_drafts for one in own)
        per_step = sum(len(one.token_ids) for one in own) / sum(one.steps for one in own)
        equal = sum(a.token_ids == b.token_ids for a, b in zip(own, found[PLAIN], strict=True))
        over, ours = ratio(own, found[PLAIN]), ratio(found[OURS], own)
        cells = (name, drafted, accepted, f"{per_step:.2f}", over, ours, f"{equal} of {len(own)}")
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def ratio(own: list[EngineAnswer], other: list[EngineAnswer]) -> str:
    """Return the geometric mean of the paired ratios of decoding speeds, with its 95 % interval."""
    if own is other:
        return "1"
    pairs = zip(own, other, strict=True)
    return speedup(
        [np.log((b.decode_seconds / b.decode_tokens) / (a.decode_seconds / a.decode_tokens)) for a, b in pairs]
    )


if __name__ == "__main__":
    main()
