"""The stage before a search that counts how often each rank path of a wide tree is accepted, and times its steps."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any

from specexp.artifacts.atomic_write import atomic_write
from specexp.bench.arm import LearningArm
from specexp.bench.observers import AcceptanceCounter
from specexp.config.load import COSTS
from specexp.config.sweep import CountAcceptances
from specexp.core.latency import outcome_seconds
from specexp.core.outcome import Outcome
from specexp.data import Prompt
from specexp.sweep.bench import Bench
from specexp.sweep.study_config import digest_of

ROWS = (2, 3, 5, 9, 17, 33, 65, 129)
"""Sizes of the trees that are timed, in rows including the root, as long as one costs less than ``COSTLY``."""
COSTLY = 4.0
"""After a step that takes this many times as long as one with a single node, no larger trees are timed."""
STEPS, ROUNDS = 6, 3
"""Each tree is timed for this many steps per round, in this many rounds."""


class EnoughError(Exception):
    """Raised to stop decoding an answer once enough of its steps have been observed."""


def count_acceptances(
    bench: Bench, stage: CountAcceptances, path: Path, composition: Mapping[str, Any], begin: Callable[[int], None]
) -> None:
    """Decode the stage's prompts with a wide tree, and write to a file how often each rank path was accepted.

    A few steps with trees of several sizes are also timed, and their milliseconds are written by number of rows.
    Nothing is decoded if an earlier process of this study has written the same counts. Otherwise ``begin`` is
    called with the number of prompts. ``composition`` is the experiment's own.
    """
    data = bench.data("count_acceptances")
    made_of = digest_of([bench.workload, composition, stage.model_dump(), data.digest])
    mark = path.with_suffix(".digest")
    if path.exists() and mark.exists() and mark.read_text(encoding="utf-8") == made_of:
        return
    counter, arm = counted(bench, stage.builder, begin)
    costs = step_ms(bench, arm, data.prompts[0])
    if stage.most_cost is not None:
        most = max(rows for rows, ms in costs.items() if ms <= stage.most_cost * min(costs.values())) - 1
        given = stage.builder["init_args"]
        if most > given["nodes"]:
            counter, _ = counted(bench, {**stage.builder, "init_args": {**given, "nodes": most}}, begin)
    counter.save(path)
    atomic_write(path.with_name(COSTS), json.dumps(costs))
    atomic_write(mark, made_of)


def counted(bench: Bench, builder: Any, begin: Callable[[int], None]) -> tuple[AcceptanceCounter, LearningArm]:
    """Decode the stage's prompts with a builder; return the counts and the arm, which has learned from them."""
    counter = AcceptanceCounter()
    prompts = bench.data("count_acceptances").prompts
    arm = bench.compose("acceptance counts", {"builder": builder})
    begin(len(prompts))
    for prompt in prompts:
        for sample in range(bench.samples):
            arm.decode_observed(prompt, sample, counter.observe)
        bench.tick()
    return counter, arm


def step_ms(bench: Bench, learned: LearningArm, prompt: Prompt) -> dict[int, float]:
    """Time trees of several sizes with an arm's learned state; return median step times in ms by number of rows."""
    found: dict[int, list[float]] = defaultdict(list)
    taken: list[float] = []
    learned.remember()

    def observe(outcome: Outcome) -> None:
        taken.append(1e3 * outcome_seconds(outcome, bench.latency))
        found[outcome.tree.num_nodes + 1].append(taken[-1])
        if len(taken) == STEPS:
            raise EnoughError

    for _ in range(ROUNDS):  # because the available memory bandwidth changes within seconds
        for rows in ROWS:
            tree = {"class_path": "ParametricTree", "init_args": {"nodes": rows - 1, "depth": 8}}
            arm = bench.compose("costs of steps", {"builder": tree})
            arm.drafter_state = learned.drafter_state
            arm.reset()
            taken.clear()
            with suppress(EnoughError):
                arm.decode_observed(prompt, 0, observe)
            least = min(map(statistics.median, found.values()))
            if statistics.median(taken) > COSTLY * least:
                break
    # The last steps of an answer have unusual numbers of rows, and a first pass may include compilation.
    often = {rows: statistics.median(ms) for rows, ms in sorted(found.items()) if len(ms) >= STEPS // 2}
    return dict(zip(often, accumulate(often.values(), max), strict=True))
