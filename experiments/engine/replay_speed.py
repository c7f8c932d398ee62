"""``python -m experiments.engine.replay_speed EXPERIMENT.yaml [--key value]``: the speed of replay beside the models.

Prints static trees a second, read off a table of the recording's ranks, and the time of a trial (one composition on
the same prompts) live, stepped through the recording, and read off the table.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import exp, log
from time import perf_counter
from typing import Any

import numpy as np

from specexp.bench.arm_spec import ArmSpec
from specexp.bench.experiment import use_threads
from specexp.bench.live import LiveBackend
from specexp.bench.make_arm import make_arm
from specexp.bench.publish import terminal
from specexp.bench.statistics import bootstrap_interval
from specexp.bench.table import Table, columns
from specexp.bench.trainer import quiet_libraries
from specexp.builders import Chain, ParametricTree
from specexp.config import (
    Config,
    build_generation,
    build_latency,
    build_verifier,
    build_workload,
    load_config,
    recording_folder,
)
from specexp.controllers import ConfidenceThreshold, Fixed
from specexp.core.controller import Controller
from specexp.core.latency import LatencyProfile
from specexp.core.messages import counted
from specexp.core.parts import Parts
from specexp.core.tree import TreeShape
from specexp.core.tree_builder import TreeBuilder
from specexp.drafters import DraftModel
from specexp.replay.backend import ReplayBackend
from specexp.replay.format.recording import Recording
from specexp.replay.play.fidelity import recorded_scoring
from specexp.replay.play.ranks import RankTable

PROMPTS = 8
"""Prompts of a trial, the first ones recorded."""
TREES = 1000


def main(arguments: Sequence[str] | None = None) -> int:
    """Print both tables for a file that was recorded with a draft model."""
    experiment, *overrides = sys.argv[1:] if arguments is None else arguments
    quiet_libraries()
    config = load_config(experiment, overrides)
    recording = Recording(recording_folder(config))
    for table in (trees_table(recording, build_latency(config)), trials_table(config, recording)):
        terminal().print(table.to_rich())
    return 0


def random_trees(count: int, width: int) -> list[ParametricTree]:
    """Return trees from a chain to a bush, of 4 to 64 nodes."""
    rng = np.random.default_rng(0)
    return [
        ParametricTree(
            nodes=int(np.exp(rng.uniform(np.log(4), np.log(64)))),
            depth=int(rng.integers(2, 9)),
            rank_decay=float(rng.uniform(0.5, 4)),
            depth_decay=float(rng.uniform(0.4, 1)),
            width=int(rng.integers(2, min(8, width) + 1)),
        )
        for _ in range(count)
    ]


def trees_table(recording: Recording, latency: LatencyProfile | None) -> Table:
    """Static trees a second on one core: counts alone, and with seconds of a latency profile if there is one."""
    turns = [turn for one in recording.turns.values() for turn in one]
    started = perf_counter()
    ranks = _ranks(recording, turns)
    made = perf_counter() - started
    trees = random_trees(TREES, ranks.width)
    table = Table(
        f"{counted(len(turns), 'answer')}, {counted(ranks.positions, 'token')} (table made in {made:.2f} s)",
        columns("what | trees | seconds:.3 | trees/s:.0"),
    )
    for what, profile in (("counts", None), *([("counts and seconds", latency)] if latency else [])):
        started = perf_counter()
        for tree in trees:
            ranks.evaluate(tree.shape, profile)
        spent = perf_counter() - started
        table.rows.append([what, len(trees), spent, len(trees) / spent])
    return table


def trials_table(config: Config, recording: Recording) -> Table:
    """The time of a trial live and replayed, prompt by prompt in turns."""
    generation, verifier = build_generation(config), build_verifier(config)
    use_threads(config)
    models = LiveBackend.of(config)
    backends: tuple[Any, ...] = (models, ReplayBackend(recording))
    chosen = build_workload(config).load(models.tokenizer)[:PROMPTS]
    scoring = recorded_scoring(recording.manifest.made_of)
    ranks = _ranks(
        recording, [turn for prompt in chosen for turn in recording.conversation(prompt.prompt_id)]
    )
    compositions: list[tuple[str, TreeBuilder, Controller]] = [
        ("Chain(4)", Chain(4), Fixed()),
        ("ParametricTree(nodes=16)", ParametricTree(nodes=16), Fixed()),
        ("ParametricTree(nodes=48)", ParametricTree(nodes=48, depth=6), Fixed()),
        ("Chain(12), ConfidenceThreshold(0.4)", Chain(12), ConfidenceThreshold(0.4)),
    ]
    table = Table(
        f"One trial: {counted(len(chosen), 'prompt')} x {counted(generation.max_new_tokens, 'token')}",
        columns(
            "composition | live, s | stepped, ms:.1 | live / stepped | off the table, ms | live / off the table"
        ),
        notes=["Ratios are geometric means over prompts with 95 % bootstrap intervals."],
    )
    for name, builder, controller in compositions:
        arms = []
        for backend in backends:
            drafter = DraftModel(**vars(scoring))
            drafter.use_draft_model(backend.draft)
            parts = Parts(drafter, builder, verifier, controller)
            arms.append(make_arm(ArmSpec(type(backend).__name__, generation, parts), backend))
        arms[0].decode(chosen[0], max_new_tokens=8)
        seconds = np.array([[_seconds(arm, prompt) for arm in arms] for prompt in chosen])
        ratios = np.array([log(live / replayed) for live, replayed in seconds])
        low, high = bootstrap_interval(ratios)
        live, stepped = seconds.sum(axis=0).tolist()
        ratio = f"{exp(float(np.mean(ratios))):.0f}x [{exp(low):.0f}, {exp(high):.0f}]"
        off_table: list[Any] = [None, None]
        if builder.rank_paths is not None and controller.changes_nothing:
            shape = TreeShape.from_rank_paths(builder.rank_paths)
            started = perf_counter()
            for _ in range(20):
                ranks.evaluate(shape)
            once = (perf_counter() - started) / 20
            off_table = [1e3 * once, f"{live / once:.0f}x"]
        table.rows.append([name, live, 1e3 * stepped, ratio, *off_table])
    return table


def _ranks(recording: Recording, turns: Sequence[Any]) -> RankTable:
    made = recording.manifest
    return RankTable(turns, made.made_of["generation"]["max_new_tokens"], made.context_limits["target"])


def _seconds(arm: Any, prompt: Any) -> float:
    started = perf_counter()
    arm.decode(prompt)
    return perf_counter() - started


if __name__ == "__main__":
    sys.exit(main())
