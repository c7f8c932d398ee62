"""``python -m specexp.record CONFIG.yaml [--key value]``: what a target and its draft say, once and for all.

Writes ``recording.json`` and ``turns-*.parquet`` into ``recordings/<name>``, or where ``record.to`` says; killed, the
same command goes on after the last complete file.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from specexp.cluster.options import USAGE as CLUSTER_USAGE, ClusterOptions, take_options
from specexp.cluster.shard import Shard, ends_last, run_shards, take_shard
from specexp.config import Config, ConfigError, build_outline
from specexp.config.command import GOES_ON, check_here, current_result, fail, run_command
from specexp.config.next_step import command_line, experiment_again, measured_by
from specexp.core.messages import counted

if TYPE_CHECKING:
    from specexp.models.pair import ModelPair
    from specexp.replay.format.recording import Recording

USAGE = """usage: python -m specexp.record CONFIG.yaml [--dry-run] [--key value ...]

Records the prompts of an experiment or of all stages of a sweep: the target's output, and what draft and target say at
every token of it to the builders of record.coverage. Whatever these ask, backend: replay answers without the models.
A recording that was cut off goes on where it stopped. --dry-run checks the file and says what would be recorded; any
other --dotted.key overrides the file, e.g. --data.max_prompts 8 --record.to recordings/small --record.live_sample 0."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    try:
        cluster, typed = take_options(sys.argv[1:] if arguments is None else arguments)
        shard, rest = take_shard(typed)
    except ConfigError as error:
        return fail(error)
    act = partial(_act, cluster=cluster, shard=shard, typed=typed)
    return run_command(f"{USAGE}\n{CLUSTER_USAGE}", rest, act, after=GOES_ON)


def _act(
    config: Config, dry_run: bool, cluster: ClusterOptions | None, shard: Shard | None, typed: Sequence[str]
) -> int:
    check_here(config, "record.to")
    if dry_run or cluster is not None:
        from specexp.replay.record.making import answers_held, check_context, check_sharded, load_prompts
        from specexp.replay.record.plan import plan_recording

        plan = plan_recording(config)
        if cluster is not None and not dry_run:
            check_sharded(plan)
            return run_shards("specexp.record", typed, cluster, plan.folder, config)
        pair = build_outline(plan.config)
        check_context(plan, pair)
        load_prompts(plan, pair)
        held = answers_held(plan)
        there = f", which holds {counted(held, 'answer')} already" if held else ""
        print("\n".join([*plan.lines(), f"to {plan.folder}{there}"]))
        return 0
    from specexp.replay.record.making import NotRecordableError

    try:
        run(config, shard=shard)
    except NotRecordableError as error:
        return fail(error, 1)
    return 0


def run(config: Config, pair: ModelPair | None = None, shard: Shard | None = None) -> Recording:
    """Make the recording of a file and print how it compares with a live sample.

    Args:
        config: The experiment file.
        pair: Loaded models; the file's own if None.
        shard: The part of the prompts; all if None. The worker with the last part to be whole puts all together.

    Raises:
        ConfigError: The file, its data or models cannot be used, or its folder holds another recording.
        NotRecordableError: A prompt failed.
        OSError: The recording cannot be written.
    """
    from specexp.bench.progress import StageBar
    from specexp.bench.publish import terminal
    from specexp.bench.trainer import quiet_libraries
    from specexp.core.messages import size_of
    from specexp.replay.record.live_sample import to_table
    from specexp.replay.record.making import Making, is_recorded
    from specexp.replay.record.plan import plan_recording

    quiet_libraries()
    console = terminal(180)  # the live sample has many columns

    def tell(line: str) -> None:
        console.print(line, highlight=False, markup=False)

    with StageBar(console) as bar:
        making = Making(config, tell, bar, pair, shard)
        recording = making.run()
        if shard is not None:
            with ends_last(plan_recording(config).folder, is_recorded) as last:
                recording = Making(config, tell, bar, making.pair).run() if last else recording
    if recording.manifest.live_sample:
        console.print(to_table(recording.manifest.live_sample).to_rich())
    turns = sum(entry["turns"] for entry in recording.manifest.files.values())
    console.print(
        f"{counted(turns, 'answer')}, {size_of(recording.bytes)}, in {recording.folder}", markup=False
    )
    current_result().folder = str(recording.folder)
    if config.get("latency") is None:  # a replay needs seconds
        current_result().next = command_line(
            "profile",
            *experiment_again(config),
            why="measures the seconds by which the recording is replayed",
        )
    else:
        replayed = experiment_again(config, {"backend": "replay", "recording": str(recording.folder)})
        current_result().next = command_line(measured_by(config), *replayed, why="decodes without the models")
    return recording
