from __future__ import annotations

from pathlib import Path

import pytest

from specexp.data.corpus.sources import Document, documents_of, fingerprint, is_repetitive
from specexp.data.corpus.split import TEST_MODULES, VALIDATION_MODULES, split_of
from specexp.fit.training.corpus import PACKAGES, build_corpus, held_out_texts


@pytest.mark.parametrize(
    ("module", "split"),
    [
        ("json.decoder", "train"),
        ("zipfile", "test"),
        ("zipfile._path", "test"),
        ("test.test_zipfile64", "test"),
        ("test.test_zipfile.test_core", "test"),
        ("xmlrpc.client", "validation"),
        ("_random", "validation"),
        ("test.test_random", "validation"),
        ("copyreg", "train"),
        ("test.support.random", "validation"),
    ],
)
def test_a_module_and_its_tests_belong_to_one_split(module: str, split: str) -> None:
    assert split_of(module) == split


def test_no_module_is_in_two_splits() -> None:
    assert not VALIDATION_MODULES & TEST_MODULES


def test_held_out_modules_their_tests_and_copies_of_them_are_not_training_text(library: Path) -> None:
    corpus = build_corpus(stdlib_root=library, packages={})
    modules = {split: set(corpus[split]["module"]) for split in corpus}
    assert modules["train"] == {"json", "asyncio", "copied", "test.test_asyncio"}
    assert modules["validation"] == {"random"}
    assert modules["test"] == {"zipfile"}
    train = {fingerprint(text) for text in corpus["train"]["text"]}
    held = {fingerprint(text) for split in ("validation", "test") for text in corpus[split]["text"]}
    assert not train & held
    assert not any("archive" in text for text in corpus["train"]["text"])
    assert any("original_1" in text for text in corpus["train"]["text"])


def test_origins_tell_library_tests_and_packages_apart(library: Path) -> None:
    corpus = build_corpus(
        stdlib_root=library, packages={"click": PACKAGES["click"], "no_such_package": ("MIT", 9)}
    )
    by_origin = {row["origin"]: row["module"] for row in corpus["train"]}
    assert by_origin["stdlib-test"] == "test.test_asyncio"
    assert by_origin.get("package", "click.core").startswith("click.")


def test_held_out_texts_are_those_of_the_corpus(library: Path) -> None:
    corpus = build_corpus(stdlib_root=library, packages={})
    assert held_out_texts("test", stdlib_root=library) == list(corpus["test"]["text"])


def test_documents_are_dedented_outermost_functions_with_their_decorators(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(
        "class Stack:\n"
        "    @property\n"
        "    def height(self):   \n"
        "        def inner(item):\n"
        "            return len(item) + self.offset + self.base\n"
        "        return max(inner(item) for item in self.items)\n"
    )
    functions = [document for document in documents_of(file, "module") if document.kind == "function"]
    assert [document.text for document in functions] == [
        "@property\n"
        "def height(self):\n"
        "    def inner(item):\n"
        "        return len(item) + self.offset + self.base\n"
        "    return max(inner(item) for item in self.items)\n"
    ]


def test_a_file_that_does_not_parse_gives_nothing(library: Path) -> None:
    assert list(documents_of(library / "broken.py", "broken")) == []


def test_fingerprint_ignores_comments_and_white_space() -> None:
    assert (
        fingerprint("a = 1  # one\n\nb = 2") == fingerprint("a = 1\nb = 2\n") != fingerprint("a = 1\nb = 3\n")
    )


def test_tables_are_repetitive_and_ordinary_code_is_not() -> None:
    assert is_repetitive(
        "def f(self):\n" + "".join(f"    self.assertEqual(f({i}), {i * 7})\n" for i in range(9))
    )
    assert not is_repetitive(Document.__doc__ or "")
