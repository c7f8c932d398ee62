"""Read rows of prompts: local files and URLs by their format, folders and hub data sets with ``datasets``.

Files of text are not read with ``datasets``. It gives a column one type, but a prompt may be a text in one row and a
list of messages in the next. It also turns ``"007"`` of a CSV file into 7, and has no line numbers for errors.
"""

from __future__ import annotations

import difflib
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

from specexp.core.checked import distinct
from specexp.core.messages import did_you_mean, first_line, shown
from specexp.data.prompt_set import PromptSetError

PATH = ("prompts", "init_args", "path")
"""Configuration key of the source."""
FORMATS = (".json", ".jsonl", ".txt", ".parquet", ".csv")
_COMPRESSIONS = (".bz2", ".gz", ".xz", ".zst")
_KNOWN = f"{', '.join(FORMATS)} (or one of them with {', '.join(_COMPRESSIONS)})"


@dataclass(frozen=True)
class Row:
    """One row of a source.

    Attributes:
        where: the source in errors.
        number: position among the rows, from 1.
        values: by column; None where the row has no such field.
        place: position in errors, such as ``line 3``; by default the row number.
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
        if not isinstance(value, list) or not value or not all(map(is_text, value)):
            raise self.error(key, "a list of one or more texts that are not blank", value)
        return value

    def label(self, key: str) -> str:
        """Return the identifier under ``key`` as text; ``datasets`` makes a time of a text that is a date."""
        value = self.values.get(key)
        return str(value) if isinstance(value, int | datetime) else self.text(key)

    def error(self, key: str, expected: str, given: object) -> PromptSetError:
        """Return the error for an unexpected value under ``key``."""
        return self.refusal(f", key {key!r}: expected {expected}, found {shown(given)}.")

    def refusal(self, sentence: str) -> PromptSetError:
        """Return an error; its sentence begins with the position of the row."""
        return PromptSetError(f"{self.where}: {self.place or f'row {self.number}'}{sentence}")


def is_text(value: object) -> bool:
    """Return whether a value is a text that is not blank."""
    return isinstance(value, str) and bool(value.strip())


def read_table(
    path: str, *keys: str, subset: str | None = None, split: str = "train", limit: int | None = None
) -> list[Row]:
    """Read at least one row of a source with the columns ``keys``, at most ``limit``; see :func:`read_rows`."""
    rows = list(islice(read_rows(path, subset=subset, split=split, streaming=limit is not None), limit))
    if not rows:
        raise PromptSetError(f"{path}: the data set is empty; at least one prompt is needed.")
    check_columns(rows, keys)
    return rows


def check_columns(rows: Sequence[Row], keys: Sequence[str]) -> None:
    """Raise PromptSetError if one of ``keys`` is not a column of the first row."""
    present = rows[0].values
    for key in keys:
        if key not in present:
            raise PromptSetError(
                f"{rows[0].where}: no key {key!r} among {', '.join(map(repr, present))}{did_you_mean(key, present)}"
            )


def read_rows(
    path: str, *, subset: str | None = None, split: str = "train", streaming: bool = True
) -> Iterator[Row]:
    """Yield the rows of a source.

    Values of a CSV file are texts. A text file has one text a line, under ``text``; blank lines are skipped.

    Args:
        path: a local file (``.json``, ``.jsonl``, ``.txt``, ``.parquet``, ``.csv``, also compressed), a URL of one
            (``https://`` or ``hf://``), a folder that ``datasets`` saved, one laid out like a hub repository, or the
            name of a hub data set, ``owner/name``, with its subset and split.
        streaming: whether only the needed rows of a hub data set are downloaded; otherwise all are cached.

    Raises:
        PromptSetError: there is no such source, or its content is not in the format of its name.
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
    except Exception as error:  # datasets, pyarrow, pandas, fsspec and the hub client each raise their own
        cause: BaseException = error
        while cause.__cause__ is not None:  # the first error has the reason
            cause = cause.__cause__
        if is_file:
            # pandas: "Error tokenizing data. C error: Expected ..."
            why = first_line(cause).rpartition("error: ")[2].replace(". ", " ")
            raise PromptSetError(f"{path}: cannot be read ({why}).") from error
        raise PromptSetError(
            f"{path}: there is no such file{_near(local)}, and as a hub data set it cannot be read "
            f"({first_line(cause)}). Without network, give a local file as its path.",
            PATH,
        ) from error


def _format_of(path: str, local: Path, is_file: bool) -> str | None:
    """Return the ending of a file's name without compression; None for a folder or the name of a hub data set."""
    if "://" not in path and is_file and local.is_dir():
        return None
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    if suffixes and suffixes[-1] in _COMPRESSIONS:
        suffixes.pop()
    known = suffixes[-1] if suffixes and suffixes[-1] in FORMATS else None
    if is_file and known is None:
        raise PromptSetError(f"{path}: its format is not known; the name has to end in {_KNOWN}.", PATH)
    if not is_file and (known is not None or not re.fullmatch(r"\w[\w.-]*/[\w.-]+", path)):
        allowed = f"a file that ends in {_KNOWN}, its URL, a folder of datasets, and a hub name (owner/name)"
        raise PromptSetError(
            f"{path}: there is no such file{_near(local) or f'; allowed are {allowed}.'}", PATH
        )
    return known


def _file_rows(where: str, path: str, file_format: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the position in errors and the values of each row of a file, or of all files of a URL with ``*``."""
    import fsspec

    compression = "zstd" if path.endswith(".zst") else "infer"  # it infers zstd only if that is installed
    for opened in fsspec.open_files(path, "rb", compression=compression, expand="://" in path):
        with opened as file:
            if file_format == ".parquet":
                from pyarrow.parquet import ParquetFile  # type: ignore[import-untyped]

                for batch in ParquetFile(file).iter_batches():
                    yield from (("", row) for row in batch.to_pylist())
            elif file_format == ".csv":
                import pandas as pd

                # pandas only warns of fields that it drops, such as the end of "Hello, world"
                with warnings.catch_warnings(action="error", category=pd.errors.ParserWarning):
                    table = pd.read_csv(file, dtype=str, keep_default_na=False, index_col=False)
                yield from (("", row) for row in table.to_dict("records"))
            elif file_format == ".txt":
                lines = _lines(where, file)
                yield from ((f"line {number}", {"text": line}) for number, line in lines if line.strip())
            else:
                yield from (("", row) for row in _json_rows(where, _lines(where, file)))


def _lines(where: str, file: Any) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of each line."""
    for number, line in enumerate(file, start=1):
        try:
            text = line.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            byte = f"{error.reason}, byte {error.object[error.start]:#04x}"
            raise PromptSetError(f"{where}: line {number} is not UTF-8 text ({byte}).") from error
        yield number, text.removesuffix("\n").removesuffix("\r")


def _json_rows(where: str, lines: Iterator[tuple[int, str]]) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file: one a line, or one array of objects or texts, or one object as a whole."""
    number, first = next((one for one in lines if one[1].strip()), (1, "[]"))
    try:
        is_lines = isinstance(json.loads(first), dict)
    except ValueError:
        is_lines = False
    texts: Iterator[tuple[int, str]]
    if is_lines:
        texts = chain([(number, first)], (one for one in lines if one[1].strip()))
    else:
        texts = iter([(number, "\n".join([first, *(line for _, line in lines)]))])
    for number, text in texts:
        try:
            value = json.loads(text, object_pairs_hook=distinct)
            json.dumps(value, ensure_ascii=False).encode()  # fails on a lone surrogate, which is not text
        except json.JSONDecodeError as error:
            place = f"line {number + error.lineno - 1} is not JSON ({error.msg} at column {error.colno})"
            raise PromptSetError(f"{where}: {place}.") from error
        if is_lines or not isinstance(value, list):
            rows = [value]
        else:
            rows = [{"text": row} if isinstance(row, str) else row for row in value]
        for row in rows:
            if not isinstance(row, dict):
                raise PromptSetError(
                    f'{where}: line {number} is not an object; write it as an object, as in {{"prompt": "..."}}.'
                )
            yield row


def _open(
    path: str, local: Path, subset: str | None, split: str, streaming: bool
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a folder or a hub data set."""
    import datasets  # takes a second, so a missing source is reported first

    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # its errors are reported here
    if any((local / name).exists() for name in ("state.json", "dataset_dict.json")):
        saved = datasets.load_from_disk(str(local))
        if isinstance(saved, dict) and split not in saved and len(saved) > 1:
            raise PromptSetError(
                f"{path}: it has no split {split!r}; allowed are {', '.join(map(str, saved))}.",
                ("prompts", "init_args", "split"),
            )
        yield from (saved.get(split) or next(iter(saved.values()))) if isinstance(saved, dict) else saved
    else:
        name = str(local.resolve()) if _exists(local) else path
        yield from datasets.load_dataset(path=name, name=subset, split=split, streaming=streaming)


def _exists(path: Path) -> bool:
    with suppress(OSError, ValueError):  # no file can have this name
        return path.exists()
    return False


def _near(path: Path) -> str:
    """Suggest the most similar name in the same folder."""
    names: list[str] = []
    with suppress(OSError, ValueError):
        names = [entry.name for entry in path.parent.iterdir() if entry.name != path.name]
    near = difflib.get_close_matches(path.name, names, n=1, cutoff=0.8)  # a common ending is not enough
    return f"; did you mean {str(path.parent / near[0])!r}?" if near else ""
