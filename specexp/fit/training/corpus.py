"""The corpus of the embedded pair: the standard library and permissively licensed packages, split by module.

Functions that also occur in a held-out module, wherever they are found, are not training text.
"""

from __future__ import annotations

import hashlib
import importlib.util
import random
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from specexp.data.corpus.sources import Document, documents_of, fingerprint, python_files
from specexp.data.corpus.split import Split, is_test_module, split_of

if TYPE_CHECKING:
    import datasets

# Package -> (licence, at most so many characters of it): what was installed beside the pair that is shipped.
PACKAGES: dict[str, tuple[str, int]] = {
    "torch": ("BSD-3-Clause", 3_000_000),
    "transformers": ("Apache-2.0", 1_200_000),
    "datasets": ("Apache-2.0", 900_000),
    "lightning": ("Apache-2.0", 900_000),
    "huggingface_hub": ("Apache-2.0", 800_000),
    "optuna": ("MIT", 700_000),
    "wandb": ("MIT", 700_000),
    "numpy": ("BSD-3-Clause", 1_300_000),
    "scipy": ("BSD-3-Clause", 1_000_000),
    "pandas": ("BSD-3-Clause", 1_300_000),
    "fsspec": ("BSD-3-Clause", 500_000),
    "aiohttp": ("Apache-2.0", 500_000),
    "jsonargparse": ("MIT", 300_000),
    "pydantic": ("MIT", 400_000),
    "rich": ("MIT", 500_000),
    "setuptools": ("MIT", 600_000),
    "pip": ("MIT", 1_000_000),
    "sqlalchemy": ("MIT", 700_000),
    "networkx": ("BSD-3-Clause", 400_000),
    "jinja2": ("BSD-3-Clause", 300_000),
    "click": ("BSD-3-Clause", 300_000),
}
_SKIPPED_PARTS = {"tests", "test", "testing", "_generated", "models", "vendor", "_vendor", "auto_gen"}


def stdlib_documents(*, root: Path | None = None) -> Iterator[Document]:
    """Every document of the running interpreter's standard library, all splits."""
    for module, path in python_files(root or Path(sysconfig.get_paths()["stdlib"])):
        yield from documents_of(path, module)


def package_documents(package: str, max_characters: int) -> Iterator[Document]:
    """Functions of an installed package up to a number of characters; nothing when it is not installed.

    Files are taken in the order of their hashed names, so that a cap takes from all over the package. Tests,
    generated files and bundled copies are left out.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return
    root = Path(next(iter(spec.submodule_search_locations)))
    files = [
        (module, path)
        for module, path in python_files(root)
        if not _SKIPPED_PARTS.intersection(module.split("."))
    ]
    taken = 0
    for module, path in sorted(files, key=lambda item: hashlib.sha256(item[0].encode()).digest()):
        if path.stat().st_size > 400_000:
            continue
        for document in documents_of(path, f"{package}.{module}".removesuffix(".__init__")):
            taken += len(document.text)
            yield document
        if taken >= max_characters:
            return


def without_held_out(documents: Iterable[Document], held_out: Iterable[Document]) -> list[Document]:
    """``documents`` without duplicates and without copies of a held-out document.

    A copy has an equal `fingerprint`, or at least 60 % of its longer lines are lines of held-out documents.
    """
    seen = set()
    held_lines = set()
    for document in held_out:
        seen.add(fingerprint(document.text))
        held_lines.update(_long_lines(document.text))
    kept = []
    for document in documents:
        mark = fingerprint(document.text)
        lines = _long_lines(document.text)
        copied = sum(line in held_lines for line in lines)
        if mark in seen or (len(lines) >= 3 and copied >= 0.6 * len(lines)):
            continue
        seen.add(mark)
        kept.append(document)
    return kept


def build_corpus(
    *, stdlib_root: Path | None = None, packages: dict[str, tuple[str, int]] | None = None
) -> datasets.DatasetDict:
    """The three splits as data sets with the columns ``module``, ``origin``, ``kind`` and ``text``.

    ``origin`` is ``stdlib``, ``stdlib-test`` or ``package``. Validation and test hold functions of non-test
    modules only.
    """
    import datasets

    everything = list(stdlib_documents(root=stdlib_root))
    held = [document for document in everything if split_of(document.module) != "train"]
    train = [document for document in everything if split_of(document.module) == "train"]
    # Library before tests, so that of two equal documents the library's is kept.
    train.sort(key=lambda document: is_test_module(document.module))
    library = {document.module for document in train if not is_test_module(document.module)}
    others: list[Document] = []
    for package, (_, cap) in (PACKAGES if packages is None else packages).items():
        others += package_documents(package, cap)
    kept = without_held_out([*train, *others], held)
    stdlib_modules = {document.module for document in train}
    origins = [
        ("stdlib" if d.module in library else "stdlib-test") if d.module in stdlib_modules else "package"
        for d in kept
    ]
    splits = {"train": _dataset(kept, origins)}
    split: Split
    for split in ("validation", "test"):
        functions = _held_out_functions(held, split)
        splits[split] = _dataset(functions, ["stdlib"] * len(functions))
    return datasets.DatasetDict(splits)


def held_out_texts(split: Split, *, stdlib_root: Path | None = None) -> list[str]:
    """The held-out functions of one split of `build_corpus`, in its order, without building the rest."""
    root = stdlib_root or Path(sysconfig.get_paths()["stdlib"])
    documents = (
        document
        for module, path in python_files(root)
        if split_of(module) == split and not is_test_module(module)
        for document in documents_of(path, module)
    )
    return [document.text for document in _held_out_functions(documents, split)]


def _held_out_functions(documents: Iterable[Document], split: Split) -> list[Document]:
    """Functions of a split's non-test modules, without duplicates, in one fixed shuffled order."""
    functions = [
        document
        for document in documents
        if document.kind == "function"
        and split_of(document.module) == split
        and not is_test_module(document.module)
    ]
    functions = without_held_out(functions, [])
    random.Random(0).shuffle(functions)
    return functions


def _long_lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if len(line.strip()) > 20]


def _dataset(documents: list[Document], origins: list[str]) -> datasets.Dataset:
    import datasets

    return datasets.Dataset.from_dict(
        {
            "module": [document.module for document in documents],
            "origin": origins,
            "kind": [document.kind for document in documents],
            "text": [document.text for document in documents],
        }
    )
