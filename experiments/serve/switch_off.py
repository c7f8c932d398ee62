"""Seconds per token of mixed requests: plain, always drafting, and as the server drafts.

All arms decode the same greedy requests to edit, summarise, write code, chat and explain, in turns and in the server's
decoding thread. They decode as many at once as there are lanes. Requests of a group start together, so that the prefill
of a next request never interrupts the others. Writes runs/serve_switch_off/switch_off.md. Each output is compared with
that of plain decoding.

    python -m experiments.serve.switch_off --lanes 1 4 --rounds 2
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

import numpy as np
import torch

from experiments.serve.budget import load_parser, mixed_load
from experiments.serve.load import speedup
from specexp.builders import Chain
from specexp.controllers import NodeBudget
from specexp.core.contracts import BuilderLimits, Controller
from specexp.core.parts import Parts
from specexp.core.runtime import Runtime
from specexp.data import Prompt
from specexp.deploy.server.decoding_thread import DecodingThread, Output, Update
from specexp.deploy.server.texts import OutputText
from specexp.drafters import PromptLookup
from specexp.verifiers import KeyedSampling

PLAIN, ALWAYS, SERVED = "plain", "always drafting", "as served"


class Client:
    """A request, and the time of each of its updates."""

    def __init__(self, prompt: Prompt, tokens: int, speculative: bool) -> None:
        self.tokens: list[int] = []
        self.times: list[float] = []
        self.first = 0  # tokens of the first update
        self.output = Output(
            prompt=tuple(prompt.token_ids),
            seed=0,
            sequence=0,
            max_new_tokens=tokens,
            eos_token_ids=(),
            verifier=KeyedSampling(0.0),
            text=OutputText(lambda tokens: ""),
            notify=self.add,
            speculative=speculative,
        )

    def add(self, update: Update) -> None:
        """Take an update of the decoding thread."""
        self.times.append(perf_counter())
        self.tokens += update.tokens
        self.first = self.first or len(update.tokens)

    @property
    def seconds_per_token(self) -> float:
        """Seconds per token after the first update."""
        return (self.times[-1] - self.times[0]) / max(1, len(self.tokens) - self.first)


def decode(
    target: Runtime, prompts: Sequence[Prompt], tokens: int, lanes: int, arm: str, controller: Controller
) -> list[Client]:
    """Decode all requests in the server's thread."""
    parts = Parts(PromptLookup(min_ngram=2), Chain(6), controller=controller)
    thread = DecodingThread(target, parts, lanes=lanes, waiting=len(prompts))
    clients = [Client(prompt, tokens, arm != PLAIN) for prompt in prompts]
    for first in range(0, len(clients), lanes):
        thread.submit([client.output for client in clients[first : first + lanes]])
        with torch.inference_mode():
            while thread.waiting or thread.running:
                thread.round()
    return clients


def main() -> None:
    """Measure all arms at all loads, and print and write the tables."""
    options = load_parser(__doc__, "runs/serve_switch_off", rounds=2, requests=20, tokens=96).parse_args()
    pair, prompts = mixed_load(options)
    target = pair.target_runtime()
    lines = ["| lanes | arm | task | over plain | slowest request | outputs equal |", "|---" * 6 + "|"]
    print(*lines, sep="\n")
    for lanes in options.lanes:
        found: dict[str, list[list[Client]]] = defaultdict(list)
        controllers = {PLAIN: BuilderLimits(), ALWAYS: BuilderLimits(), SERVED: NodeBudget(from_lanes=2)}
        decode(target, prompts, options.max_tokens, lanes, SERVED, controllers[SERVED])  # learns, as a server
        for number in range(options.rounds):
            for arm in np.random.default_rng(number).permutation([PLAIN, ALWAYS, SERVED]).tolist():
                found[arm].append(decode(target, prompts, options.max_tokens, lanes, arm, controllers[arm]))
        rows = rows_of(lanes, found, prompts)
        print(*rows, sep="\n", flush=True)
        lines += rows
    folder = Path(options.output)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "switch_off.md").write_text("\n".join(lines) + "\n")


def rows_of(lanes: int, found: dict[str, list[list[Client]]], prompts: Sequence[Prompt]) -> list[str]:
    """Return the table's rows of a load: each arm's speed over plain decoding, by task."""
    rows = []
    for arm in (ALWAYS, SERVED):
        logs = np.log(
            [
                [a.seconds_per_token / b.seconds_per_token for a, b in zip(plain, own, strict=True)]
                for plain, own in zip(found[PLAIN], found[arm], strict=True)
            ]
        ).mean(axis=0)  # [requests]
        pairs = list(zip(found[PLAIN][0], found[arm][0], strict=True))
        for task in ["all", *dict.fromkeys(one.category for one in prompts)]:
            chosen = [number for number, one in enumerate(prompts) if task in ("all", one.category)]
            equal = sum(pairs[number][0].tokens == pairs[number][1].tokens for number in chosen)
            speed = speedup(logs[chosen])
            slowest = f"{np.exp(logs[chosen].min()):.2f}x"
            rows.append(f"| {lanes} | {arm} | {task} | {speed} | {slowest} | {equal} of {len(chosen)} |")
    return rows


if __name__ == "__main__":
    main()
