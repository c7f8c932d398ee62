"""A standard library of a few modules, from which a corpus is built in a moment."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.pair.corpus.python_source import PythonLibrary
from experiments.pair.corpus.text_source import TextSource

_SHAPE = '''
def {name}_{i}(values, limit={i}):
    """Collect what {name} number {i} makes of the values, up to a limit."""
    collected = []
    for index, value in enumerate(values):
        if index > limit * {n}:
            break
        collected.append({name}_step(value, index) - {i})
    return collected


class {name}Reader{i}:
    def read_{name}_{i}(self, size=-1):
        data = self.stream.read(size + {n})
        self.position += len(data) * {i}
        if not data:
            raise EOFError("no more {name} {i}")
        return data
'''


def source(name: str, count: int = 12) -> str:
    """Return a module with two documents per item, all different from those of other modules."""
    return "".join(_SHAPE.format(name=name, i=i, n=len(name) + i) for i in range(count))


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the library: ``json`` trains, ``random`` validates, ``zipfile`` tests."""
    root = tmp_path_factory.mktemp("library")
    (root / "test").mkdir()
    (root / "json").mkdir()
    for name, file in {
        "jsondecoder": "json/__init__.py",
        "asynchronous": "asyncio.py",
        "chance": "random.py",
        "archive": "zipfile.py",
        "chancetest": "test/test_random.py",
        "archivetest": "test/test_zipfile64.py",
        "asynctest": "test/test_asyncio.py",
    }.items():
        (root / file).write_text(source(name))
    (root / "copied.py").write_text(
        "# a copy of another module\n" + source("archive") + source("original", 2)
    )
    (root / "broken.py").write_text("def broken(:\n")
    return root


@pytest.fixture(scope="session")
def cache(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a cache folder of ``CorpusRows`` with the corpus of the library, and a tokenizer for it."""
    from experiments.pair.tokenizer import train_tokenizer
    from experiments.pair.training_rows import CorpusRows

    folder = tmp_path_factory.mktemp("cache")
    rows = CorpusRows(str(folder), sources_of(library), str(folder / "tokenizer"))
    rows.prepare_data()
    train_tokenizer(rows.texts("train", "library"), vocab_size=400).save_pretrained(folder / "tokenizer")
    return folder


def sources_of(library: Path) -> dict[str, TextSource]:
    """Return the library and its tests as sources."""
    return {
        "library": PythonLibrary(root=str(library)),
        "library-tests": PythonLibrary("tests", root=str(library)),
    }
