"""Read rows of prompts from a local file, a folder, a URL or the Hugging Face hub.

Local text files (JSON, CSV, plain text) are read line by line, everything else with ``datasets``, which guesses types:
it makes a number of the text ``42``.
"""

from __future__ import annotations

import csv
import difflib
import json
import logging
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import chain, islice
from pathlib import Path
from typing import Any

import fsspec

from specexp.core.messages import first_line, shown
from specexp.core.strict_json import distinct
from specexp.data.prompt_set import PromptSetError

PATH = ("prompts", "init_args", "path")
"""Configuration key of the source, for errors about it."""
READERS = {".json": "json", ".jsonl": "json", ".txt": "text", ".parquet": "parquet", ".csv": "csv"}
COMPRESSIONS = {".gz", ".bz2", ".xz", ".zst"}
_SAVED = {"state.json", "dataset_dict.json"}  # what datasets saves; the second has splits
_FORMATS = f"{', '.join(READERS)} (or one of them with {', '.join(sorted(COMPRESSIONS))})"


@dataclass(frozen=True)
class Row:
    """One row of a source.

    Attributes:
        where: The source, as errors name it.
        number: Position in the source, from 1.
        values: Values by column.
        place: Position as errors name it, such as ``line 3``; by default the row number.
    """

    where: str
    number: int
    values: dict[str, Any]
    place: str = ""

    def text(self, key: str) -> str:
        """Return the text under ``key``; raise PromptSetError if it is missing, blank or not a text."""
        value = self.values.get(key)
        if not is_text(value):
            raise self.error(key, "a text that is not blank", value)
        return str(value)

    def texts(self, key: str) -> list[str]:
        """Return the texts under ``key``, at least one; raise PromptSetError if it holds anything else."""
        value = self.values.get(key)
        if not isinstance(value, list) or not value:
            raise self.error(key, "a list of one or more texts", value)
        if not all(map(is_text, value)):
            raise self.error(key, "a list of texts that are not blank", value)
        return value

    def label(self, key: str) -> str:
        """Return the identifier under ``key``, a text or an integer, as text."""
        value = self.values.get(key)
        return str(value) if isinstance(value, int) else self.text(key)

    def error(self, key: str, expected: str, given: object) -> PromptSetError:
        """Return the error for an unexpected value under ``key``."""
        half = isinstance(given, str) and any("\ud800" <= mark <= "\udfff" for mark in given)
        holds = ", which holds half a surrogate pair" if half else ""
        return self.refusal(f", key {key!r}: expected {expected}, found {shown(given)}{holds}.")

    def refusal(self, sentence: str) -> PromptSetError:
        """Return an error whose sentence begins with the position of the row."""
        return PromptSetError(f"{self.where}: {self.place or f'row {self.number}'}{sentence}")


def is_text(value: object) -> bool:
    """Return whether a value is a text that is not blank and can be encoded (JSON can hold half a character)."""
    return isinstance(value, str) and bool(value.strip()) and value == value.encode(errors="ignore").decode()


@dataclass(frozen=True)
class SourceTable:
    """All rows of a source."""

    where: str
    all_rows: Sequence[Row]

    def rows(self, *keys: str) -> Iterator[Row]:
        """Yield the rows in order.

        Raises:
            PromptSetError: one of ``keys`` is not a column; the message suggests the nearest one.
        """
        present = self._columns
        for key in keys:
            if key not in present:
                near = difflib.get_close_matches(key, present, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else "; is this the right prompt set for it?"
                raise PromptSetError(
                    f"{self.where}: no key {key!r} among {', '.join(map(repr, present))}{hint}"
                )
        yield from self.all_rows

    def has(self, key: str) -> bool:
        """Return whether the source has a column."""
        return key in self._columns

    @property
    def _columns(self) -> list[str]:
        return list(dict.fromkeys(key for row in self.all_rows for key in row.values))


def read_table(
    path: str, *, subset: str | None = None, split: str = "train", limit: int | None = None
) -> SourceTable:
    """Read at least one row of a source, at most ``limit``; see :func:`read_rows`.

    Example::

        read_table("gsm8k/test.jsonl").has("question")  # True
        read_table("openai/gsm8k", subset="main", split="test")
    """
    rows = list(islice(read_rows(path, subset=subset, split=split, streaming=limit is not None), limit))
    if not rows:
        raise PromptSetError(f"{path}: the data set is empty; at least one prompt is needed.")
    return SourceTable(path, rows)


def read_rows(
    path: str, *, subset: str | None = None, split: str = "train", streaming: bool = True
) -> Iterator[Row]:
    """Yield the rows of a source; nothing of a local one is read beyond the last row that is taken.

    Args:
        path: a local file (``.json``, ``.jsonl``, ``.txt``, ``.parquet``, ``.csv``, also compressed), a URL of one
            (``https://`` or ``hf://``), a folder that ``datasets`` saved, one laid out like a hub repository, or the
            name of a hub data set, ``owner/name``.
        subset: the subset of a hub data set or folder.
        split: the split of a hub data set or folder.
        streaming: whether no more of a hub data set is downloaded than is taken; otherwise ``datasets`` keeps all of it
            in its cache.

    Raises:
        PromptSetError: there is no such source, or its content is not in the format of its name.
    """
    local = Path(path).expanduser()
    here = "://" not in path and _exists(local)
    if here and local.is_file() and _ending(path) in READERS.keys() - {".parquet"}:
        yield from _text_rows(local, path)
        return
    try:
        saved = here and local.is_dir() and any((local / name).exists() for name in _SAVED)
        arguments = {} if saved else _load_arguments(path, local, subset, split)
        import datasets  # takes a second, so a missing source is reported first

        with _silent(logging.getLogger("datasets")):
            if saved:
                values = _split_of(datasets.load_from_disk(str(local)), path, split)
            else:
                # A local file needs no second copy in a cache, whose disk may not be writable.
                values = datasets.load_dataset(**arguments, streaming=streaming or here)
            for number, row in enumerate(values, start=1):
                yield Row(path, number, row)
    except PromptSetError:
        raise
    except Exception as error:  # datasets, pyarrow, fsspec and the hub client each raise their own
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        if here or "://" in path:
            raise PromptSetError(f"{path}: cannot be read ({first_line(cause)}).") from error
        raise PromptSetError(
            f"{path}: there is no such file{_near(local)}, and as a hub data set it cannot be read "
            f"({first_line(cause)}). Without network, give a local file as its path.",
            PATH,
        ) from error


def _load_arguments(path: str, local: Path, subset: str | None, split: str) -> dict[str, Any]:
    """The arguments of ``load_dataset`` for a source, which is not opened yet."""
    reader, exists = READERS.get(_ending(path)), _exists(local)
    scheme, is_url, _ = path.partition("://")
    if is_url and scheme not in fsspec.available_protocols():
        raise PromptSetError(
            f"{path}: {scheme}:// is not known; allowed are https://, http://, hf:// and file://", PATH
        )
    if is_url or (exists and local.is_file()):
        if reader is None:
            raise PromptSetError(f"{path}: its format is not known; the name has to end in {_FORMATS}.", PATH)
        return {"path": reader, "data_files": path if is_url else str(local), "split": "train"}
    if exists and local.is_dir():
        if (local / "config.json").is_file() and any(local.glob("*.safetensors")):
            raise PromptSetError(f"{path}: the folder holds a model; a file of prompts is expected.", PATH)
        if not any(_ending(entry.name) in READERS for entry in local.rglob("*")):
            raise PromptSetError(
                f"{path}: the folder holds no data set: neither one saved by datasets (state.json) nor a file that "
                f"ends in {_FORMATS}.",
                PATH,
            )
        return {"path": str(local.resolve()), "name": subset, "split": split}
    if reader is None and re.fullmatch(r"\w[\w.-]*/[\w.-]+", path):
        return {"path": path, "name": subset, "split": split}
    what = "is no plain file" if exists else "there is no such file"
    hub = "" if reader is not None else ", and it is not a hub name (owner/name)"
    allowed = f"a file that ends in {_FORMATS}, its URL, a folder of datasets, and a hub name (owner/name)"
    raise PromptSetError(f"{path}: {what}{hub}{_near(local) or f'; allowed are {allowed}.'}", PATH)


def _split_of(saved: Any, path: str, split: str) -> Any:
    """The named split of what ``datasets`` saved, or the only one."""
    if not isinstance(saved, dict):
        return saved
    if split not in saved and len(saved) > 1:
        raise PromptSetError(
            f"{path}: it has no split {split!r}; allowed are {', '.join(map(str, saved))}.",
            ("prompts", "init_args", "split"),
        )
    return saved.get(split) or next(iter(saved.values()))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # no file can have this name
        return False


def _near(path: Path) -> str:
    """A suggestion of the most similar name in the same folder."""
    try:
        names = [entry.name for entry in path.parent.iterdir() if entry.name != path.name]
    except (OSError, ValueError):
        return ""
    near = difflib.get_close_matches(path.name, names, n=1, cutoff=0.8)  # a common ending is not enough
    return f"; did you mean {str(path.parent / near[0])!r}?" if near else ""


def _ending(path: str) -> str:
    """The ending of a file name, without that of its compression."""
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    if suffixes and suffixes[-1] in COMPRESSIONS:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


@contextmanager
def _silent(logger: logging.Logger) -> Iterator[None]:
    """Silence a library whose errors are reported here."""
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


Lines = Iterator[tuple[int, str]]
Placed = Iterator[tuple[str, Any]]
"""Position in the file and value of each row."""


def _text_rows(path: Path, where: str) -> Iterator[Row]:
    """The rows of a local text file, which may be compressed.

    A JSON file holds an array of objects, one object, or one object a line, regardless of its name. A text file holds
    one text a line, under ``text``. Blank lines are skipped.
    """
    if path.suffix.lower() == ".zst" and find_spec("zstandard") is None:  # fsspec would read it undecoded
        needed = "a .zst file is read with the package zstandard, which is not installed"
        raise PromptSetError(f"{where}: {needed}: pip install zstandard, or unpack it with zstd -d.")
    read = {".csv": _csv_rows, ".txt": _plain_rows}.get(_ending(path.name), _json_rows)
    try:
        for number, (place, values) in enumerate(read(_lines(path)), start=1):
            if not isinstance(values, dict):
                names = {list: "a list", str: "a text", bool: "true or false", type(None): "null"}
                raise PromptSetError(
                    f"{place} is no object but {names.get(type(values), 'a number')}; write it as an object, as in "
                    '{"prompt": "..."}.'
                )
            yield Row(where, number, values, place)
    except PromptSetError as error:
        raise PromptSetError(f"{where}: {error}") from error
    except (OSError, EOFError, ValueError, RecursionError, ImportError) as error:
        # of the disk, a broken archive, or an archive whose format needs another package
        raise PromptSetError(f"{where}: cannot be read ({first_line(error)}).") from error


def _lines(path: Path) -> Lines:
    """Numbered lines, decoded one by one, so that an error can name the line."""
    with fsspec.open(str(path), "rb", compression="infer") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise PromptSetError(
                    f"line {number} is not UTF-8 text ({error.reason}, byte {line[error.start]:#04x}); "
                    "save the file as UTF-8."
                ) from error


def _json_rows(lines: Lines) -> Placed:
    filled = ((number, line) for number, line in lines if line.strip())
    first, opening = next(filled, (0, ""))
    if not first:
        return
    if opening.lstrip().startswith("[") or not opening.rstrip().endswith("}"):  # not one object a line
        document = _parsed("".join([opening, *(line for _, line in filled)]), first)
        items = document if isinstance(document, list) else [document]
        yield from ((f"item {number}", item) for number, item in enumerate(items, start=1))
        return
    for number, line in chain([(first, opening)], filled):
        yield f"line {number}", _parsed(line.rstrip(), number)


def _parsed(text: str, first: int) -> Any:
    """A JSON value that begins in line ``first``."""
    try:
        return json.loads(text, object_pairs_hook=distinct)
    except json.JSONDecodeError as error:
        raise PromptSetError(
            f"line {first + error.lineno - 1} is no JSON ({error.msg} at column {error.colno})."
        ) from error
    except ValueError as error:  # a key given twice
        raise PromptSetError(f"line {first} is no JSON ({first_line(error)}).") from error


def _csv_rows(lines: Lines) -> Placed:
    csv.field_size_limit(sys.maxsize)  # a prompt may be long
    reader = csv.DictReader((line for _, line in lines), strict=True)
    try:
        names = list(reader.fieldnames or ())
        twice = next((name for name in names if names.count(name) > 1), None)
        mark = next((one for one in ";\t|" if len(names) == 1 and one in names[0]), None)
        if mark is not None:
            raise PromptSetError(
                f"line 1 separates its columns by {mark!r}; they must be separated by commas."
            )
        if not any(names):
            raise PromptSetError("line 1 names no columns; the first line of a CSV file does.")
        if twice is not None:
            raise PromptSetError(f"line 1 names two columns {twice!r}; give each its own name.")
        for values in reader:
            if None in values or None in values.values():
                raise PromptSetError(
                    f"line {reader.line_num} has {'more' if None in values else 'fewer'} fields than the {len(names)} "
                    "of the first line; a text with a comma or a line break stands in double quotes."
                )
            yield f"line {reader.line_num}", dict(values)
    except csv.Error as error:
        raise PromptSetError(f"line {reader.reader.line_num} is no CSV ({first_line(error)}).") from error


def _plain_rows(lines: Lines) -> Placed:
    return ((f"line {number}", {"text": line.rstrip("\r\n")}) for number, line in lines if line.strip())
