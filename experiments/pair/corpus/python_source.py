"""Python source code as training text: the standard library, installed packages, and programming tasks."""

from __future__ import annotations

import hashlib
import importlib.util
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Literal

from typing_extensions import override

from experiments.pair.corpus.text_source import Text, TextSource
from specexp.data.named_sets import mbpp_docstring
from specexp.data.source import read_table
from specexp.data.training_text import Document, Split, documents_of, is_test_module, python_files, split_of

# Package -> (licence, most characters), for the packages installed when the embedded pair was trained.
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
_MBPP_SPLITS: dict[Split, range] = {
    "train": range(601, 975),
    "validation": range(511, 601),
    "test": range(11, 511),
}


class PythonLibrary(TextSource):
    """Functions and small modules of the running interpreter's standard library, split by module.

    Held-out texts are only functions, without tests.

    Args:
        part: whether the texts are the modules themselves, or their tests.
        root: the folder of the library; by default the interpreter's own.
    """

    licence: ClassVar[str] = "PSF-2.0 (Python standard library)"

    def __init__(self, part: Literal["library", "tests"] = "library", root: str | None = None) -> None:
        self.part = part
        self.root = root

    @override
    def texts(self, split: Split) -> Iterator[Text]:
        if split != "train" and self.part == "tests":
            return
        for module, path in python_files(Path(self.root or sysconfig.get_paths()["stdlib"])):
            if split_of(module) == split and is_test_module(module) == (self.part == "tests"):
                for document in documents_of(path, module):
                    if split == "train" or document.kind == "function":
                        yield Text(document.module, document.text)


class PythonPackages(TextSource):
    """Functions and small modules of the installed packages in `PACKAGES`; all texts are for training.

    Tests and bundled copies of other packages are left out.
    """

    licence: ClassVar[str] = "; ".join(f"{package} {licence}" for package, (licence, _) in PACKAGES.items())

    @override
    def texts(self, split: Split) -> Iterator[Text]:
        for package, (_, max_characters) in PACKAGES.items() if split == "train" else ():
            for document in package_documents(package, max_characters):
                yield Text(document.module, document.text)


def package_files(package: str) -> list[tuple[str, Path]]:
    """Return module names and files of an installed package, without tests, in the order of their hashed names."""
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
    """Yield documents of files spread over an installed package, up to a number of characters."""
    taken = 0
    for module, path in package_files(package):
        for document in documents_of(path, module):
            taken += len(document.text)
            yield document
        if taken >= max_characters:
            return


class ProgrammingTasks(TextSource):
    """MBPP in its original form, ``text, code, task_id, test_list``, split as published: 601 to 974 are for training.

    Args:
        path: the file, or the name of the data set on the hub.
    """

    licence: ClassVar[str] = "CC-BY-4.0 (MBPP, Austin et al. 2021, Google Research)"
    written: ClassVar[bool] = False  # both forms of a task share its program

    def __init__(self, path: str = "google-research-datasets/mbpp") -> None:
        self.path = path

    @override
    def texts(self, split: Split) -> Iterator[Text]:
        for row in read_table(self.path, "text", "code", "task_id", "test_list", subset="full"):
            task = int(row.label("task_id"))
            if task in _MBPP_SPLITS[split]:
                code = "\n".join(line.rstrip() for line in row.text("code").expandtabs(4).splitlines())
                yield Text(f"mbpp/{task}", f"{mbpp_docstring(row)}{code}\n")
                if split == "train":
                    tests = "\n".join(row.texts("test_list"))
                    yield Text(f"mbpp/{task}/tested", f'"""{row.text("text")}"""\n\n{code}\n\n{tests}\n')


class HumanEvalTasks(TextSource):
    """HumanEval (Chen et al. 2021): 164 functions with their docstrings, all in the test split.

    Args:
        path: the file, or the name of the data set on the hub.
    """

    licence: ClassVar[str] = "MIT (HumanEval, Chen et al. 2021, OpenAI)"

    def __init__(self, path: str = "openai/openai_humaneval") -> None:
        self.path = path

    @override
    def texts(self, split: Split) -> Iterator[Text]:
        if split == "test":
            for row in read_table(self.path, "task_id", "prompt", "canonical_solution", split="test"):
                yield Text(row.label("task_id"), row.text("prompt") + row.text("canonical_solution"))
