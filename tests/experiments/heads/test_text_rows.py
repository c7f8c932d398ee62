"""Rows of training text: splits share nothing, and the stream of batches depends on its arguments alone."""

import itertools
import json

import pytest
import torch

from experiments.heads.text_rows import RowStream, TextRows, library_texts, own_texts
from specexp.data.training_text import documents_of, fingerprint, split_of

FUNCTION = """
def {name}_{i}(values, limit={i}):
    \"\"\"Collect what {name} number {i} makes of the values, up to a limit.\"\"\"
    collected = []
    for index, value in enumerate(values):
        if index > limit * {i}:
            break
        collected.append({name}_step(value, index) - {i})
    return collected
"""


def source(name, count=3):
    return "".join(FUNCTION.format(name=name, i=i) for i in range(count))


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """Return the folder of a library: ``json`` and ``copied`` train, ``random`` validates, ``zipfile`` tests."""
    root = tmp_path_factory.mktemp("library")
    (root / "test").mkdir()
    (root / "json.py").write_text(source("decoder"))
    (root / "random.py").write_text(source("chance"))
    (root / "zipfile.py").write_text(source("archive"))
    (root / "test" / "test_zipfile64.py").write_text(source("archivetest"))
    (root / "copied.py").write_text("# a copy of another module\n" + source("archive") + source("original", 2))
    (root / "broken.py").write_text("def broken(:\n")
    return root


@pytest.mark.parametrize(
    ("module", "split"),
    [
        ("json.decoder", "train"),
        ("zipfile._path", "test"),
        ("test.test_zipfile64", "test"),
        ("_random", "validation"),
        ("test.support.random", "validation"),
    ],
)
def test_a_module_and_its_tests_belong_to_one_split(module, split):
    assert split_of(module) == split


def test_held_out_functions_and_copies_of_them_are_not_training_text(library):
    train, held_out = library_texts(library)
    functions = [text for text in train if text.startswith("def")]
    assert {text.partition("(")[0].removeprefix("def ") for text in functions} == {
        *(f"decoder_{i}" for i in range(3)),
        *(f"original_{i}" for i in range(2)),
    }
    assert any("chance_0" in text for text in held_out)
    assert not any("archive" in text for text in held_out)
    assert not {fingerprint(text) for text in train} & {fingerprint(text) for text in held_out}


def test_own_texts_are_split_by_their_content(tmp_path):
    file = tmp_path / "texts.jsonl"
    lines = [f"text number {i}" for i in range(200)]
    file.write_text("".join(json.dumps({"text": line}) + "\n" for line in [*lines, lines[0]]))
    train, held_out = own_texts(str(file))
    assert sorted(train + held_out) == sorted(lines)
    assert 1 <= len(held_out) <= 20


def test_rows_hold_whole_texts_and_the_token_that_ends_them(tmp_path):
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(json.dumps({"text": f"def f{i}(x):\n    return {i}\n"}) + "\n" for i in range(40)))
    rows = TextRows("specexp/models/stdlib/target", str(file), row_length=8, batch_size=2)
    rows.setup()
    batches = list(itertools.islice(rows.train_dataloader(), 20))
    assert {tuple(batch.shape) for batch in batches} == {(2, 8)}
    texts = rows.tokenizer().decode(torch.cat(batches).flatten()).split(rows.tokenizer().eos_token)
    assert len(texts) > 5
    assert all("return" in text for text in texts[:-1])


def test_processes_share_the_stream_of_batches():
    documents = [[n] * 5 for n in range(40)]

    def taken(count, **arguments):
        return list(itertools.islice(RowStream(documents, 2, 4, **arguments), count))

    alone = taken(8)
    first, second = (taken(4, first_batch=rank, every=2) for rank in (0, 1))
    assert all(torch.equal(a, b) for a, b in zip(first, alone[::2], strict=True))
    assert all(torch.equal(a, b) for a, b in zip(second, alone[1::2], strict=True))
    assert all(torch.equal(a, b) for a, b in zip(taken(3, first_batch=5), alone[5:], strict=True))


def test_every_pass_has_an_order_of_its_own():
    order = [int(row[0, 0]) for row in itertools.islice(RowStream([[n] for n in range(9)], 1, 1), 18)]
    assert sorted(order[:9]) == sorted(order[9:]) == list(range(9))
    assert order[:9] != order[9:]


def test_documents_are_dedented_outermost_functions_with_their_decorators(tmp_path):
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


def test_a_file_that_does_not_parse_gives_nothing(library):
    assert list(documents_of(library / "broken.py", "broken")) == []
