"""Reads rows of prompts from local files and URLs and, with ``datasets``, from folders and hub data sets.

Single files are not read with ``datasets``, for three reasons. It assigns one type to each column, but a prompt may be
a text in one row and a list of messages in the next. It turns ``"007"`` in a CSV file into 7. Its errors do not contain
line numbers.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, islice
from pathlib import Path
from typing import Any

from specexp.base.checked import distinct
from specexp.base.messages import did_you_mean, first_line, near_file, shown
from specexp.data.prompt_set import PromptSetError, UnusableRow

PATH = ("prompts", "init_args", "path")
"""The configuration key of the source's path, named in errors."""
FORMATS = (".json", ".jsonl", ".txt", ".parquet", ".csv")
_COMPRESSIONS = (".bz2", ".gz", ".xz", ".zst")
_KNOWN = f"{', '.join(FORMATS)} (or one of them with {', '.join(_COMPRESSIONS)})"


@dataclass(frozen=True)
class Row:
    """A row of a source."""

    where: str  # name of the source in error messages
    number: int  # position among the rows, from 1
    values: dict[str, Any]  # values, keyed by column; missing fields may be None
    place: str = ""  # position in error messages, such as ``line 3``; defaults to the row number

    def text(self, key: str) -> str:
        """Return the text in column ``key``. Raises PromptSetError if it is missing, blank or not a string."""
        value = self.values.get(key)
        if not is_text(value):
            raise self.error(key, "a text that is not blank", value)
        return str(value)

    def texts(self, key: str) -> list[str]:
        """Return the texts in column ``key``. Raises PromptSetError unless it is a list of one or more texts."""
        value = self.values.get(key)
        if not isinstance(value, list) or not value or not all(map(is_text, value)):
            raise self.error(key, "a list of one or more texts that are not blank", value)
        return value

    def label(self, key: str) -> str:
        """Return the id in column ``key`` as text."""
        # datasets converts texts that look like dates to datetime
        value = self.values.get(key)
        return str(value) if isinstance(value, int | datetime) else self.text(key)

    def error(self, key: str, expected: str, given: object) -> UnusableRow:
        """Return the error for an invalid value in column ``key``."""
        return self.refusal(f", key {key!r}: must be {expected}, got {shown(given)}")

    def refusal(self, sentence: str) -> UnusableRow:
        """Return an error with the row's position, followed by ``sentence``, as its message."""
        return UnusableRow(self.where, self.place or f"row {self.number}", sentence)


def is_text(value: object) -> bool:
    """Return whether a value is a string that is not blank."""
    return isinstance(value, str) and bool(value.strip())


def read_table(
    path: str, *keys: str, subset: str | None = None, split: str = "train", limit: int | None = None
) -> list[Row]:
    """Read up to ``limit`` rows of a source (see :func:`read_rows`).

    Raises PromptSetError if the source has no rows, or lacks one of the columns ``keys``.
    """
    rows = list(islice(read_rows(path, subset=subset, split=split, streaming=limit is not None), limit))
    if not rows:
        raise PromptSetError(f"{path}: the data set is empty; it must hold at least one prompt")
    check_columns(rows, keys)
    return rows


def check_columns(rows: Sequence[Row], keys: Sequence[str]) -> None:
    """Raise PromptSetError unless the first row has all of the columns ``keys``."""
    present = rows[0].values
    for key in keys:
        if key not in present:
            raise PromptSetError(
                f"{rows[0].where}: must have a column {key!r}, got {', '.join(map(repr, present))}"
                f"{did_you_mean(key, present)}"
            )


def read_rows(path: str, *, subset: str | None = None, split: str = "train", streaming: bool = True) -> Iterator[Row]:
    """Yield the rows of a source.

    ``path`` is a local file (``.json``, ``.jsonl``, ``.txt``, ``.parquet`` or ``.csv``, optionally compressed) or the
    URL of one (``https://`` or ``hf://``). It may also be a folder saved by ``datasets`` or laid out like a hub
    repository, or the name of a hub data set, ``owner/name``, with its subset and split. All CSV values are read as
    strings. A ``.txt`` file has one text per line, in the column ``text``; blank lines are skipped. ``streaming``
    downloads only the needed rows of a hub data set. Raises PromptSetError if the source does not exist or its content
    does not match its name.
    """
    local = Path(path).expanduser()
    is_file = "://" in path or _exists(local)
    file_format = _format_of(path, local, is_file)
    if file_format is not None:
        rows = _file_rows(path, path if "://" in path else str(local), file_format)
    else:
        rows = (("", row) for row in _open(path, local, subset, split, streaming or is_file))
    try:
        for number, (place, values) in enumerate(rows, start=1):
            yield Row(path, number, values, place)
    except PromptSetError:
        raise
    except Exception as error:  # datasets, pyarrow, pandas, fsspec and the hub client raise various errors
        cause: BaseException = error
        while cause.__cause__ is not None:  # the original error has the most specific message
            cause = cause.__cause__
        if is_file:
            # shorten pandas' "Error tokenizing data. C error: Expected ..."
            why = first_line(cause).rpartition("error: ")[2].replace(". ", " ")
            raise PromptSetError(f"{path}: cannot be read ({why})") from error
        raise PromptSetError(
            f"{path}: no such file{near_file(local)}, and no hub data set of this name can be read "
            f"({first_line(cause)}); without network access, set path to a local file",
            PATH,
        ) from error


def _format_of(path: str, local: Path, is_file: bool) -> str | None:
    """Return the file's extension without any compression suffix, or None for a folder or a hub data set's name."""
    if "://" not in path and is_file and local.is_dir():
        return None
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    if suffixes and suffixes[-1] in _COMPRESSIONS:
        suffixes.pop()
    known = suffixes[-1] if suffixes and suffixes[-1] in FORMATS else None
    if is_file and known is None:
        raise PromptSetError(f"{path}: the file name must end in {_KNOWN}", PATH)
    if not is_file and (known is not None or not re.fullmatch(r"\w[\w.-]*/[\w.-]+", path)):
        allowed = f"a file ({_KNOWN}), its URL, a folder that datasets saved, or a hub name (owner/name)"
        raise PromptSetError(f"{path}: no such file{near_file(local) or f'; path must be {allowed}.'}", PATH)
    return known


def _file_rows(where: str, path: str, file_format: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each row's position (for errors) and values, from one file or from all files that match a URL's ``*``."""
    import fsspec

    # fsspec infers zstd only if zstandard is installed
    compression = "zstd" if path.endswith(".zst") else "infer"
    for opened in fsspec.open_files(path, "rb", compression=compression, expand="://" in path):
        with opened as file:
            if file_format == ".parquet":
                from pyarrow.parquet import ParquetFile  # type: ignore[import-untyped]

                for batch in ParquetFile(file).iter_batches():
                    yield from (("", row) for row in batch.to_pylist())
            elif file_format == ".csv":
                import pandas as pd

                # pandas drops surplus fields, such as the end of an unquoted "Hello, world", with only a warning
                with warnings.catch_warnings(action="error", category=pd.errors.ParserWarning):
                    table = pd.read_csv(file, dtype=str, keep_default_na=False, index_col=False)
                yield from (("", row) for row in table.to_dict("records"))
            elif file_format == ".txt":
                for number, line in _lines(where, file):
                    if number == 1:
                        _check_text(where, line)
                    if line.strip():
                        yield f"line {number}", {"text": line}
            else:
                yield from (("", row) for row in _json_rows(where, _lines(where, file)))


def _check_text(where: str, line: str) -> None:
    """Raise PromptSetError if a line of a ``.txt`` file is a JSON object, as the lines of ``.jsonl`` are."""
    value = None
    with suppress(ValueError):
        value = json.loads(line)
    if isinstance(value, dict):
        why = f"must be a text in a .txt file, got a JSON object ({shown(value)})"
        raise PromptSetError(f"{where}: line 1 {why}; rename the file to .jsonl", PATH)


def _lines(where: str, file: Any) -> Iterator[tuple[int, str]]:
    """Yield each line's number, counted from 1, and its text without the line break."""
    for number, line in enumerate(file, start=1):
        try:
            text = line.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            byte = f"{error.reason}, byte {error.object[error.start]:#04x}"
            raise PromptSetError(f"{where}: line {number} must be UTF-8 text ({byte})") from error
        yield number, text.removesuffix("\n").removesuffix("\r")


def _json_rows(where: str, lines: Iterator[tuple[int, str]]) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSON file: one object per line, an array of objects or texts, or a single object."""
    start, first = next((one for one in lines if one[1].strip()), (1, "[]"))
    value: Any = ...  # not JSON
    with suppress(ValueError):
        value = json.loads(first)
    is_lines = isinstance(value, dict)
    if not is_lines:
        rest = list(lines)
        is_lines = value is not ... and any(line.strip() for _, line in rest)
        lines = iter(rest if is_lines else ())
        first = first if is_lines else "\n".join([first, *(line for _, line in rest)])
    for number, text in chain([(start, first)], (one for one in lines if one[1].strip())):
        try:
            value = json.loads(text, object_pairs_hook=distinct)
            json.dumps(value, ensure_ascii=False).encode()  # raises for lone surrogates, which are not text
        except json.JSONDecodeError as error:
            what = f"{error.msg.removesuffix(' at')} at column {error.colno}"
            place = f"line {number + error.lineno - 1} is not JSON ({what})"
            raise PromptSetError(f"{where}: {place}") from error
        except ValueError as error:  # a key twice, or a lone surrogate
            raise PromptSetError(f"{where}: line {number} cannot be read ({first_line(error)})") from error
        if is_lines or not isinstance(value, list):
            rows = [value]
        else:
            rows = [{"text": row} if isinstance(row, str) else row for row in value]
        for row in rows:
            if not isinstance(row, dict):
                why = f'must be a JSON object, such as {{"prompt": "..."}}, got {shown(row)}'
                raise PromptSetError(f"{where}: line {number} {why}")
            yield row


def _open(path: str, local: Path, subset: str | None, split: str, streaming: bool) -> Iterator[dict[str, Any]]:
    """Yield the rows of a folder or a hub data set."""
    import datasets  # takes a second, so a missing source is reported first

    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # read_rows reports its errors
    if any((local / name).exists() for name in ("state.json", "dataset_dict.json")):
        saved = datasets.load_from_disk(str(local))
        if isinstance(saved, dict) and split not in saved and len(saved) > 1:
            raise PromptSetError(
                f"{path}: split must be one of {', '.join(map(str, saved))}, got {split!r}",
                ("prompts", "init_args", "split"),
            )
        yield from (saved.get(split) or next(iter(saved.values()))) if isinstance(saved, dict) else saved
    else:
        name = str(local.resolve()) if _exists(local) else path
        yield from datasets.load_dataset(path=name, name=subset, split=split, streaming=streaming)


def _exists(path: Path) -> bool:
    with suppress(OSError, ValueError):  # raised if no file can have this name
        return path.exists()
    return False
