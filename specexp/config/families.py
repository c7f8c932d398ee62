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
    "Analysis": "specexp.papers",
}
"""Packages of families whose contract lies elsewhere in specexp; any other family lies beside its contract."""

_CLASS = re.compile(r"^class (\w+)(?:\[[^\]]*\])?(?:\(([^)]*)\))?:", re.MULTILINE)
_ABSTRACT = re.compile(r"^    @abstractmethod\n(?:    @.*\n)*    def (\w+)", re.MULTILINE)
_DEFINED = re.compile(r"^    (?:async )?(?:def (\w+)|(\w+)(?:: [^\n=]*)? = )", re.MULTILINE)


@dataclass(frozen=True)
class _Class:
    """A class as its source has it."""

    name: str
    module: str
    bases: tuple[str, ...]
    abstract: frozenset[str]
    defined: frozenset[str]


def names_of(base: type) -> list[str]:
    """Short names of a family's parts, in order."""
    return sorted(_modules_of(base))


def find_part(base: type, name: str) -> type | None:
    """The part of a family that goes by a short name; None where there is none.

    Args:
        base: contract of the family.
        name: of the class.
    """
    module = _modules_of(base).get(name)
    found = getattr(import_module(module), name, None) if module is not None else None
    usable = isinstance(found, type) and issubclass(found, base) and not inspect.isabstract(found)
    return found if usable else None


@cache
def _modules_of(base: type) -> dict[str, str]:
    """Module of each part by its short name."""
    contract, own = base.__name__, base.__module__
    package = FOLDERS.get(contract, "") if own.startswith("specexp.") else ""
    package = package or own.rpartition(".")[0] or own
    classes = [*_classes_in(own), *_classes_in(package)]
    return {
        one.name: one.module
        for one in reversed(classes)
        if one.name != contract
        and f"{one.module}.".startswith(
            f"{package}."
        )  # what stands beside a contract elsewhere is no part of the folder
        and not one.name.startswith("_")
        and _leads_to(contract, one, classes)
        and not _abstract_in(one, classes)
    }


def _classes_in(package: str) -> list[_Class]:
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


def _classes_of(file: Path, module: str) -> list[_Class]:
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
        found.append(_Class(head[1], module, tuple(filter(None, bases)), abstract, frozenset(defined)))
    return found


def _leads_to(contract: str, one: _Class, classes: list[_Class]) -> bool:
    return contract in one.bases or any(_leads_to(contract, base, classes) for base in _bases(one, classes))


def _abstract_in(one: _Class, classes: list[_Class]) -> frozenset[str]:
    """Methods that a class leaves abstract."""
    inherited: frozenset[str] = frozenset()
    for base in _bases(one, classes):
        inherited |= _abstract_in(base, classes)
    return one.abstract | (inherited - one.defined)


def _bases(one: _Class, classes: list[_Class]) -> list[_Class]:
    return [other for other in classes if other.name in one.bases and other.name != one.name]
