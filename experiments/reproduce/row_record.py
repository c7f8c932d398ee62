"""The compact record of a row: figures with intervals, and with what they were measured."""

from __future__ import annotations

import csv
import hashlib
import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from experiments.reproduce.paper_row import PaperRow
from experiments.reproduce.trend import Figure, Term
from specexp.artifacts.atomic_write import atomic_write
from specexp.models.sources import sources_of

FORMAT = 1
_WITH_INTERVAL = ("tokens_per_step", "alpha", "utilisation")
_WITHOUT = ("nodes_per_step", "draft_passes_per_step", "target_utilisation", "eos_share", "loop_share")
_DIGITS = 5
NOT_RUN_HERE = "(not run here)"
"""How the label of a paper's own row ends, in the tables of its analyses."""


class RowRecordError(ValueError):
    """A record cannot stand for its row; one sentence says why."""


@dataclass(frozen=True)
class RowRecord:
    """What was measured for a row, run by run.

    Attributes:
        row: name of the row.
        runs: by the name of a run its ``command``, ``time``, ``commit``, ``dirty``, ``declaration``, ``pair`` (name and
            digest), ``device``, ``versions``, ``prompts``, ``clock``, and the figures: ``arms``, ``categories`` and
            ``tables``, numbers alone or ``[figure, low, high]``. Categories are those that the row's test asks for.
    """

    row: str
    runs: Mapping[str, Mapping[str, Any]]

    @classmethod
    def read(cls, folder: Path, row: PaperRow) -> RowRecord | None:
        """The record of a row; None where nothing was measured.

        Raises:
            RowRecordError: the file is no record of the row.
        """
        path = folder / f"{row.name}.json"
        if not path.is_file():
            return None
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            told = content["format"], content["row"], dict(content["runs"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RowRecordError(f"{path} is no record of a row ({error})") from error
        if told[:2] != (FORMAT, row.name):
            raise RowRecordError(
                f"{path} is of format {told[0]} and row {told[1]!r}; {FORMAT} and {row.name!r} are expected"
            )
        return cls(row.name, told[2])

    def write(self, folder: Path) -> Path:
        """Write the record, whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.row}.json"
        content = {"format": FORMAT, "row": self.row, "runs": dict(self.runs)}
        atomic_write(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        return path

    def why_not(self, row: PaperRow, run: str, pair: Mapping[str, str]) -> str | None:
        """Why a run's figures do not count for a row today; None where they do.

        Args:
            row: the row as it is declared now.
            run: name of the run.
            pair: :func:`pair_of` the run as it would be made now.
        """
        found = self.runs.get(run)
        name = f"the record of {row.name}{f' ({run})' if run else ''}"
        if found is None:
            return f"{name} is not measured yet"
        digests = {pair["digest"], found["pair"]["digest"]}
        if "" not in digests and len(digests) > 1:
            return (
                f"{name} is of another pair ({found['pair']['target']}, {found['pair']['digest']}) than today's "
                f"({pair['target']}, {pair['digest']})"
            )
        if found["declaration"] != row.declaration:
            return f"{name} is of another declaration of its runs and test; measure it again"
        if found["commit"] and not _in_history(found["commit"]):
            return (
                f"{name} is of commit {found['commit'][:9]}, which is not in this history; measure it again"
            )
        return None

    def look_up(self, row: PaperRow, term: Term) -> Figure:
        """The figure that a term of the row's test names.

        Raises:
            RowRecordError: the record has none.
        """
        run, place = row.place_of(term)
        measured = self.runs[run]
        table, is_table, column = term.figure.partition(": ")
        try:
            if is_table:
                found = measured["tables"][table][place[0]][column]
            elif len(place) > 1:
                found = measured["categories"][place[1]][place[0]][term.figure]
            else:
                found = measured["arms"][place[0]][term.figure]
        except KeyError as error:
            raise RowRecordError(f"the record of {row.name} has no {term}: there is no {error}") from error
        return Figure(*found) if isinstance(found, list) else Figure(float(found))


def pair_of(arguments: Sequence[str]) -> dict[str, str]:
    """Target and draft of a run's arguments, the embedded pair's if they name none, and a digest of their files, empty
    where these are not on this machine."""
    given = dict(pairwise(arguments))
    target, draft = sources_of(given.get("--pair.target", "stdlib"), given.get("--pair.draft"))
    names = {"target": given.get("--pair.target", "stdlib")}
    if "--pair.draft" in given:
        names["draft"] = given["--pair.draft"]
    return {**names, "digest": _digest(target, draft or "")}


@cache
def _digest(*folders: str) -> str:
    digest = hashlib.sha256()
    for folder in filter(None, folders):
        files = sorted(file for file in Path(folder).glob("*") if file.suffix in (".json", ".safetensors"))
        if not files:
            return ""
        for file in files:
            digest.update(file.name.encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def measured(row: PaperRow, arguments: Sequence[str], folder: Path) -> dict[str, Any]:
    """What a run left in its folder, made compact.

    Args:
        row: what it was made for.
        arguments: what followed ``python -m specexp.run``, without where its results went.
        folder: of its results.
    """
    from specexp.bench.clock import clock_of
    from specexp.bench.record import read_records
    from specexp.bench.statistics import arm_names, categories

    records = [record for record in read_records(folder / "records.jsonl") if not record.error]
    environment = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
    arms = arm_names(records)
    terms = [term for clause in row.clauses for term in clause.terms if term.figure]
    asked = {category for term in terms for category in row.place_of(term)[1][1:]}
    groups = [category for category in categories(records) if category in asked]
    device = {name: environment[name] for name in ("device", "device_name", "cpu_count", "threads")}
    return {
        "command": " ".join(["python -m specexp.run", *map(_quoted, arguments)]),
        "time": environment["time"],
        "commit": environment["git_commit"],
        "dirty": environment["git_dirty"],
        "declaration": row.declaration,
        "pair": pair_of(arguments),
        "device": device,
        "versions": environment["packages"],
        "prompts": len({record.prompt_id for record in records}),
        "clock": clock_of(record for record in records if record.arm == arms[0]),
        "arms": {arm: _figures(records, arm, arms[0]) for arm in arms},
        "categories": {
            group: {
                arm: _figures([one for one in records if one.category == group], arm, arms[0]) for arm in arms
            }
            for group in groups
        },
        "tables": {
            name: _table(folder / f"{name}.csv") for name in row.tables if (folder / f"{name}.csv").is_file()
        },
    }


def _figures(records: Sequence[Any], arm: str, baseline: str) -> dict[str, Any]:
    from specexp.bench.metrics import figures_of
    from specexp.bench.phases import breakdown
    from specexp.bench.statistics import metric_interval, paired_speedup

    own = [record for record in records if record.arm == arm]
    if not own:
        return {}
    found: dict[str, Any] = {}
    figures = figures_of(own)
    for name in _WITH_INTERVAL:
        if name in figures:
            found[name] = [_rounded(end) for end in (figures[name], *(metric_interval(own, arm, name) or ()))]
    found |= {name: _rounded(figures[name]) for name in _WITHOUT if name in figures}
    if (parts := breakdown(own, arm)) is not None:
        found["outside_forward"] = _rounded(parts.outside_forward)
        found |= {f"share of {phase}": _rounded(share) for phase, share in parts.shares.items()}
    speedup = None if arm == baseline else paired_speedup(records, arm, baseline)
    if speedup is not None and speedup.refused is None:
        found["speedup"] = [_rounded(end) for end in (speedup.ratio, speedup.low, speedup.high)]
    return {name: one[0] if isinstance(one, list) and len(one) == 1 else one for name, one in found.items()}


def _table(path: Path) -> dict[str, dict[str, Any]]:
    """Figures of an analysis' table by label: all cells up to its column ``arm``, or its first cell, its category, and
    where rows share these the first further cell that tells all of them apart.
    """
    with path.open(encoding="utf-8", newline="") as file:
        heads, *rows = csv.reader(file)
    rows = [row for row in rows if not any(cell.endswith(NOT_RUN_HERE) for cell in row)]
    labels = list(range(heads.index("arm") + 1 if "arm" in heads else 1))
    labels += [heads.index("category")] if "category" in heads[len(labels) :] else []

    def told(row: Sequence[str], *beside: int) -> tuple[str, ...]:
        return tuple(row[at] for at in (*labels, *beside))

    if len(set(map(told, rows))) < len(rows):
        further = (at for at in range(len(heads)) if len({told(row, at) for row in rows}) == len(rows))
        labels += [*islice(further, 1)]
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        cells = dict(zip(heads, row, strict=True))
        figures: dict[str, Any] = {}
        for head in (head for at, head in enumerate(heads) if at not in labels):
            if (value := _number(cells[head])) is None or head.removesuffix(" low").removesuffix(
                " high"
            ) in figures:
                continue
            ends = [_number(cells.get(f"{head} {end}", "")) for end in ("low", "high")]
            figures[head] = value if None in ends else [value, *ends]
        if figures:
            found[" / ".join(told(row))] = figures
    return found


def _number(cell: str) -> float | None:
    """A figure of a cell, also where a sign, a unit or more words follow it; None where it begins otherwise."""
    try:
        return _rounded(float(cell.split()[0].rstrip("x%,;"))) if cell.strip() else None
    except ValueError:
        return None


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def _quoted(argument: str) -> str:
    return f'"{argument}"' if any(sign in argument for sign in " {}[],") else argument


@cache
def _in_history(commit: str) -> bool:
    """Whether a commit is an ancestor of this checkout's; true where that cannot be told."""
    root = str(Path(__file__).parents[2])

    def git(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True, check=False)

    try:
        if git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
            return True
        return git("merge-base", "--is-ancestor", commit, "HEAD").returncode == 0
    except OSError:
        return True
