"""The tables and figures that are reproduced, declared as data: a file a paper in ``rows/``."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from experiments.reproduce.trend import Clause, Term
from specexp.config.errors import ConfigError
from specexp.core.messages import did_you_mean

SHORT = ("--data.max_prompts", "2", "--generation.max_new_tokens", "8")
"""What makes any run short; a row may add to it."""
_KEYS = {"place", "claim", "published", "runs", "test", "short", "picture", "tables", "timed", "cause"}
_KEYS_OF_A_CAUSE = {"claim", "runs", "test", "short", "tables", "timed"}


@dataclass(frozen=True)
class PaperRow:
    """A table or figure of a paper.

    Attributes:
        name: ``PAPER.PLACE``, e.g. ``dyspec.table4``.
        paper: as tables call it.
        place: where it stands in the paper.
        claim: the trend, in a sentence.
        published: the paper's figures, in short.
        runs: by name what follows ``python -m specexp.run``: an experiment file and overrides; the name is empty where
            there is one.
        clauses: the test of the trend.
        tables: names of analyses' tables that a record keeps.
        short: overrides that make its runs short, beside :data:`SHORT`.
        timed: whether a figure of it is of this machine's clock; then its runs have the machine for themselves.
        picture: of the last run, by the name of its file without ending; empty for none.
        cause: why it differs, once it was measured: a claim with a test of its own, on runs of its own or, where it
            names none, on the row's; None before.
    """

    name: str
    paper: str
    place: str
    claim: str
    published: str
    runs: dict[str, tuple[str, ...]]
    clauses: tuple[Clause, ...]
    tables: tuple[str, ...] = ()
    short: tuple[str, ...] = ()
    picture: str = "figure"
    timed: bool = True
    cause: PaperRow | None = field(default=None, compare=False)

    @property
    def declaration(self) -> str:
        """Digest of what is run and of the test: a record is of one declaration."""
        said = [
            {name: list(run) for name, run in self.runs.items()},
            [clause.text for clause in self.clauses],
        ]
        return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]

    def place_of(self, term: Term) -> tuple[str, list[str]]:
        """Run of a term, and what names the figure in it."""
        if len(self.runs) == 1:
            return next(iter(self.runs)), list(term.place)
        return term.place[0], list(term.place[1:])

    @property
    def measured_causes(self) -> list[PaperRow]:
        """Its cause, where that has runs of its own."""
        return [self.cause] if self.cause is not None and self.cause.name != self.name else []


@cache
def paper_rows() -> dict[str, PaperRow]:
    """All rows by name, in the order of the papers.

    Raises:
        ConfigError: a declaration is wrong, with its file and key.
    """
    found: dict[str, PaperRow] = {}
    for name in ("token_recycling", "dyspec", "seed", "post_use_pre_cut"):
        file = Path(__file__).parent / "rows" / f"{name}.yaml"
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
        for key, declared in content["rows"].items():
            found[f"{name}.{key}"] = _row(f"{name}.{key}", content["paper"], declared, f"{file.name}: {key}")
    return found


def chosen(names: Iterable[str]) -> list[PaperRow]:
    """Rows by name, or by the name of a paper; all where none is given.

    Raises:
        ConfigError: there is no such row.
    """
    rows = paper_rows()
    found: dict[str, PaperRow] = {}
    for name in names:
        meant = {key: row for key, row in rows.items() if key == name or key.partition(".")[0] == name}
        if not meant:
            raise ConfigError(f"--only: there is no row {name!r}{did_you_mean(name, rows)}")
        found |= meant
    return list((found or rows).values())


def _row(
    name: str, paper: str, declared: dict[str, Any], where: str, keys: Collection[str] = _KEYS
) -> PaperRow:
    for key in declared:
        if key not in keys:
            raise ConfigError(f"{where}: unknown key {key!r}{did_you_mean(key, keys)}")
    runs = declared["runs"]
    try:
        clauses = tuple(map(Clause.of, declared["test"]))
    except ValueError as error:
        raise ConfigError(f"{where}.test: {error}") from error
    row = PaperRow(
        name,
        paper,
        declared["place"],
        declared["claim"],
        declared["published"],
        {
            run: tuple(shlex.split(said))
            for run, said in (runs if isinstance(runs, dict) else {"": runs}).items()
        },
        clauses,
        tuple(declared.get("tables", ())),
        tuple(shlex.split(declared.get("short", ""))),
        declared.get("picture", "figure"),
        declared.get("timed", True),
        _cause(name, paper, declared, where),
    )
    for term in (term for clause in clauses for term in clause.terms if term.figure):
        run, place = row.place_of(term)
        table = term.figure.partition(": ")[0] if ": " in term.figure else None
        if run not in row.runs or not place:
            raise ConfigError(
                f"{where}.test: {term} is of no run of the row; its runs are {', '.join(row.runs)}"
            )
        if table is not None and table not in row.tables:
            raise ConfigError(
                f"{where}.test: {term} is of a table that the row does not keep; add it to tables"
            )
    return row


def _cause(name: str, paper: str, declared: dict[str, Any], where: str) -> PaperRow | None:
    told = declared.get("cause")
    if told is None:
        return None
    own = "runs" in told
    kept = () if own else ("runs", "tables")
    of_the_row = {key: declared[key] for key in kept if key in declared}
    return _row(
        f"{name}.cause" if own else name,
        paper,
        {"place": declared["place"], "published": "", "picture": "", **of_the_row, **told},
        f"{where}.cause",
        _KEYS_OF_A_CAUSE | {"place", "published", "picture"},
    )
