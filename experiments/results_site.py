# python -m experiments.results_site
"""``python -m experiments.results_site [--keep FOLDER ...]``: write the figures of ``docs/site/index.html``.

All figures are of the records in ``experiments``. ``--keep`` first adds a record for the finished run or
study in ``FOLDER``. The page itself is ``specexp/report/page/results.html``.
"""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.reproduce.paper_row import choose
from experiments.reproduce.resampled import Resampled
from experiments.reproduce.row_record import RowRecord, figures_of, pair_of
from specexp.bench.record import PromptRecord, by_position, read_records
from specexp.bench.statistics import categories
from specexp.commands.results import with_results
from specexp.config.layers import ConfigError, read_layers

RECORDS, PAGE = Path("experiments"), Path("docs/site/index.html")
POSITIONS, FEWEST = 8, 5
"""Positions of which the page shows the acceptance, and prompts of the smallest category with figures of its own."""
MODELS = {"smollm2": "SmolLM2-135M-Instruct", "stdlib": "embedded 15.7 M"}
TASKS = {"StdlibFunctions": "Python functions", "TaskItems": "reasoning", "EverydayTasks": "everyday tasks"}


def kept(folder: Path) -> RowRecord:
    """Return the record of a finished run or study: its figures by arm and category, with acceptance by position.

    Raises:
        ConfigError: the folder has no records.
    """
    files = [folder / name for name in ("records.jsonl", "confirm.jsonl")]
    file = next((one for one in files if one.is_file()), None)
    if file is None:
        raise ConfigError(f"{folder}: must be the folder of a finished run or study")
    records = [record for record in read_records(file) if not record.error]
    environment = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
    command = environment["command"]
    whole = Resampled(records)
    groups = {name: [one for one in records if one.category == name] for name in categories(records)}
    groups = {name: own for name, own in groups.items() if len({one.prompt_id for one in own}) >= FEWEST}
    run = {
        "command": shlex.join(command),
        "time": environment["time"],
        "commit": environment["git_commit"],
        "dirty": environment["git_dirty"],
        "pair": pair_of(_composed(command)["pair"]["target"]),
        "device": {name: environment[name] for name in ("device", "device_name", "cpu_count", "threads")},
        "versions": environment["packages"],
        "prompts": len({record.prompt_id for record in records}),
        "clock": records[0].clock,
        "arms": _with_positions(whole, records),
        "categories": {name: _with_positions(Resampled(group, whole.arms), group) for name, group in groups.items()},
    }
    return RowRecord(row=folder.name, runs={"": run})


def _with_positions(found: Resampled, records: Sequence[PromptRecord]) -> dict[str, dict[str, Any]]:
    figures = figures_of(found)
    for arm, own in figures.items():
        counted = [one for one in records if one.arm == arm]
        drafted = by_position(one.drafted_at for one in counted)
        accepted = by_position(one.accepted_at for one in counted)
        shares = zip(drafted[:POSITIONS], accepted, strict=False)
        own["accepted_at"] = [round(hits / steps, 3) for steps, hits in shares if steps]
        own["prompts"] = len({one.prompt_id for one in counted})
    return figures


def _composed(command: Sequence[str]) -> dict[str, Any]:
    """Return the keys that a command such as ``python -m specexp.run FILE ...`` sets, unchecked.

    A record may be older than the names of today's keys.
    """
    file, *overrides = command[3:]
    return read_layers(file, overrides).values


def site_of(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the page's data: ``runs`` with their conditions, and ``rows``, each with the index of its run.

    A row is an arm on all prompts of a run or on one category. Plain decoding has no row: it is the reference of the
    speedups, which are None where no second may be compared.
    """
    places = {part.name: f"{row.paper}, {row.place}" for row in choose() for part in row.recorded}
    runs, rows = list[dict[str, Any]](), list[dict[str, Any]]()
    known = dict[tuple[str, str], dict[str, Any]]()  # a run may be in the records of several tables
    for file in sorted(folder.rglob("results/*.json")):
        record = RowRecord.model_validate_json(file.read_bytes())
        for key, run in record.runs.items():
            found = list(_rows(key, run, len(runs)))
            source = places.get(record.row, record.row.replace("_", " "))
            source = f"{source}, {key.replace('_', ' ')}" if key else source
            same = known.get((run["command"], run["time"]))
            if same is not None:
                same["source"] += f"; {source}"
            if not found or same is not None:
                continue
            rows += found
            runs.append(
                {
                    "source": source,
                    "model": _model(run),
                    "device": f"{run['device']['device_name']}, threads: {run['device']['threads']}",
                    "clock": "modelled" if run["clock"] != "measured" else "measured",
                    "costs": run["clock"].partition(": ")[2],
                    "command": run["command"],
                    "commit": run["commit"][:9],
                    "date": run["time"][:10],
                }
            )
            known[run["command"], run["time"]] = runs[-1]
    return {"runs": runs, "rows": rows}


def _model(run: Mapping[str, Any]) -> str:
    pair = run["pair"]
    name = MODELS.get(pair["target"], pair["target"])
    today = pair_of(pair["target"], pair.get("draft"))["digest"]
    return name if not today or today == pair["digest"] else f"{name}, earlier weights"


def _rows(key: str, run: Mapping[str, Any], index: int) -> Iterator[dict[str, Any]]:
    config = _composed(shlex.split(run["command"]))
    prompts = config.get("data", {}).get("prompts", {"class_path": "StdlibFunctions"})
    name = (prompts["class_path"] if isinstance(prompts, Mapping) else prompts).rpartition(".")[2]
    task = TASKS.get(name, name)
    if name == "TaskItems" and key:
        task = f"{task}: {key}"
    mode = "eager" if config.get("pair", {}).get("mode") == "eager" else "compiled"
    for category, arms in {"": run["arms"], **run["categories"]}.items():
        for arm, figures in arms.items():
            if figures.get("nodes_per_step", 0.0) in (0.0, [0.0] * 3):
                continue  # plain decoding, or a group of arms
            if category and "prompts" not in figures and len(set(figures.get("speedup") or (0, 1))) == 1:
                continue  # a category of one prompt has no interval
            row = {
                "run": index,
                "task": f"{task}: {category}" if category else task,
                "method": arm,
                "engine": "Hugging Face" if arm.startswith(("hf-", "Hugging Face")) else f"specexp, {mode}",
                "prompts": figures.get("prompts", None if category else run["prompts"]),
                "tokens_per_step": figures.get("tokens_per_step"),
                "speedup": figures.get("speedup"),
                "accepted_at": figures.get("accepted_at"),
            }
            yield {name: value for name, value in row.items() if value is not None}


def write_page() -> str:
    """Write the figures of all records into the page, and return a sentence on it."""
    data = site_of(RECORDS)
    PAGE.write_text(with_results(data), encoding="utf-8")
    return f"{PAGE} has {len(data['rows'])} rows of {len(data['runs'])} runs."


def main(arguments: Sequence[str] | None = None) -> None:
    """Add records, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m experiments.results_site", description=__doc__)
    parser.add_argument("--keep", type=Path, nargs="+", default=[], metavar="FOLDER")
    for folder in parser.parse_args(arguments).keep:
        kept(folder).write(RECORDS / "results")
    print(write_page())


if __name__ == "__main__":
    main()
