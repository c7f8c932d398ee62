"""Families of parts: a contract and a folder; what lies there is found without being imported.

A part is a class in a module of its family's folder whose bases lead to the contract. Nothing lists them: a file that
is dropped into the folder is found by the name of its class, and only the module of the part that a configuration names
is imported.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

FOLDERS = {
    "Drafter": "specexp.drafters",
    "TreeBuilder": "specexp.builders",
    "Verifier": "specexp.verifiers",
    "Controller": "specexp.controllers",
    "Analysis": "experiments.papers",
}
"""Packages of families whose contract lies elsewhere in specexp; any other family lies beside its contract."""

_CLASS = re.compile(r"^class (\w+)(?:\[[^\]]*\])?(?:\(([^)]*)\))?:", re.MULTILINE)
_SUMMARY = re.compile(r'\s*"""(.*?)(?:"""|\n\n|\n *\w+:\n)', re.DOTALL)
_ABSTRACT = re.compile(r"^    @abstractmethod\n(?:    @.*\n)*    def (\w+)", re.MULTILINE)
_DEFINED = re.compile(r"^    (?:async )?(?:def (\w+)|(\w+)(?:: [^\n=]*)? = )", re.MULTILINE)


@dataclass(frozen=True)
class Source:
    """A class as its source has it.

    Attributes:
        name: The name of the class.
        module: The module that defines it.
        summary: First line of its docstring.
        bases: Names of its bases.
        abstract: Methods it declares abstract.
        defined: Methods and attributes it defines.
    """

    name: str
    module: str
    summary: str
    bases: tuple[str, ...]
    abstract: frozenset[str]
    defined: frozenset[str]


def parts_of(contract: type | str) -> dict[str, Source]:
    """The parts of a family by their short names, in order; none of them is imported.

    Args:
        contract: The class they derive from, or its dotted path.
    """
    if isinstance(contract, type):
        return _parts(contract.__module__, contract.__name__)
    module, _, name = contract.rpartition(".")
    return _parts(module, name)


@cache
def find_part(contract: type, name: str) -> type | None:
    """The part of a family that goes by a short name; None where there is none.

    Args:
        contract: The class that parts of the family derive from.
        name: The name of the part's class.
    """
    source = parts_of(contract).get(name)
    found = None if source is None else getattr(import_module(source.module), name, None)
    usable = isinstance(found, type) and issubclass(found, contract) and not inspect.isabstract(found)
    return found if usable else None


@cache
def _parts(own: str, contract: str) -> dict[str, Source]:
    package = FOLDERS.get(contract, "") if own.startswith("specexp.") else ""
    package = package or own.rpartition(".")[0] or own
    wrappers = _classes_in("specexp.core.wrappers") if own == "specexp.core.contracts" else []
    classes = [*_classes_in(own), *wrappers, *_classes_in(package)]
    found = {
        one.name: one
        for one in reversed(classes)
        if f"{one.module}.".startswith(
            f"{package}."
        )  # a default beside the contract is no part of the folder
        and one.name != contract
        and not one.name.startswith("_")
        and _leads_to(contract, one, classes)
        and not _abstract_in(one, classes)
    }
    return dict(sorted(found.items()))


def _classes_in(package: str) -> list[Source]:
    """Classes of a module, or of all modules of a package."""
    spec = find_spec(package)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return []
    origin = Path(spec.origin)
    if not spec.submodule_search_locations:
        return _classes_of(origin, package)
    found = []
    for file in sorted(origin.parent.rglob("*.py")):
        inner = file.relative_to(origin.parent).with_suffix("").parts
        steps = inner[:-1] if inner[-1] == "__init__" else inner
        if all(step.isidentifier() for step in steps):
            found += _classes_of(file, ".".join((package, *steps)))
    return found


def _classes_of(file: Path, module: str) -> list[Source]:
    text = file.read_text(encoding="utf-8")
    heads = list(_CLASS.finditer(text))
    ends = [*(head.start() for head in heads), len(text)][1:]
    found = []
    for head, end in zip(heads, ends, strict=True):
        body = text[head.end() : end]
        bases = [
            re.split(r"[\[=]", base)[0].strip().rpartition(".")[2] for base in (head[2] or "").split(",")
        ]
        defined = (name for names in _DEFINED.findall(body) for name in names if name)
        abstract = frozenset(_ABSTRACT.findall(body))
        summary = _SUMMARY.match(body)
        found.append(
            Source(
                head[1],
                module,
                "" if summary is None else summary[1],
                tuple(filter(None, bases)),
                abstract,
                frozenset(defined),
            )
        )
    return found


def _leads_to(contract: str, one: Source, classes: list[Source]) -> bool:
    return contract in one.bases or any(_leads_to(contract, base, classes) for base in _bases(one, classes))


def _abstract_in(one: Source, classes: list[Source]) -> frozenset[str]:
    """Methods that a class leaves abstract."""
    inherited: frozenset[str] = frozenset()
    for base in _bases(one, classes):
        inherited |= _abstract_in(base, classes)
    return one.abstract | (inherited - one.defined)


def _bases(one: Source, classes: list[Source]) -> list[Source]:
    return [other for other in classes if other.name in one.bases and other.name != one.name]
