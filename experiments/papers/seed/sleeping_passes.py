"""SEED on passes that take time but no core, as on a GPU: a target that sleeps 30 ms, drafts that sleep 4 ms.

Drafting runs in real processes. Logits are hashes of the last tokens. The draft prefers the target's token with a given
probability, and every output must equal that of plain decoding. The arms take turns::

    python -m experiments.papers.seed.sleeping_passes
"""

from __future__ import annotations

import time
from argparse import ArgumentParser
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
from typing_extensions import override

from experiments.serve.load import speedup
from specexp.builders import KConfig
from specexp.core.language_model import LanguageModel
from specexp.core.parts import Parts
from specexp.drafters import DraftModel
from specexp.scheduling import Execution, Executor, Job, LeastProgress, Scheduled, Serial, SerialSpeculative
from specexp.testing.fakes import FakeCausalLM
from specexp.verifiers import Greedy

TARGET_MS, DRAFT_MS = 30.0, 4.0
VOCABULARY = 64
CHAIN, TREE = [1, 1, 1, 1], [4, 2, 1, 1]
ARMS: Mapping[str, tuple[Execution, list[int] | None]] = {
    "plain": (Serial(), None),
    "serial, chains": (SerialSpeculative(), CHAIN),
    "SEED, chains, 3 processes": (Scheduled(3, workers=3), CHAIN),
    "SEED, chains, 1 process": (Scheduled(3), CHAIN),
    "SEED, chains, 4 sequences": (Scheduled(4, workers=4), CHAIN),
    "SEED, chains, least progress first": (Scheduled(3, LeastProgress(), workers=3), CHAIN),
    "serial, trees": (SerialSpeculative(), TREE),
    "SEED, trees, 3 processes": (Scheduled(3, workers=3), TREE),
}


class SleepingModel(FakeCausalLM):
    """A model with hashes of the last three tokens as logits. A pass of any number of rows sleeps equally long."""

    def __init__(self, milliseconds: float, agreement: float = 1.0) -> None:
        super().__init__(partial(_logits, agreement), VOCABULARY, context_limit=256)
        self.seconds = milliseconds / 1000

    @override
    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        ends = time.perf_counter() + self.seconds
        answer = super().forward(*arguments, **keywords)
        time.sleep(max(0.0, ends - time.perf_counter()))
        return answer


def _logits(agreement: float, tokens: tuple[int, ...]) -> tuple[float, ...]:
    return _hashed(agreement, tokens[-3:])


@lru_cache(maxsize=1 << 16)
def _hashed(agreement: float, tokens: tuple[int, ...]) -> tuple[float, ...]:
    """The target's logits, with their best token in the first place of the draft's with probability ``agreement``."""
    random = np.random.default_rng(tokens)
    logits = random.standard_normal(VOCABULARY)
    if random.random() >= agreement:
        order = np.argsort(-logits)
        better = 1 + random.geometric(0.5)  # tokens that the draft prefers
        logits[order[0]] = logits[order[min(better, VOCABULARY - 1)]] - 1e-6
    return tuple(logits.tolist())


class Result(NamedTuple):
    """Seconds of an arm, its tokens by sequence, tokens per step, and the share of time with a busy target."""

    seconds: float
    outputs: list[list[int]]
    tokens_per_step: float
    busy: float


def executor_of(execution: Execution, widths: list[int] | None, agreement: float) -> AbstractContextManager[Executor]:
    """Return an executor of models that sleep."""
    target, draft = (
        LanguageModel(SleepingModel(*one), self_check=False) for one in ((TARGET_MS,), (DRAFT_MS, agreement))
    )
    parts = Parts(DraftModel(draft), KConfig(widths), Greedy()) if widths else Parts(verifier=Greedy())
    return execution.open(target, parts)


def decoded(executor: Executor, jobs: int, tokens: int, seed: int) -> Result:
    """Decode some sequences, and measure."""
    run = executor.run([Job((seed + 1, number + 1), number, tokens) for number in range(jobs)], seed=seed)
    outputs = [result.token_ids for result in run.results]
    steps = sum(result.steps for result in run.results)
    return Result(run.timeline.seconds, outputs, sum(map(len, outputs)) / steps, run.timeline.utilisation())


def main() -> None:
    """Print each arm's speed over plain decoding, with its interval over rounds, and check the outputs."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--agreement", type=float, nargs="+", default=[0.37, 0.63])
    options = parser.parse_args()
    for agreement in options.agreement:
        found: dict[str, list[Result]] = {name: [] for name in ARMS}
        with ExitStack() as stack:
            executors = {name: stack.enter_context(executor_of(*arm, agreement)) for name, arm in ARMS.items()}
            for seed in range(options.rounds):
                for name, executor in executors.items():
                    found[name].append(decoded(executor, options.jobs, options.tokens, seed))
        print(f"\na drafted token is the target's with probability {agreement}\n")
        print("| | over plain | tokens per step | target busy |\n|---|--:|--:|--:|")
        for name, results in found.items():
            pairs = [*zip(found["plain"], results, strict=True)]
            assert all(own.outputs == plain.outputs for plain, own in pairs), name
            ratio = speedup(np.log([plain.seconds / own.seconds for plain, own in pairs]))
            tokens, busy = (np.mean([getattr(one, key) for one in results]) for key in ("tokens_per_step", "busy"))
            print(f"| {name} | {ratio} | {tokens:.2f} | {busy:.0%} |", flush=True)


if __name__ == "__main__":
    main()
