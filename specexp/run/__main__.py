"""``python -m specexp.run EXPERIMENT.yaml [--key value]``: arms beside plain decoding on the same prompts.

Writes ``<output>/<name>/{config.yaml,environment.json,records.jsonl,table.md,table.csv,figure.png}`` and the files
of its analyses; a second run of the same name replaces them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from specexp.artifacts.atomic_write import write_whole
from specexp.bench.experiment import check_experiment
from specexp.config import (
    Config,
    ConfigError,
    build_task_items,
    is_grouped,
    is_replayed,
    save_resolved,
)
from specexp.config.command import fail, run_command

if TYPE_CHECKING:
    from lightning import Trainer
    from matplotlib.figure import Figure

    from specexp.bench.experiment import Experiment
    from specexp.bench.record import PromptRecord
    from specexp.bench.table import Table
    from specexp.data.prompts import PromptDataModule
    from specexp.pairs.pair import ModelPair
    from specexp.papers import Report

USAGE = """usage: python -m specexp.run EXPERIMENT.yaml [--dry-run] [--key value ...]

Decodes the prompts of an experiment with each of its arms and with plain decoding, and compares them.
--dry-run checks the file and lists the arms; any other --dotted.key overrides the file,
e.g. --data.max_prompts 8 --verifier.init_args.temperature 0 --tracking.mode disabled.
--compose FILE lays another file on top, e.g. --compose configs/latency/post_use_pre_cut.yaml, by which seconds
are modelled."""
FIGURES = ("speedup", "curves", "phases")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return run_command(USAGE, arguments, _act)


def _act(config: Config, dry_run: bool) -> int:
    if config.get("what_if") is not None:
        raise ConfigError(
            f"{config.file} has a what_if: section, which compares devices on a recording: use python -m "
            f"specexp.what_if {config.file}"
        )
    arms = check_experiment(config)
    _check_figure(config)
    if dry_run:
        print("\n".join(arm.title for arm in arms))
        return 0
    status = 0
    for name, why in unanswered(run(config)).items():
        status = fail(f"arm {name!r} answered no prompt: {why}", 1)
    return status


def unanswered(records: Sequence[PromptRecord]) -> dict[str, str]:
    """Arms that answered no prompt, and why they did not answer the first."""
    first = {record.arm: record.error for record in reversed(records) if record.error}
    answered = {record.arm for record in records if not record.error}
    return {name: first[name] for name in reversed(first) if name not in answered}


def run(config: Config, pair: ModelPair | None = None) -> list[PromptRecord]:
    """Run an experiment, print its tables and write its folder.

    Args:
        config: of the file.
        pair: models loaded already; the file's own if None.

    Raises:
        ConfigError: the file, its trainer, data, models or output folder cannot be used; nothing was decoded
            then.
        OSError: the results cannot be written, because the disk is full.
    """
    from specexp.bench.experiment import build_experiment, check_tasks
    from specexp.bench.trainer import build_trainer
    from specexp.config import build_pair

    check_tasks(config)
    trainer = build_trainer(config)
    if is_replayed(config):
        experiment, data = replayed(config)
    else:
        pair = pair or build_pair(config)
        experiment = build_experiment(config, pair)
        data = load_prompts(config, pair)
    folder = Path(config.get("output")) / config.get("name")
    save_resolved(config, folder)
    records = decode(config, experiment, data, folder / "records.jsonl", trainer)
    report(config, experiment, records, folder)
    return records


def replayed(config: Config) -> tuple[Experiment, PromptDataModule]:
    """The experiment on a recording of its models, and the prompts.

    Raises:
        ConfigError: the recording is missing or of something else, or an arm or analysis asks what it does not hold.
    """
    from specexp.replay.configured import open_recording, recorded_data, tokenizer_of
    from specexp.replay.experiment import build_replayed

    recording = open_recording(config)
    experiment, left_out = build_replayed(config, recording)
    if left_out:
        print(f"Replayed from {recording.folder}; no recording answers for {', '.join(left_out)}: left out.")
    return experiment, recorded_data(config, recording, tokenizer_of(config))


def load_prompts(config: Config, pair: ModelPair) -> PromptDataModule:
    """Read the prompts, and refuse those that do not fit the target.

    Raises:
        ConfigError: the data set cannot be read, or a prompt is too long.
    """
    from specexp.bench.experiment import check_prompts
    from specexp.config import build_data
    from specexp.data import PromptSetError

    data = build_data(config, pair.tokenizer)
    try:
        check_prompts(config, data.prompts, pair)
    except PromptSetError as error:
        raise ConfigError(f"{config.source_of(('data', *error.key))}: data: {error}") from error
    return data


def decode(
    config: Config, experiment: Experiment, data: PromptDataModule, path: Path, trainer: Trainer
) -> list[PromptRecord]:
    """Decode every prompt by every arm under Lightning's Trainer.

    Args:
        config: of the file.
        experiment: its arms.
        data: its prompts.
        path: of the records; a file there is replaced.
        trainer: drives the test.
    """
    import torch

    from specexp.bench.experiment import reordered
    from specexp.bench.module import EvaluationModule

    threads = config.get("generation.threads")
    if threads is not None:
        torch.set_num_threads(threads)
    path.unlink(missing_ok=True)
    one_by_one = not is_grouped(config) or build_task_items(config) is not None
    module = EvaluationModule(
        experiment.arms,
        records_path=path,
        samples=config.get("generation.samples") if one_by_one else 1,
        orders={name: reordered(data.prompts, seed) for name, seed in experiment.shuffle_seeds.items()},
        analyses=experiment.analyses,
    )
    try:
        trainer.test(module, datamodule=data, verbose=False)
    finally:
        module.close()
    return module.records


def report(config: Config, experiment: Experiment, records: Sequence[PromptRecord], folder: Path) -> None:
    """Print the tables, write them and the figures, and track the run.

    Args:
        config: of the file.
        experiment: its arms.
        records: of the run.
        folder: ``<output>/<name>``.
    """
    from rich.console import Console

    from specexp.bench.report import category_table, long_table, phase_table, results_table
    from specexp.replay.play.replay_arm import worth_of
    from specexp.tracking import Tracker

    title = config.get("question") or config.get("name")
    if config.get("paper"):
        title += f" ({config.get('paper')})"
    if is_replayed(config):
        title += ", replayed"
    baselines = experiment.baselines
    results = results_table(records, title, baselines=baselines, published=config.get("published"))
    results.notes += worth_of(arm for arm in experiment.arms if arm.name not in unanswered(records))
    tables: list[Table | None] = [
        results,
        category_table(records, baseline=baselines[0], published=config.get("published")),
        phase_table(records),
    ]
    shown = [table for table in tables if table is not None]
    console = Console(width=None if sys.stdout.isatty() else 160)
    for table in shown:
        console.print(table.to_rich())  # first: a full disk does not keep it from a person
    write_whole(folder / "table.md", "\n".join(table.to_markdown() for table in shown))
    write_whole(folder / "table.csv", long_table(records, baselines=baselines).to_csv())
    picture = draw(config, records, baselines[0])
    write_whole(folder / "figure.png", _png(picture))
    reports = [analysis.report(records) for analysis in experiment.analyses]
    for found in reports:
        for table in found.tables.values():
            console.print(table.to_rich())
        _write(found, folder)
    tracker = Tracker(config.get("name"), folder, **config.get("tracking"))
    with tracker.run(config.get("name"), config=config.to_dict()) as tracked:
        tracked.table("arms", shown[0].records())
        tracked.picture("figure", picture)
        for found in reports:
            for name, table in found.tables.items():
                tracked.table(name, table.records())
            for name, figure in found.figures.items():
                tracked.picture(name, figure)
        tracked.summary(summary_of(records, baselines[0]))
    console.print(f"Results in {folder}")
    if tracker.sync_hint():
        console.print(f"W&B: {tracker.sync_hint()}")


def _write(found: Report, folder: Path) -> None:
    """The files of an analysis."""
    for name, table in found.tables.items():
        write_whole(folder / f"{name}.md", table.to_markdown())
        write_whole(folder / f"{name}.csv", table.to_csv())
    for name, figure in found.figures.items():
        write_whole(folder / f"{name}.png", _png(figure))
    for name, content in found.files.items():
        write_whole(folder / name, content)


def _png(figure: Figure) -> bytes:
    png = BytesIO()
    figure.savefig(png, format="png")
    return png.getvalue()


def summary_of(records: Sequence[PromptRecord], baseline: str) -> dict[str, float]:
    """What to compare runs by: each arm's metrics and speedup; modelled ones are called so."""
    from specexp.bench import clock
    from specexp.bench.metrics import figures_of
    from specexp.bench.statistics import arm_names, paired_speedup
    from specexp.tracking.names import SPEEDUP

    found: dict[str, float] = {}
    for name in arm_names(records):
        good = [record for record in records if record.arm == name and not record.error]
        found |= {f"{name}/{key}": value for key, value in figures_of(good).items()}
        speedup = paired_speedup(records, name, baseline)
        if name != baseline and speedup.refused is None:
            key = f"{name}/{clock.key(speedup.clock)}{SPEEDUP}"
            found[key] = speedup.ratio
            if speedup.has_interval:
                found[f"{key}_low"], found[f"{key}_high"] = speedup.low, speedup.high
    return found


def draw(config: Config, records: Sequence[PromptRecord], baseline: str) -> Figure:
    """The figure the file asks for: ``speedup``, ``curves`` (where arms sweep a number) or ``phases``."""
    from specexp.bench.experiment import curves_of
    from specexp.bench.figures import parameter_curves, phase_bars, speedup_bars

    title = (config.get("question") or config.get("name")) + (", replayed" if is_replayed(config) else "")
    curves = curves_of(config)
    kind = config.get("figure") or ("curves" if curves else "speedup")
    if kind == "phases":
        return phase_bars(records, title=title)
    if kind == "curves" and curves:
        return parameter_curves(records, curves, baseline=baseline, title=title)
    published = {
        str(item["method"]): float(item["speedup"])
        for item in config.get("published")
        if item.get("speedup") is not None and "category" not in item
    }
    return speedup_bars(records, baseline=baseline, title=title, published=published)


def _check_figure(config: Config) -> None:
    kind = config.get("figure")
    if kind is not None and kind not in FIGURES:
        where = f"{config.source_of(('figure',))}: figure"
        raise ConfigError(f"{where} is {kind!r}; allowed are {', '.join(FIGURES)}")


if __name__ == "__main__":
    sys.exit(main())
