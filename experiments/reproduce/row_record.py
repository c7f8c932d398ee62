"""The compact record of a row: its figures with their intervals, and the conditions of the measurement."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, reduce
from operator import getitem
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from pydantic import BaseModel, ValidationError

from experiments.reproduce.paper_row import PaperRow, Run
from experiments.reproduce.resampled import Resampled, interval, widened
from experiments.reproduce.trend import INFINITE, Clause, Figure, Term, proportion, value_of
from specexp.artifacts.atomic_write import atomic_write
from specexp.base.messages import first_line
from specexp.bench.clock import clock_of
from specexp.bench.record import read_records
from specexp.bench.statistics import categories
from specexp.config.layers import ConfigError, read_layers
from specexp.models.sources import sources_of
from specexp.tracking.names import FORMERLY_PLAIN, PLAIN

_FORMER = re.compile(rf"\b{FORMERLY_PLAIN}\b(?!/)")  # not in a path
LOADS = "loads.txt"  # in a run's folder: the machine's load of a minute before the run and after it, the run's included
_FIGURES = re.compile(r"\[\n\s+([^\[\]{}\"]*?)\n\s+\]")  # a list of numbers, one a line
_PUBLISHED = "(not run here)"  # the end of a published row's label in the tables of analyses


def json_text(value: Any) -> str:
    """Return a record as JSON, with a line for each list of figures."""
    text = json.dumps(value, indent=1, ensure_ascii=False)
    return _FIGURES.sub(lambda found: f"[{' '.join(found[1].split())}]", text) + "\n"


class RowRecord(BaseModel):
    """The measurements of a row.

    Attributes:
        runs: By the run's key: ``command``, ``time``, ``commit``, ``dirty``, ``declaration``, ``pair`` (names and
            digest), ``device``, ``versions``, ``loads``, ``prompts``, ``clock``, and figures: of ``arms``, of the
            ``categories`` that the test names (with ``category_prompts``) and of ``tables``, each a number or
            ``[figure, low, high]``; and ``ratios`` of the tests' inequalities, paired by prompt. Intervals over
            prompts are those of the bootstrap; :meth:`look_up` and :meth:`ratios` widen them.
    """

    format: Literal[1] = 1
    row: str
    runs: dict[str, dict[str, Any]]

    @classmethod
    def read(cls, folder: Path, row: PaperRow) -> RowRecord:
        """Read a row's record from the papers' folder, empty if there is none; raises ConfigError for another file."""
        path = folder / row.results / f"{row.name}.json"
        try:
            return cls.model_validate_json(_FORMER.sub(PLAIN, path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return cls(row=row.name, runs={})
        except ValidationError as error:
            raise ConfigError(f"{path}: must be the record of a row ({first_line(error)})") from error

    def write(self, folder: Path) -> None:
        """Write the record atomically."""
        folder.mkdir(parents=True, exist_ok=True)
        atomic_write(folder / f"{self.row}.json", json_text(self.model_dump()))

    def why_not(self, run: Run) -> str:
        """Return why a run's recorded figures are missing or outdated; empty if they are valid."""
        if (found := self.runs.get(run.key)) is None:
            return f"{run.name} is not measured yet"
        pair, today, commit = found["pair"], pair_of_run(run.arguments), found["commit"]
        # the digest is empty if the files of the pair are not on this machine
        if pair["digest"] != today["digest"] and pair["digest"] and today["digest"]:
            # without today's digest, so that the page changes only with the records
            why = f"another pair ({pair['target']}, {pair['digest']}) than today's"
        elif found["declaration"] != run.row.declaration:
            why = "another declaration of its runs and test"
        elif commit and not _in_history(commit):
            why = f"commit {commit[:9]}, which is not in this history"
        else:
            return ""
        return f"the record of {run.name} is of {why}; measure it again"

    def look_up(self, row: PaperRow, term: Term) -> Figure:
        """Return the figure of a term of the row's test; raises LookupError if the record has none."""
        key, (arm, *category) = row.place_of(term)
        table, is_table, column = term.figure.partition(": ")
        group = ["tables", table] if is_table else ["categories", *category] if category else ["arms"]
        try:
            found: Any = reduce(getitem, [*group, arm, column or term.figure], self.runs[key])
        except KeyError as error:
            raise LookupError(f"the record of {row.name} has no {term}: there is no {error}") from error
        figure = found if isinstance(found, list) else [float(found)]
        return figure if is_table else widened(figure, self._prompts(row, term))

    def ratios(self, row: PaperRow, clause: Clause) -> dict[str, Figure]:
        """Return the paired ratios of a clause's inequalities that have one.

        A recorded ratio of the same figures counts in whatever costs they are, and so does one figure's own interval.
        """
        prompts = min(self._prompts(row, term) for term in clause.terms.values())
        known: list[tuple[Sequence[str], Figure]] = [
            (name.split(" over "), widened(ratio, prompts))
            for run in self.runs.values()
            for name, ratio in run.get("ratios", {}).items()
        ]
        own = {source: self.look_up(row, term) for source, term in clause.terms.items()}
        known += [((source, "1"), figure) for source, figure in own.items() if len(figure) > 1]
        found: dict[str, Figure] = {}
        for name, sides in clause.inequalities.items():
            for others, ratio in known:
                if name not in found and (factor := proportion(sides, others)) is not None:
                    found[name] = [factor * end for end in ratio]
        return found

    def _prompts(self, row: PaperRow, term: Term) -> int:
        """Return the number of prompts of a term's figure."""
        key, (_, *category) = row.place_of(term)
        run = self.runs[key]
        prompts: int = run["category_prompts"][category[0]] if category else run["prompts"]
        return prompts


def pair_of(target: str, draft: str | None = None) -> dict[str, str]:
    """Return target, draft and a digest of their files; the digest is empty if these are not on this machine."""
    names = {"target": target} if draft is None else {"target": target, "draft": draft}
    return {**names, "digest": _digest(*filter(None, sources_of(target, draft)))}


@cache
def pair_of_run(arguments: tuple[str, ...]) -> dict[str, str]:
    """Return the pair that a run's files and arguments compose."""
    pair = read_layers(Path(arguments[0]), arguments[1:]).values["pair"]
    return pair_of(pair["target"], pair.get("draft"))


@cache
def _digest(*folders: str) -> str:
    digest = hashlib.sha256()
    for folder in folders:
        found = [Path(folder)] if Path(folder).is_file() else Path(folder).glob("*")  # a GGUF file is the model
        files = sorted(file for file in found if file.suffix in (".json", ".safetensors", ".gguf"))
        if not files:
            return ""
        for file in files:
            digest.update(file.name.encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def summarize(run: Run, folder: Path) -> dict[str, Any]:
    """Return the compact results of a run from the files in its folder."""
    records = [record for record in read_records(folder / "records.jsonl") if not record.error]
    environment = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
    named = {category for term in run.row.terms for category in run.row.place_of(term)[1][1:]}
    whole = Resampled(records)
    groups = {
        name: Resampled([record for record in records if record.category == name], whole.arms)
        for name in categories(records)
        if name in named
    }
    tables = {name: folder / f"{name}.csv" for name in run.row.tables}
    return {
        "command": f"python -m specexp.run {shlex.join(run.arguments)}",
        "time": environment["time"],
        "commit": environment["git_commit"],
        "dirty": environment["git_dirty"],
        "declaration": run.row.declaration,
        "pair": pair_of_run(run.arguments),
        "device": {name: environment[name] for name in ("device", "device_name", "cpu_count", "threads")},
        "versions": environment["packages"],
        "loads": (folder / LOADS).read_text().split() if (folder / LOADS).is_file() else [],
        "prompts": len({record.prompt_id for record in records}),
        "clock": clock_of(record for record in records if record.arm == whole.arms[0]),
        "arms": figures_of(whole),
        "categories": {name: figures_of(group) for name, group in groups.items()},
        "category_prompts": {name: group.prompts for name, group in groups.items()},
        "tables": {name: _table(path) for name, path in tables.items() if path.is_file()},
        "ratios": {name: ratio for clause in run.row.clauses for name, ratio in _ratios(run, clause, whole, groups)},
    }


def figures_of(found: Resampled) -> dict[str, dict[str, Any]]:
    """Return the figures of every arm by name, with their intervals."""
    figures: dict[str, dict[str, Any]] = {}
    for arm in found.arms:
        own = figures[arm] = {}
        for name in found.names(arm):
            with suppress(LookupError):
                own[name] = _compact(found.figure(name, arm))
    return figures


def _ratios(run: Run, clause: Clause, whole: Resampled, groups: Mapping[str, Resampled]) -> Iterator[tuple[str, Any]]:
    """Yield the inequalities of a clause of which all figures are of this run's prompts, and their ratios."""

    def draws(term: Term) -> Figure:
        key, (arm, *category) = run.row.place_of(term)
        if key != run.key or ": " in term.figure:
            raise LookupError(term)
        return (groups[category[0]] if category else whole).draws(term.figure, arm)

    for name, sides in clause.inequalities.items():
        try:
            left, right = (value_of(side, draws) for side in sides)
        except LookupError:
            continue
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.nan_to_num(left / right, nan=1.0, posinf=INFINITE)
        yield name, _compact(interval(np.broadcast_to(ratio, max(left.size, right.size))))


def _table(path: Path) -> dict[str, dict[str, Any]]:
    """Return an analysis' figures by label and heading.

    A label consists of the cells up to ``arm`` (or only the first cell) and the category. If rows share a label, the
    first further column that makes all labels unique is added.
    """
    frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    frame = frame[~frame.apply(lambda cells: cells.str.endswith(_PUBLISHED)).any(axis=1)]
    heads = list(frame)
    labels = heads[: heads.index("arm") + 1 if "arm" in heads else 1]  # such as task and arm
    labels += [head for head in heads[len(labels) :] if head == "category"]
    if frame.duplicated(labels).any():
        labels += [head for head in heads if not frame.duplicated([*labels, head]).any()][:1]
    found: dict[str, dict[str, Any]] = {}
    for cells in frame.to_dict("records"):
        label = " / ".join(cells.pop(head) for head in labels)
        figures = {head: [number] for head, cell in cells.items() if (number := _number(cell)) is not None}
        for head in list(figures):
            low, high = f"{head} low", f"{head} high"
            if low in figures and high in figures:
                figures[head] += figures.pop(low) + figures.pop(high)
        if figures:
            found[label] = {head: _compact(figure) for head, figure in figures.items()}
    return found


def _number(cell: str) -> float | None:
    """Return the number at the start of a cell, without its unit; None if there is no number."""
    try:
        return float(cell.split()[0].rstrip("x%,;")) if cell.strip() else None
    except ValueError:
        return None


def _compact(figure: Figure) -> float | list[float]:
    rounded = [float(f"{number:.5g}") for number in figure]
    return rounded if len(rounded) > 1 else rounded[0]


@cache
def _in_history(commit: str) -> bool:
    """Return whether a commit is an ancestor of this checkout's; True if git cannot decide."""
    git = ["git", "-C", str(Path(__file__).parents[2])]
    try:
        shallow = subprocess.run([*git, "rev-parse", "--is-shallow-repository"], capture_output=True)
        ancestor = subprocess.run([*git, "merge-base", "--is-ancestor", commit, "HEAD"], capture_output=True)
    except OSError:
        return True
    # a shallow clone lacks old commits, so git cannot decide
    return shallow.stdout.strip() != b"false" or ancestor.returncode == 0
