"""Rows of local text files: JSON, JSON lines, CSV and plain text, each row with the line it stands in.

``datasets`` reads everything else. It is not asked here because it names no line, guesses types (``007`` becomes 7) and
refuses columns of two types, such as the contents of chat messages.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import fsspec

from specexp.core.messages import first_line
from specexp.core.strict_json import distinct
from specexp.data.prompt_set import PromptSetError
from specexp.data.row import Row

JSON_ENDINGS = (".json", ".jsonl")
TEXT_ENDINGS = (*JSON_ENDINGS, ".csv", ".txt")
"""Endings of the files that are read here, the ending of a compression left out."""


def text_rows(path: Path, where: str, ending: str) -> Iterator[Row]:
    """The rows of a local file, in order; nothing is read beyond the last one that is taken.

    A JSON file holds an array of objects, one object, or one object a line, whatever its name says; a text file one
    text a line, under ``text``; blank lines are passed over.

    Args:
        path: the file, which may be compressed.
        where: what errors call it.
        ending: one of :data:`TEXT_ENDINGS`.

    Raises:
        PromptSetError: the file cannot be read, or a line is not what it should be.
    """
    if path.suffix.lower() == ".zst" and find_spec("zstandard") is None:  # fsspec would read it as it is
        needed = "a .zst file is read with the package zstandard, which is not installed"
        raise PromptSetError(f"{where}: {needed}: pip install zstandard, or unpack it with zstd -d.")
    readers = {".csv": _csv_rows, ".txt": _text_rows}
    try:
        yield from readers.get(ending, _json_rows)(_lines(path, where), where)
    except PromptSetError:
        raise
    except (OSError, EOFError, ValueError, csv.Error, RecursionError, ImportError) as error:
        # of the disk, a broken archive, or an archive whose format needs another package
        raise PromptSetError(f"{where}: cannot be read ({first_line(error)}).") from error


def _lines(path: Path, where: str) -> Iterator[tuple[int, str]]:
    """Numbered lines, decoded one by one, so that an error can name the line."""
    with fsspec.open(str(path), "rb", compression="infer") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise PromptSetError(
                    f"{where}: line {number} is not UTF-8 text ({error.reason}, byte {line[error.start]:#04x}); "
                    "save the file as UTF-8.",
                ) from error


def _json_rows(lines: Iterator[tuple[int, str]], where: str) -> Iterator[Row]:
    filled = (one for one in lines if one[1].strip())
    start, opening = next(filled, (0, ""))
    if not start:
        return
    try:
        whole = not isinstance(json.loads(opening, object_pairs_hook=distinct), dict)
    except ValueError:  # a document over several lines, or a broken line
        whole = opening.lstrip()[0] in "[{" and opening.strip()[-1] != "}"
    if whole:
        yield from _document_rows([opening, *(line for _, line in filled)], start, where)
        return
    for count, (number, line) in enumerate(chain([(start, opening)], filled), start=1):
        place = f"line {number}"
        try:
            yield _object_row(json.loads(line, object_pairs_hook=distinct), where, count, place)
        except PromptSetError:
            raise
        except ValueError as error:
            why = first_line(error)
            if isinstance(error, json.JSONDecodeError):
                why = f"{error.msg} at column {error.colno}"
            raise PromptSetError(f"{where}: {place} is no JSON ({why}).") from error


def _document_rows(lines: list[str], first: int, where: str) -> Iterator[Row]:
    """Rows of one document: an array, or a single object."""
    try:
        document = json.loads("".join(lines), object_pairs_hook=distinct)
    except json.JSONDecodeError as error:
        raise PromptSetError(
            f"{where}: line {first + error.lineno - 1} is no JSON ({error.msg}); an array of objects, or one object "
            "a line, is read."
        ) from error
    except ValueError as error:  # a key given twice
        raise PromptSetError(f"{where}: {first_line(error)}.") from error
    if not isinstance(document, list):
        yield _object_row(document, where, 1, "line 1")
        return
    for number, item in enumerate(document, start=1):
        yield _object_row(item, where, number, f"item {number}")


def _object_row(value: Any, where: str, number: int, place: str) -> Row:
    if not isinstance(value, dict):
        raise PromptSetError(
            f'{where}: {place} is no object but {_name(value)}; write it as an object, as in {{"prompt": "..."}}.',
        )
    return Row(where, number, value, place)


def _name(value: Any) -> str:
    names = {list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def _csv_rows(lines: Iterator[tuple[int, str]], where: str) -> Iterator[Row]:
    csv.field_size_limit(sys.maxsize)  # a prompt may be long
    reader = csv.DictReader((line for _, line in lines), strict=True)
    try:
        names = list(reader.fieldnames or ())
        twice = next((name for name in names if names.count(name) > 1), None)
        if len(names) == 1 and (mark := next((one for one in ";\t|" if one in names[0]), None)):
            raise PromptSetError(
                f"{where}: line {reader.line_num} separates its columns by {mark!r}; a CSV file is read whose columns "
                "are separated by commas."
            )
        if not any(names):
            raise PromptSetError(f"{where}: line 1 names no columns; the first line of a CSV file does.")
        if twice is not None:
            raise PromptSetError(
                f"{where}: line {reader.line_num} names two columns {twice!r}; give each its own name."
            )
        for number, values in enumerate(reader, start=1):
            if None in values or None in values.values():
                known = len(reader.fieldnames or ())
                found = f"{'more' if None in values else 'fewer'} fields than the {known} of the first line"
                raise PromptSetError(
                    f"{where}: line {reader.line_num} has {found}; a text with a comma or a line break stands in "
                    "double quotes.",
                )
            yield Row(where, number, dict(values), f"line {reader.line_num}")
    except csv.Error as error:
        raise PromptSetError(
            f"{where}: line {reader.reader.line_num} is no CSV ({first_line(error)})."
        ) from error


def _text_rows(lines: Iterator[tuple[int, str]], where: str) -> Iterator[Row]:
    filled = ((number, line.rstrip("\r\n")) for number, line in lines if line.strip())
    for count, (number, line) in enumerate(filled, start=1):
        yield Row(where, count, {"text": line}, f"line {number}")
