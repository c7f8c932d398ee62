"""``python -m specexp.run EXPERIMENT.yaml [--key value]``: compares arms with plain decoding on the same prompts.

Writes ``<output>/<name>/{config.yaml,environment.json,records.jsonl,table.md,table.csv,figure.png}`` and the files
of its analyses. A later run replaces these files when it starts; a sweep's folder is rejected.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from specexp.artifacts.atomic_write import atomic_write
from specexp.artifacts.environment import device_name
from specexp.base.messages import restated
from specexp.bench.arm import LearningArm
from specexp.bench.arm_spec import Backend, make_arm
from specexp.bench.equality import InFloat32, divergence, in_float32
from specexp.bench.experiment import (
    ExperimentArms,
    arm_specs,
    check_experiment,
    few_tokens,
    reordered,
    use_threads,
    warn_of_load,
)
from specexp.bench.record import PromptRecord, read_records, write_records
from specexp.bench.trainer import build_trainer, interruptible
from specexp.cluster.launch import ClusterOptions
from specexp.cluster.shard import SHARDS, Shard, ends_last, forget_shards, run_sharded, run_shards, shards_in
from specexp.config import (
    Config,
    ConfigError,
    build_pair,
    check_rows,
    missing_engine,
)
from specexp.config.command import check_here, fail
from specexp.config.config import unwritable
from specexp.config.layers import COMMAND_LINE, PARTS
from specexp.report.comparison import failed_answers
from specexp.report.publish import PAGE, RECORDS, check_run_folder, replaced_results, sole_writer
from specexp.sweep.study_config import digest_of
from specexp.tracking.names import PLAIN

if TYPE_CHECKING:
    from lightning import Trainer

    from specexp.data import LoadedPrompts, Prompt
    from specexp.engines.served_arm import ServedBackend
    from specexp.models.pair import ModelPair

USAGE = """usage: python -m specexp.run EXPERIMENT.yaml [--dry-run] [--key value ...]

Decodes the prompts of an experiment with each of its arms and with plain decoding, and compares them.
--dry-run checks the file and lists the arms; any other --dotted.key overrides the file,
e.g. --data.max_prompts 8 --verifier.init_args.temperature 0 --tracking.mode disabled.
--a-a compares plain decoding with itself instead: the verdict shows how far this machine can be trusted.
--arms NAME,NAME runs only these of the file's arms. --compose FILE overrides the file with another one,
e.g. --compose configs/latency/post_use_pre_cut.yaml to model times instead of measuring them."""
FIGURES = ("speedup", "curves", "phases")
A_A, AGAIN = "--a-a", "plain decoding again"
_NOT_IN_A_A = ("arms", "baselines", "drafter", "builder", "controller", "execution", "engine", "analyses")
WHOLE = "whole.txt"  # digest of a shard's configuration, digest of its prompts, device; written at its end


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    rest = [one for one in given if one != A_A]
    return run_sharded(USAGE, rest, partial(_act, again=A_A in given))


def against_itself(config: Config) -> Config:
    """Return the experiment with plain decoding as its only arm."""
    plain = dict.fromkeys((*PARTS, "execution", "engine")) | {"verifier": config.get("verifier")}
    changed = {
        "name": f"{config.name}-a-a",
        "question": "Does plain decoding differ from itself here?",
        "paper": None,
        "arms": {**dict.fromkeys(config.get("arms") or {}), AGAIN: plain},
        "baselines": [PLAIN],
        "published": [],
        "analyses": [],
        "sweep": None,
    }
    return config.with_overrides(changed, A_A)


def _act(
    config: Config,
    dry_run: bool,
    cluster: ClusterOptions | None,
    shard: Shard | None,
    typed: Sequence[str],
    again: bool,
) -> int:
    if again and (cluster is not None or shard is not None or config.is_replayed):
        raise ConfigError(f"{COMMAND_LINE}: {A_A} measures this machine: leave out workers, shards and replay")
    if again:
        for dotted in (dotted for dotted, _ in config.typed if dotted.partition(".")[0] in _NOT_IN_A_A):
            raise ConfigError(f"{COMMAND_LINE}: --{dotted} must be left out, because {A_A} has plain decoding alone")
        config = against_itself(config)
    if config.get("what_if") is not None:
        raise ConfigError(f"{config.file} has a what_if section: use python -m specexp.what_if {config.file}")
    arms = check_experiment(config)
    kind = config.figure
    if kind is not None and kind not in FIGURES:
        raise config.checker.error(("figure",), f" must be one of {', '.join(FIGURES)}, got {kind!r}")
    check_here(config)
    if not config.is_replayed:
        for remark in (*check_rows(config), *few_tokens(config)):
            print(remark)
    folder = config.output / config.name
    check_run_folder(folder, config.checker)
    missing = [*filter(None, (missing_engine(arm.config) for arm in arms if arm.reference is None))]
    if dry_run:
        _rehearse(config)
        print(*(arm.title for arm in arms), sep="\n")
    if missing:
        raise ConfigError(missing[0])
    if dry_run:
        return 0
    if cluster is not None:
        return run_shards("specexp.run", typed, cluster, folder, config.pair.device, config.generation.threads)
    if shard is None:
        return _exit_code(folder, run(config))
    # a restarted worker may find its shard already decoded
    pair = None if _is_decoded(config, shard.folder(folder)) else _decode_shard(config, shard)
    with ends_last(folder, partial(_is_decoded, config)) as last:
        return _exit_code(folder, run(config, pair)) if last else 0


def _exit_code(folder: Path, records: Sequence[PromptRecord]) -> int:
    """Return 0, or print an error and return 1 if an output is missing or differs from plain decoding."""
    status = 0
    failed, wrong = failed_answers(records), divergence(records)
    if failed is not None:
        status = fail(f"{failed}; the table shows the other outputs, and {folder / RECORDS} has the reason for each", 1)
    if wrong is not None:
        status = fail(f"{wrong}: this is not lossless, so its speed does not count", 1)
    return status


def _rehearse(config: Config) -> None:
    """Perform a dry run: everything up to decoding, without weights. Raises the same errors as :func:`run`."""
    from specexp.bench import experiment

    if not config.is_replayed:
        experiment.rehearse(config)
        return
    from specexp.replay.backend import open_replay

    build_trainer(config.get("trainer"), config.checker)
    experiment.build_experiment(config, open_replay(config)[0])


def run(config: Config, pair: ModelPair | None = None) -> list[PromptRecord]:
    """Run an experiment, print its tables and write its folder.

    Args:
        pair: Models that are already loaded; None to load those named in the file.

    Returns:
        The records, followed by those of the outputs that were compared again in float32.

    Raises:
        ConfigError: The file, its trainer, data, models or output folder cannot be used; nothing was decoded.
        FolderBusyError: Another process is writing to the folder; nothing was decoded.
        OSError: The results cannot be written.
    """
    from specexp.commands.run_report import report
    from specexp.report.publish import publish, tracked_config, tracker_of

    folder = config.output / config.name
    warn_of_load(config.get("latency"))
    with _opened(config, pair) as (trainer, backend, experiment, data), ExitStack() as held:
        with restated(OSError, lambda error: unwritable(config, folder, error)):
            held.enter_context(sole_writer(folder))
        if sentence := replaced_results(config.to_dict(), folder):
            print(sentence, file=sys.stderr)
        config.save(folder)
        if shards := shards_in(folder):  # decoded by several workers, of which this process is the last
            records = _gathered(config, folder, shards)
        else:
            records = _decode(config, experiment, data, folder / RECORDS, trainer)
        exact = None if backend.pair is None else _in_float32(config, backend.pair, records, data.prompts)
        found = report(config, experiment, records, data, backend.tokenizer, exact)
        if AGAIN in {record.arm for record in records}:
            found = replace(found, next_steps={})  # nothing follows from a comparison with itself
        tracker = tracker_of(config.tracking, config.pair, config.name, folder)
        publish(found, folder, tracker, config=tracked_config(config.to_dict()))
        forget_shards(folder)
    return records if exact is None else [*records, *exact.records]


@contextmanager
def _opened(
    config: Config, pair: ModelPair | None = None
) -> Iterator[tuple[Trainer, Backend, ExperimentArms, LoadedPrompts]]:
    """Yield an experiment's trainer, backend, arms and prompts. On exit, stop the engines that were started."""
    from specexp.bench.experiment import build_experiment, check_engines, check_tasks, load_prompts, solver_of

    check_tasks(config.task_items, config.checker)
    trainer = build_trainer(config.get("trainer"), config.checker)
    backend: Backend
    live: ServedBackend | None = None
    if config.is_replayed:
        from specexp.replay.backend import open_replay

        backend, data = open_replay(config)
        experiment = build_experiment(config, backend)
        why = "The recording has no outputs of"
    else:
        from specexp.engines.served_arm import ServedBackend

        pair = pair or build_pair(config)
        backend = live = ServedBackend(pair, solver_of(config, pair))
        experiment = build_experiment(config, backend)
        data = load_prompts(config, live.pair)
        check_engines(config, live.pair, data.prompts)
        why = "Transformers cannot run a GGUF file, so it has no loop for"
    if experiment.left_out:
        print(f"{why} {', '.join(experiment.left_out)}: left out.")
    for sentence in data.workload.preparation.warnings():
        print(f"warning: {sentence}", file=sys.stderr)
    try:
        yield trainer, backend, experiment, data
    finally:
        if live is not None:
            live.pool.close()


def _in_float32(
    config: Config, pair: ModelPair, records: Sequence[PromptRecord], prompts: Sequence[Prompt]
) -> InFloat32 | None:
    """Repeat comparisons in float32 for outputs that differ from plain decoding. Return None if there are none."""
    from specexp.bench.experiment import solver_of
    from specexp.bench.live import LiveBackend

    different = {record.arm for record in records if record.difference is not None}

    def arms_of(pair: ModelPair) -> tuple[LearningArm, list[LearningArm]]:
        exact = LiveBackend(pair, solver_of(config, pair))
        composed = [arm for arm in check_experiment(config) if arm.title in different]
        ours = [spec for spec in arm_specs(config, exact, composed) if spec.reference is None and spec.engine is None]
        # learned state changes drafts, never tokens, so it need not be loaded
        made = [make_arm(replace(spec, preload=None), exact) for spec in ours]
        plain, *arms = (arm for arm in made if isinstance(arm, LearningArm))
        return plain, arms

    return in_float32(pair, arms_of, prompts, records, config.float32_prompts)


def _decode(
    config: Config, experiment: ExperimentArms, data: LoadedPrompts, path: Path, trainer: Trainer
) -> list[PromptRecord]:
    """Decode all prompts with all arms under Lightning's Trainer, and write the records to ``path``."""
    from specexp.bench.module import EvaluationModule
    from specexp.data.workload import PROMPTS

    use_threads(config.generation.threads)
    for earlier in (path, path.with_name(PROMPTS), path.with_name(PAGE)):  # of an earlier run
        earlier.unlink(missing_ok=True)
    # a group decodes all samples of a prompt at once; a task item has its own sequences
    one_by_one = not config.is_multi_sequence or config.task_items is not None
    module = EvaluationModule(
        experiment.arms,
        records_path=path,
        samples=config.generation.samples if one_by_one else 1,
        orders={name: reordered(data.prompts, seed) for name, seed in experiment.shuffle_seeds.items()},
        analyses=experiment.analyses,
    )
    try:
        with interruptible():
            trainer.test(module, dataloaders=data.loader(), verbose=False)
    finally:
        module.close()
    return module.records


def _decode_shard(config: Config, shard: Shard) -> ModelPair | None:
    """Decode one shard of the prompts and write its records. Return the loaded models, or None for a replay.

    Raises:
        ConfigError: As for :func:`run`, or if results depend on earlier prompts.
    """
    folder = shard.folder(config.output / config.name)
    with _opened(config) as (trainer, backend, experiment, data):
        arms = [arm for arm in experiment.arms if isinstance(arm, LearningArm) and arm.parts.keeps_learning]
        why = [f"arm {arm.name!r} learns from prompt to prompt" for arm in arms]
        why += [f"{type(analysis).__name__} needs all prompts" for analysis in experiment.analyses]
        why += ["several sequences are decoded for a prompt"] if config.is_multi_sequence else []
        if why:
            raise ConfigError(f"{config.file}: {why[0]}, so it cannot be split into shards: run it on one machine")
        data.keep(shard.of(data.prompts))
        rendered = data.digest
        folder.mkdir(parents=True, exist_ok=True)
        _decode(config, experiment, data, folder / RECORDS, trainer)
    place = "" if config.is_replayed else device_name(config.pair.device)
    atomic_write(folder / WHOLE, f"{digest_of(config.to_dict())} {rendered} {place}")
    return backend.pair


def _is_decoded(config: Config, folder: Path) -> bool:
    """Return whether all prompts of a shard have been decoded with this configuration."""
    try:
        return (folder / WHOLE).read_text(encoding="utf-8").split()[0] == digest_of(config.to_dict())
    except FileNotFoundError:  # not started, or removed by the worker that merged the shards
        return False


def _gathered(config: Config, whole: Path, shards: Sequence[Shard]) -> list[PromptRecord]:
    """Return the records of all shards. Unfinished shards are decoded here first."""
    found: list[PromptRecord] = []
    origins: set[tuple[str, ...]] = set()
    for shard in shards:
        if not _is_decoded(config, shard.folder(whole)):
            _decode_shard(config, shard)
        found += read_records(shard.folder(whole) / RECORDS)
        origins.add(tuple((shard.folder(whole) / WHOLE).read_text(encoding="utf-8").split(" ", 2)))
    _, prompts, devices = map(set, zip(*origins, strict=True))
    if len(prompts) > 1 or len(devices) > 1:
        why = (
            "decoded prompts with other tokens, because the chat template or the file of prompts changed between them"
            if len(prompts) > 1
            else f"were decoded on several kinds of devices ({' and '.join(sorted(devices))})"
        )
        raise ConfigError(
            f"{config.file}: the shards in {whole / SHARDS} {why}: remove this folder, and run the shards again"
        )
    (whole / RECORDS).unlink(missing_ok=True)  # write_records appends
    write_records(whole / RECORDS, found)
    return found
