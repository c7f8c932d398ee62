"""The declared tables and figures (``experiments/papers/PAPER/rows.yaml``), and the runs that measure them."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from experiments.reproduce.trend import Clause, Term
from specexp.base.messages import did_you_mean
from specexp.config.layers import ConfigError
from specexp.tracking.names import FORMERLY_PLAIN, PLAIN

PAPERS = ("token_recycling", "dyspec", "seed", "post_use_pre_cut")

_Arguments = Annotated[tuple[str, ...], BeforeValidator(shlex.split)]
_Runs = Annotated[dict[str, _Arguments], BeforeValidator(lambda runs: runs if isinstance(runs, dict) else {"": runs})]
_SHARED = frozenset({"paper", "place", "claim", "runs", "tables"})
"""Fields that a modelled or matched test has from its row."""
KINDS = ("modelled", "matched")
"""Tests of a row's trend at other costs of a pass: of the row's own pair, and of one with the paper's acceptance."""
_Clause = Annotated[Clause, BeforeValidator(Clause)]


class PaperRow(BaseModel):
    """A table or figure of a paper.

    Attributes:
        name: ``PAPER.PLACE``, e.g. ``dyspec.table4``.
        claim: The trend, in a sentence.
        published: The paper's figures, all cells of which the claim speaks.
        runs: Arguments of ``python -m specexp.run`` by the run's name, which is empty if there is one run.
        test: The test of the trend: its clauses.
        main: Number of the main clause, from 1.
        effect: The paper's ratio of the main clause's sides, above 1.
        declared: Date on which runs, clauses and main clause were committed, before any record of them; empty if the
            main clause was named after the measurement.
        declared_after: The earlier record of the row on this pair, after which it was declared again.
        not_measured: The reason why the row is not measured here. Then ``runs`` are the commands that would.
        machine: The machine that these commands need.
        untestable: Parts of the claim that cannot be tested on this machine, each with the reason.
        modelled: The test of the same trend at other costs of a pass.
        not_modelled: The reason why there is no such test.
        matched: The same test on a pair with the paper's acceptance.
        simulated: The result of the simulation or of sleeping passes that concerns the row, with its command.
        deviations: Differences of the runs from the paper's.
        tables: Names of the analyses' tables that a record keeps.
        picture: File name of the last run's picture without suffix; empty if there is no picture.
        correction: An error of an earlier report on this row.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    paper: str
    place: str
    claim: str
    published: str = ""
    runs: _Runs = {}
    test: tuple[_Clause, ...] = ()
    main: Annotated[int, Field(ge=1)] = 1
    effect: Annotated[float, Field(gt=1)] | None = None
    declared: Annotated[str, BeforeValidator(str)] = ""
    declared_after: str = ""
    not_measured: str = ""
    machine: str = ""
    untestable: dict[str, str] = {}
    modelled: RowAtOtherCosts | None = None
    not_modelled: str = ""
    matched: RowAtOtherCosts | None = None
    simulated: str = ""
    deviations: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    picture: str = "figure"
    correction: str = ""

    @model_validator(mode="before")
    @classmethod
    def _complete_parts(cls, declared: dict[str, Any]) -> dict[str, Any]:
        """Fill in missing fields of the modelled and the matched test from their row."""
        found = dict(declared)
        shared = {field: declared[field] for field in _SHARED & declared.keys()}
        for kind in KINDS:
            if isinstance(part := declared.get(kind), dict):
                name = declared["name"] + (f".{kind}" if "runs" in part else "")
                found[kind] = {**shared, "name": name, "picture": "", **part}
        return found

    @model_validator(mode="after")
    def _check(self) -> PaperRow:
        if not self.test and not self.not_measured:
            raise ValueError("must have a test or not_measured, the reason why there is none")
        if self.main > max(len(self.test), 1):
            raise ValueError(f"main must be the number of one of its {len(self.test)} clauses, got {self.main}")
        if bool(self.machine) != bool(self.not_measured and self.runs):
            raise ValueError("must name the machine of its runs, machine, exactly if it is not measured here")
        for term in self.terms:
            run, place = self.place_of(term)
            if run not in self.runs or not place:
                raise ValueError(f"{term} must begin with a run of the row: {', '.join(self.runs)}")
            table, is_table, _ = term.figure.partition(": ")
            if is_table and table not in self.tables:
                raise ValueError(f"{term}: table {table!r} must be one of the row's tables")
        return self

    @property
    def results(self) -> str:
        """The folder of the record and the picture, relative to that of all papers."""
        return f"{self.name.partition('.')[0]}/results"

    @property
    def clauses(self) -> list[Clause]:
        """The clauses that are tested on the row's own record."""
        part = self.modelled
        shared = part.test if part and part.name == self.name and not part.declared_after else ()
        return [*self.test, *shared]

    @property
    def terms(self) -> list[Term]:
        """All figures of :attr:`clauses`."""
        return [term for clause in self.clauses for term in clause.terms.values()]

    @property
    def declaration(self) -> str:
        """Digest of the runs and the clauses; a record counts only if its digest is the same."""
        # claims and published figures may be reworded without a new measurement
        declared: list[Any] = [{name: list(run) for name, run in self.runs.items()}, [one.text for one in self.clauses]]
        if self.declared:
            declared.append(self.main)
        text = re.sub(rf"\b{PLAIN}\b", FORMERLY_PLAIN, json.dumps(declared))  # so that older records count
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def place_of(self, term: Term) -> tuple[str, tuple[str, ...]]:
        """Return the run of a term, and the rest of its place."""
        if len(self.runs) == 1:
            return next(iter(self.runs)), term.place
        return term.place[0], term.place[1:]

    @property
    def parts(self) -> dict[str, RowAtOtherCosts]:
        """The modelled and the matched test, by kind."""
        return {kind: part for kind in KINDS if (part := getattr(self, kind))}

    @property
    def recorded(self) -> list[PaperRow]:
        """The row, and its modelled and matched test if these have runs of their own."""
        return [self, *(part for part in self.parts.values() if part.name != self.name)]

    def each_run(self) -> list[Run]:
        """Return the row's own runs."""
        return [Run(self, key, arguments) for key, arguments in self.runs.items()]


class RowAtOtherCosts(PaperRow):
    """The test of a row's trend at costs of a pass other than this machine's.

    It is tested on the row's record, unless it has runs of its own.

    Attributes:
        costs: The costs and their source, in a phrase.
        source: Whether the paper publishes these costs, or a profile of a device measured them.
    """

    costs: str
    source: Literal["published", "measured"]


def _term(place: Sequence[str]) -> Term:
    return Term(place[0], tuple(place[1:]))


class Line(BaseModel):
    """A line of a paper's first table: a method, the paper's figures, and the places of ours.

    Attributes:
        method: The method and its text.
        paper: Tokens a step and speed-up as published, each empty if the paper has none.
        row: The row of our figures, without the paper's name.
        tokens: Our tokens a step, as metric and place.
        speed: Our speed-up over plain decoding, as metric and place; in the modelled and matched records, too.
        priced: The formula of the modelled and matched speed-up, if their clocks do not have the costs.
        simulated: The simulated speed-up, empty if there is none.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: str
    paper: tuple[str, str]
    row: str
    tokens: Annotated[Term, BeforeValidator(_term)]
    speed: Annotated[Term, BeforeValidator(_term)]
    priced: str = ""
    simulated: str = ""


class Overview(BaseModel):
    """A paper's first table, and in three sentences what differs and why."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    paper: str
    text: str
    lines: tuple[Line, ...]


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


def _declared(paper: str) -> dict[str, Any]:
    """Return the content of a paper's file."""
    text = (Path(__file__).parents[1] / "papers" / paper / "rows.yaml").read_text(encoding="utf-8")
    content: dict[str, Any] = yaml.safe_load(text)
    return content


def overviews() -> dict[str, Overview]:
    """Return the first table of each paper by the paper's name in rows."""
    found = {}
    for paper in PAPERS:
        content = _declared(paper)
        found[paper] = Overview.model_validate({"paper": content["paper"], **content["overview"]})
    return found


@cache
def paper_rows() -> dict[str, PaperRow]:
    """Return all rows by name, in the order of the papers; raises ConfigError for a wrong declaration."""
    rows: dict[str, PaperRow] = {}
    for paper in PAPERS:
        content = _declared(paper)
        for key, declared in content["rows"].items():
            name = f"{paper}.{key}"
            try:
                rows[name] = PaperRow.model_validate({"name": name, "paper": content["paper"], **declared})
            except ValidationError as error:
                first = error.errors()[0]
                place = ".".join(map(str, (key, *first["loc"])))
                raise ConfigError(f"{paper}/rows.yaml: {place}: {first['msg']}") from error
    return rows


def choose(names: Collection[str] = ()) -> list[PaperRow]:
    """Return rows by name or paper, all if no name is given; raises ConfigError for an unknown name."""
    rows = paper_rows()
    for name in names:
        if name not in rows and name not in PAPERS:
            raise ConfigError(f"--only: unknown row {name!r}{did_you_mean(name, rows)}")
    return [row for key, row in rows.items() if not names or key in names or key.partition(".")[0] in names]
