"""The declared tables and figures (one file per paper in ``rows/``), and the runs that measure them."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, model_validator

from experiments.reproduce.trend import Clause, Term
from specexp.config.layers import ConfigError
from specexp.core.messages import did_you_mean

PAPERS = ("token_recycling", "dyspec", "seed", "post_use_pre_cut")

_Arguments = Annotated[tuple[str, ...], BeforeValidator(shlex.split)]
_Runs = Annotated[
    dict[str, _Arguments], BeforeValidator(lambda runs: runs if isinstance(runs, dict) else {"": runs})
]
_Clause = Annotated[Clause, BeforeValidator(Clause)]


class PaperRow(BaseModel):
    """A table or figure of a paper.

    Attributes:
        name: ``PAPER.PLACE``, e.g. ``dyspec.table4``.
        claim: The trend, in a sentence.
        published: The paper's figures, in short.
        runs: Arguments of ``python -m specexp.run`` by the run's name, which is empty if there is one run.
        test: The test of the trend.
        tables: Names of the analyses' tables that a record keeps.
        picture: File name of the last run's picture without suffix; empty if there is no picture.
        timed: Whether any figure depends on the machine's speed. Then each run has the machine to itself.
        cause: The reason why the row differs, declared after its measurement: a claim with its own test. It is tested
            on the row's record unless it has runs of its own.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    paper: str
    place: str
    claim: str
    published: str = ""
    runs: _Runs
    test: tuple[_Clause, ...]
    tables: tuple[str, ...] = ()
    picture: str = "figure"
    timed: bool = True
    cause: PaperRow | None = None

    @model_validator(mode="before")
    @classmethod
    def _complete_cause(cls, declared: dict[str, Any]) -> dict[str, Any]:
        """Fill in a cause's missing fields from its row."""
        if not isinstance(cause := declared.get("cause"), dict):
            return declared
        shared = {key: declared[key] for key in declared.keys() - {"cause", "published", "timed"}}
        name = declared["name"] + (".cause" if "runs" in cause else "")
        return {**declared, "cause": {**shared, "name": name, "picture": "", **cause}}

    @model_validator(mode="after")
    def _check_terms(self) -> PaperRow:
        for term in self.terms:
            run, place = self.place_of(term)
            if run not in self.runs or not place:
                raise ValueError(f"{term} must begin with a run of the row: {', '.join(self.runs)}")
            table, is_table, _ = term.figure.partition(": ")
            if is_table and table not in self.tables:
                raise ValueError(f"{term}: table {table!r} must be one of the row's tables")
        return self

    @property
    def terms(self) -> list[Term]:
        """All figures of the test."""
        return [term for clause in self.test for term in clause.terms.values()]

    @property
    def declaration(self) -> str:
        """Digest of the runs and the test; a record counts only if its digest is the same."""
        # claims and published figures may be reworded without a new measurement
        declared = [{name: list(run) for name, run in self.runs.items()}, [one.text for one in self.test]]
        return hashlib.sha256(json.dumps(declared).encode()).hexdigest()[:16]

    def place_of(self, term: Term) -> tuple[str, tuple[str, ...]]:
        """Return the run of a term, and the rest of its place."""
        if len(self.runs) == 1:
            return next(iter(self.runs)), term.place
        return term.place[0], term.place[1:]

    @property
    def measured(self) -> list[PaperRow]:
        """The row, and its cause if the cause has runs of its own."""
        return [self, *([self.cause] if self.cause and self.cause.name != self.name else [])]

    def each_run(self) -> list[Run]:
        """Return the row's runs, without those of its cause."""
        return [Run(self, key, arguments) for key, arguments in self.runs.items()]


@dataclass(frozen=True)
class Run:
    """A run of a row: its key in ``runs``, and the arguments of ``python -m specexp.run``."""

    row: PaperRow
    key: str
    arguments: tuple[str, ...]

    @property
    def name(self) -> str:
        """The run's name, used in messages and for the folder of its results."""
        return f"{self.row.name}.{self.key}".removesuffix(".")


@cache
def paper_rows() -> dict[str, PaperRow]:
    """Return all rows by name, in the order of the papers; raises ConfigError for a wrong declaration."""
    rows: dict[str, PaperRow] = {}
    for paper in PAPERS:
        file = Path(__file__).parent / "rows" / f"{paper}.yaml"
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
        for key, declared in content["rows"].items():
            name = f"{paper}.{key}"
            try:
                rows[name] = PaperRow.model_validate({"name": name, "paper": content["paper"], **declared})
            except ValidationError as error:
                first = error.errors()[0]
                place = ".".join(map(str, (key, *first["loc"])))
                raise ConfigError(f"{file.name}: {place}: {first['msg']}") from error
    return rows


def choose(names: Collection[str] = ()) -> list[PaperRow]:
    """Return rows by name or paper, all if no name is given; raises ConfigError for an unknown name."""
    rows = paper_rows()
    for name in names:
        if name not in rows and name not in PAPERS:
            raise ConfigError(f"--only: unknown row {name!r}{did_you_mean(name, rows)}")
    return [row for key, row in rows.items() if not names or key in names or key.partition(".")[0] in names]
