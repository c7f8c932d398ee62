"""Counts the intervals that exclude 1 if nothing differs.

    python -m experiments.calibration                                  # on planted times, about a minute
    python -m experiments.calibration experiments/demo.yaml --real 30  # plain decoding against itself on this machine

The first command prints the table of docs/measuring.md. Overrides of the file may follow, such as --data.max_prompts 8.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Sequence
from contextlib import redirect_stdout
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
from typing_extensions import override

from specexp.bench.arm import LearningArm
from specexp.bench.measuring import decoded_again
from specexp.bench.record import PromptRecord
from specexp.bench.statistics import Speedup, paired_speedup
from specexp.core.parts import Parts
from specexp.tracking.names import PLAIN
from specexp.verifiers import Greedy

RUNS, SEARCHES, CANDIDATES, CONFIRMED = 200, 50, 12, 3
SEARCHED, PROMPTS, TOKENS, SECONDS = 16, 24, 40, 0.02
NOISE = (0.02, 0.05, 0.1, 0.2)  # standard deviation of a prompt's log time
HELD_UP, HELD_SECONDS = 1 / 6, 0.3  # share of answers that another program holds up, and for how long


class PlantedArm(LearningArm):
    """An arm of one token a step and ``SECONDS`` a token, with noise and disturbances."""

    def __init__(self, name: str, generator: np.random.Generator, noise: float, held_up: float) -> None:
        super().__init__(name, Parts(verifier=Greedy()), SimpleNamespace(max_new_tokens=TOKENS))  # type: ignore[arg-type]
        self.generator, self.noise, self.held_up = generator, noise, held_up

    @override
    def decode(self, prompt: Any, sample: int = 0, max_new_tokens: int | None = None) -> PromptRecord:
        taken = TOKENS * SECONDS * float(np.exp(self.generator.normal(0.0, self.noise)))
        taken += HELD_SECONDS * bool(self.generator.random() < self.held_up)
        tokens = tuple(range(TOKENS))  # no repetition
        counts: dict[str, Any] = {"turn_tokens": (TOKENS,), "finish_reasons": ("length",), "steps": TOKENS}
        counts |= {"decode_seconds": taken, "decode_tokens": TOKENS, "seconds": {"target": taken}}
        return PromptRecord(self.name, prompt.prompt_id, "planted", token_ids=tokens, **counts)


def measured(
    names: Sequence[str], prompts: int, generator: np.random.Generator, noise: float, held_up: float
) -> list[PromptRecord]:
    """Return the records of equal arms, with deviating prompts decoded again."""
    arms = [PlantedArm(name, generator, noise, held_up) for name in (PLAIN, *names)]
    requests: list[Any] = [SimpleNamespace(prompt_id=f"p{number}") for number in range(prompts)]
    records = [arm.decode(prompt) for prompt in requests for arm in arms]
    return decoded_again(arms, requests, records)


def excludes_one(speedup: Speedup) -> bool:
    """Return whether a verdict would differ from the truth, which is 1."""
    return speedup.is_faster or speedup.is_slower


def names_a_winner(*given: Any) -> bool:
    """Return whether a search over equal candidates ends with one that is called faster."""
    names = [f"trial {number}" for number in range(CANDIDATES)]
    searched = measured(names, SEARCHED, *given)
    found = {name: paired_speedup(searched, name, PLAIN) for name in names}
    best = sorted(names, key=lambda name: (found[name].refused is not None, -found[name].mean_log_ratio))
    records = measured(best[:CONFIRMED], PROMPTS, *given)
    return any(paired_speedup(records, name, PLAIN, among=CONFIRMED).is_faster for name in best[:CONFIRMED])


def planted() -> str:
    """Return the table of the rates of error on planted times, as Markdown."""
    lines = [
        f"| noise | disturbed | of {RUNS} runs, intervals that exclude 1 | refused | "
        f"of {SEARCHES} searches, with a winner |",
        "|---:|---:|---:|---:|---:|",
    ]
    for held_up in (0.0, HELD_UP):
        for noise in NOISE:
            given = (np.random.default_rng(0), noise, held_up)
            runs = [paired_speedup(measured(["again"], PROMPTS, *given), "again", PLAIN) for _ in range(RUNS)]
            winners = sum(names_a_winner(*given) for _ in range(SEARCHES))
            wrong, refused = sum(map(excludes_one, runs)), sum(one.refused is not None for one in runs)
            lines.append(f"| {noise:.0%} | {held_up:.0%} | {wrong} | {refused} | {winners} |".replace("%", " %"))
    return "\n".join(lines)


def real(file: str, runs: int, overrides: Sequence[str]) -> str:
    """Compare plain decoding with itself several times on this machine, and return what was found."""
    from specexp.commands.run import AGAIN, against_itself, run
    from specexp.config import build_pair, load_config

    config, found = load_config(file), list[Speedup]()
    pair = build_pair(config)
    with TemporaryDirectory() as folder:
        for seed in range(runs):
            changed = [f"--data.shuffle_seed={seed}", f"--output={folder}", "--tracking.mode=disabled", *overrides]
            with redirect_stdout(io.StringIO()):
                records = run(against_itself(load_config(file, changed)), pair)
            found.append(paired_speedup(records, AGAIN, PLAIN))
            print(found[-1], flush=True)
    wrong, refused = sum(map(excludes_one, found)), sum(one.refused is not None for one in found)
    return f"Of {runs} runs, {wrong} intervals exclude 1, and {refused} are refused."


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", help="experiment file with the models and prompts of real runs")
    parser.add_argument("--real", type=int, default=30, metavar="N", help="number of real runs")
    options, overrides = parser.parse_known_args()
    print(planted() if options.file is None else real(options.file, options.real, overrides))
