"""Python source as training text: the standard library, its tests, and permissively licensed installed packages."""

from __future__ import annotations

import hashlib
import importlib.util
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Literal

from typing_extensions import override

from specexp.data.corpus.sources import Document, documents_of, python_files
from specexp.data.corpus.split import Split, is_test_module, split_of
from specexp.data.corpus.text_source import Text, TextSource

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


class PythonLibrary(TextSource):
    """Functions and small modules of the running interpreter's standard library, split by module.

    Held out are functions alone, in one fixed shuffled order, and of tests nothing.

    Args:
        part: the modules themselves, or their tests.
        root: the folder of the library; the interpreter's own when absent.
    """

    licence: ClassVar[str] = "PSF-2.0 (Python standard library)"

    def __init__(self, part: Literal["library", "tests"] = "library", root: str | None = None) -> None:
        self.part = part
        self.root = root

    @override
    def texts(self, split: Split) -> Iterator[Text]:
        if split != "train" and self.part == "tests":
            return
        documents = (
            document
            for module, path in python_files(Path(self.root or sysconfig.get_paths()["stdlib"]))
            if split_of(module) == split and is_test_module(module) == (self.part == "tests")
            for document in documents_of(path, module)
        )
        for document in documents:
            if split == "train" or document.kind == "function":
                yield Text(document.module, document.text)


class PythonPackages(TextSource):
    """Functions and small modules of installed packages, all of them training text; tests and bundled copies are not.

    Args:
        packages: which, of those whose licences are known here; all when absent. What is not installed is left out.
    """

    licence: ClassVar[str] = "; ".join(f"{package} {licence}" for package, (licence, _) in PACKAGES.items())

    def __init__(self, packages: list[str] | None = None) -> None:
        unknown = sorted({*(packages or [])} - PACKAGES.keys())
        if unknown:
            raise ValueError(f"the licence of {unknown[0]!r} is not known; known are {', '.join(PACKAGES)}")
        self.packages = packages

    @override
    def texts(self, split: Split) -> Iterator[Text]:
        for package in PACKAGES if self.packages is None else self.packages:
            if split == "train":
                for document in package_documents(package, PACKAGES[package][1]):
                    yield Text(document.module, document.text)


def package_files(package: str) -> list[tuple[str, Path]]:
    """Module names and files of an installed package, without tests, in the order of their hashed names."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return []
    root = Path(next(iter(spec.submodule_search_locations)))
    files = [
        (f"{package}.{module}".removesuffix(".__init__"), path)
        for module, path in python_files(root)
        if not _SKIPPED_PARTS.intersection(module.split(".")) and path.stat().st_size <= 400_000
    ]
    return sorted(files, key=lambda item: hashlib.sha256(item[0].encode()).digest())


def package_documents(package: str, max_characters: int) -> Iterator[Document]:
    """Functions of an installed package up to a number of characters, from all over it."""
    taken = 0
    for module, path in package_files(package):
        for document in documents_of(path, module):
            taken += len(document.text)
            yield document
        if taken >= max_characters:
            return
