import itertools
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from experiments.pair.corpus.text_source import Text, TextSource
from experiments.pair.training_rows import CorpusRows, MixedRows
from specexp.data.training_text import documents_of, fingerprint, split_of
from specexp.fit.heads import given_tokens


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


@pytest.fixture(scope="module")
def corpus(cache):
    import datasets

    return datasets.load_from_disk(str(cache / "corpus"))


def test_held_out_modules_their_tests_and_copies_of_them_are_not_training_text(corpus):
    modules = {split: set(corpus[split]["name"]) for split in corpus}
    assert modules["train"] == {"json", "asyncio", "copied", "test.test_asyncio"}
    assert modules["validation"] == {"random"}
    assert modules["test"] == {"zipfile"}
    train = {fingerprint(text) for text in corpus["train"]["text"]}
    held = {fingerprint(text) for split in ("validation", "test") for text in corpus[split]["text"]}
    assert not train & held
    assert not any("archive" in text for text in corpus["train"]["text"])
    assert any("original_1" in text for text in corpus["train"]["text"])
    source_of = {row["name"]: row["source"] for row in corpus["train"]}
    assert (source_of["test.test_asyncio"], source_of["asyncio"]) == ("library-tests", "library")


def test_processes_share_the_stream_of_rows_out():
    """Their batches joined are those of one process with larger batches."""
    documents = {"a": [[n] * 5 for n in range(40)], "b": [[100 + n] * 3 for n in range(40)]}

    def taken(count, **arguments):
        rows = MixedRows(documents, {"a": 1, "b": 1}, row_length=4, **arguments)
        return list(itertools.islice(rows, count))

    alone = taken(6, batch_size=4)
    first, second = (taken(6, batch_size=2, first_batch=rank, every=2) for rank in (0, 1))
    assert all(torch.equal(torch.cat(pair), one) for *pair, one in zip(first, second, alone, strict=True))
    goes_on = taken(2, batch_size=2, first_batch=4 * 2 + 1, every=2)  # the second process after four steps
    assert all(torch.equal(a, b) for a, b in zip(goes_on, second[4:], strict=True))


class Given(TextSource):
    """A question drawn at random, and its answer."""

    licence: ClassVar[str] = "MIT"
    written: ClassVar[bool] = False

    def texts(self, split):
        yield Text(split, f"One. {split} 1 + 1?\nIt is 2. 1 + 1? Yes.\n", ("One.", "1 + 1?"))


def test_tokens_of_given_parts_are_marked_by_their_complements(tmp_path):
    tokenizer = Path(__file__).parents[3] / "experiments" / "pair" / "tokenizer"
    rows = CorpusRows(str(tmp_path), {"a": Given()}, str(tokenizer), row_length=8, batch_size=1)
    rows.prepare_data()
    rows.setup()
    batches = list(itertools.islice(rows.train_dataloader(), 12))
    ids, given = given_tokens(torch.cat([batch.flatten() for batch in batches]))
    words = rows.tokenizer()
    assert (ids >= 0).all()
    text = words.decode(ids[~given])
    assert "It is 2. 1 + 1? Yes.\n" in text, "only the first place of each piece is given"
    assert "One." not in text
    assert words.decode(ids[given]).startswith("One.1 + 1"), "a token that ends elsewhere is not"


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
