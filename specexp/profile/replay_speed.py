"""``python -m specexp.profile.replay_speed EXPERIMENT.yaml``: how fast a recording answers, beside the models.

Two tables: static trees a second, read off a table of the recording's ranks; and a trial (one composition on the same
prompts) live, stepped through the recording, and read off the table, one after the other for every composition.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from math import exp, log
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from specexp.bench.table import Table
    from specexp.builders import StaticTree
    from specexp.core.tree_builder import TreeBuilder


def main(arguments: Sequence[str] | None = None) -> int:
    """Print both tables."""
    parser = argparse.ArgumentParser(prog="python -m specexp.profile.replay_speed", allow_abbrev=False)
    parser.add_argument("experiment", help="a file that was recorded, with a DraftModel")
    parser.add_argument("--trees", type=int, default=1000, help="random static trees")
    parser.add_argument("--prompts", type=int, default=8, help="of a trial")
    given, rest = parser.parse_known_args(sys.argv[1:] if arguments is None else arguments)
    from specexp.bench.publish import terminal
    from specexp.bench.trainer import quiet_libraries
    from specexp.config import Config, ConfigError, build_latency, load_config, recording_folder
    from specexp.config.command import fail
    from specexp.replay.format.errors import RecordingError
    from specexp.replay.format.recording import Recording

    quiet_libraries()
    console = terminal()
    try:
        config: Config = load_config(given.experiment, rest)
        recording = Recording(recording_folder(config))
        console.print(trees_table(recording, given.trees, build_latency(config)).to_rich())
        console.print(trials_table(config, recording, given.prompts).to_rich())
    except (ConfigError, RecordingError) as error:
        return fail(error)
    return 0


def random_trees(count: int, width: int) -> list[StaticTree]:
    """Trees from a chain to a bush, of 4 to 64 nodes."""
    from specexp.builders import ParametricTree

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


def trees_table(recording: Any, count: int, latency: Any = None) -> Table:
    """Static trees a second on one core, counts alone and with seconds of a latency profile.

    Args:
        recording: Recording with a draft model.
        count: Number of random trees.
        latency: None counts alone.

    Raises:
        RecordingError: the recording holds no draft model.
    """
    from specexp.bench.table import Column, Table
    from specexp.core.messages import counted
    from specexp.replay.play.ranks import RankTable

    turns = [turn for one in recording.turns.values() for turn in one]
    started = perf_counter()
    generation, limits = recording.manifest.made_of["generation"], recording.manifest.context_limits
    ranks = RankTable(turns, generation["max_new_tokens"], limits["target"])
    made = perf_counter() - started
    trees = random_trees(count, ranks.width)
    table = Table(
        f"{counted(len(turns), 'answer')}, {counted(ranks.positions, 'token')} (table made in {made:.2f} s)",
        [Column("what"), Column("trees"), Column("seconds", digits=3), Column("trees/s", digits=0)],
    )
    for what, profile in (("counts", None), ("counts and seconds", latency)):
        if what != "counts" and profile is None:
            continue
        started = perf_counter()
        for tree in trees:
            ranks.evaluate(tree.shape, profile)
        spent = perf_counter() - started
        table.rows.append([what, len(trees), spent, len(trees) / spent])
    return table


def trials_table(config: Any, recording: Any, prompts: int) -> Table:
    """What a trial costs live and replayed: the same compositions on the same prompts, in turn.

    Args:
        config: Configuration of the recorded experiment.
        recording: Its recording.
        prompts: Prompts of a trial, the first ones recorded.

    Raises:
        ConfigError: the models or prompts cannot be loaded.
        RecordingError: a composition was not recorded.
    """
    from specexp.bench.arm_spec import ArmSpec
    from specexp.bench.experiment import use_threads
    from specexp.bench.live import LiveBackend
    from specexp.bench.make_arm import make_arm
    from specexp.bench.statistics import bootstrap_interval
    from specexp.bench.table import Column, Table
    from specexp.builders import Chain, DySpecGreedy, DySpecThreshold, ParametricTree
    from specexp.config import build_generation, build_verifier, build_workload
    from specexp.controllers import ConfidenceThreshold, Fixed
    from specexp.core.controller import Controller
    from specexp.core.messages import counted
    from specexp.core.parts import Parts
    from specexp.core.tree import TreeShape
    from specexp.drafters import DraftModel
    from specexp.replay.backend import ReplayBackend
    from specexp.replay.format.errors import NotRecordedError
    from specexp.replay.play.fidelity import recorded_scoring
    from specexp.replay.play.ranks import RankTable

    generation, verifier = build_generation(config), build_verifier(config)
    use_threads(config)
    models = LiveBackend.of(config)
    backends = (models, ReplayBackend(recording))
    chosen = build_workload(config).load(models.tokenizer)[:prompts]
    scoring = recorded_scoring(recording.manifest.made_of)
    assert scoring is not None, "the table of trees refused a recording without a draft"

    def made(builder: TreeBuilder, controller: Controller, backend: Any) -> Any:
        drafter = DraftModel(**vars(scoring))
        drafter.use_draft_model(backend.draft)
        parts = Parts(drafter, builder, verifier, controller)
        return make_arm(ArmSpec(type(backend).__name__, generation, parts), backend)

    turns = [turn for prompt in chosen for turn in recording.conversation(prompt.prompt_id)]
    ranks = RankTable(turns, generation.max_new_tokens, recording.manifest.context_limits["target"])
    compositions: list[tuple[str, TreeBuilder, Controller]] = [
        ("Chain(4)", Chain(4), Fixed()),
        ("ParametricTree(nodes=16)", ParametricTree(nodes=16), Fixed()),
        ("ParametricTree(nodes=48)", ParametricTree(nodes=48, depth=6), Fixed()),
        ("Chain(12), ConfidenceThreshold(0.4)", Chain(12), ConfidenceThreshold(0.4)),
        ("DySpecGreedy(16)", DySpecGreedy(16, candidates="top-k"), Fixed()),
        ("DySpecThreshold(0.05)", DySpecThreshold(0.05, candidates="top-k"), Fixed()),
    ]
    table = Table(
        f"One trial: {counted(len(chosen), 'prompt')} x {counted(generation.max_new_tokens, 'token')}",
        [
            Column("composition"),
            Column("live, s"),
            Column("stepped, ms", digits=1),
            Column("live / stepped"),
            Column("off the table, ms"),
            Column("live / off the table"),
        ],
        notes=[
            "ratios are geometric means over prompts with 95 % bootstrap intervals; a table answers all at once"
        ],
    )
    for name, builder, controller in compositions:
        live, replayed = (made(builder, controller, backend) for backend in backends)
        live.decode(chosen[0], max_new_tokens=8)
        ratios, spent = [], np.zeros(2)
        try:
            for prompt in chosen:
                seconds = []
                for arm in (live, replayed):
                    started = perf_counter()
                    arm.decode(prompt)
                    seconds.append(perf_counter() - started)
                spent += seconds
                ratios.append(log(seconds[0] / seconds[1]))
        except NotRecordedError:
            table.notes.append(
                f"{name} asks what was not recorded; experiments/replay/record_wide.yaml has a coverage that does"
            )
            continue
        low, high = bootstrap_interval(np.array(ratios))
        row: list[Any] = [name, spent[0], 1e3 * spent[1]]
        row.append(f"{exp(float(np.mean(ratios))):.0f}x [{exp(low):.0f}, {exp(high):.0f}]")
        if builder.rank_paths is not None and controller.changes_nothing:
            shape = TreeShape.from_rank_paths(builder.rank_paths)
            started = perf_counter()
            for _ in range(20):
                ranks.evaluate(shape)
            once = (perf_counter() - started) / 20
            row += [1e3 * once, f"{spent[0] / once:.0f}x"]
        else:
            row += [None, None]
        table.rows.append(row)
    return table


if __name__ == "__main__":
    sys.exit(main())
