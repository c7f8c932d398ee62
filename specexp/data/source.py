"""Read rows of prompts with ``datasets``: from a file, a folder, a URL or the Hugging Face hub."""

from __future__ import annotations

import difflib
import json
import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

from specexp.core.messages import did_you_mean, first_line, shown
from specexp.data.prompt_set import PromptSetError

PATH = ("prompts", "init_args", "path")
"""Configuration key of the source."""
FORMATS = {".json": "json", ".jsonl": "json", ".txt": "text", ".parquet": "parquet", ".csv": "csv"}
_COMPRESSIONS = (".bz2", ".gz", ".xz", ".zst")
_KNOWN = f"{', '.join(FORMATS)} (or one of them with {', '.join(_COMPRESSIONS)})"


@dataclass(frozen=True)
class Row:
    """One row of a source.

    Attributes:
        where: The source, as errors name it.
        number: Position among the rows, from 1.
        values: Values by column; None where the row has no such field.
        place: Position in errors, such as ``line 3``; by default the row number.
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
        """Return an error whose sentence begins with the position of the row."""
        return PromptSetError(f"{self.where}: {self.place or f'row {self.number}'}{sentence}")


def is_text(value: object) -> bool:
    """Return whether a value is a text that is not blank."""
    return isinstance(value, str) and bool(value.strip())


def read_table(
    path: str, *keys: str, subset: str | None = None, split: str = "train", limit: int | None = None
) -> list[Row]:
    """Read at least one row of a source with the columns ``keys``, at most ``limit``; see :func:`read_rows`.

    Example::

        read_table("gsm8k/test.jsonl", "question")[0].text("question")
        read_table("openai/gsm8k", subset="main", split="test")
    """
    rows = list(islice(read_rows(path, subset=subset, split=split, streaming=limit is not None), limit))
    if not rows:
        raise PromptSetError(f"{path}: the data set is empty; at least one prompt is needed.")
    check_columns(rows, keys)
    return rows


def check_columns(rows: Sequence[Row], keys: Sequence[str]) -> None:
    """Raise PromptSetError if one of ``keys`` is not a column. All rows have the columns of the first."""
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
        path: A local file (``.json``, ``.jsonl``, ``.txt``, ``.parquet``, ``.csv``, also compressed), a URL of one
            (``https://`` or ``hf://``), a folder that ``datasets`` saved, one laid out like a hub repository, or the
            name of a hub data set, ``owner/name``.
        subset: The subset of a hub data set or folder.
        split: The split of a hub data set or folder.
        streaming: Whether no more of a hub data set is downloaded than is taken; otherwise ``datasets`` keeps all of it
            in its cache.

    Raises:
        PromptSetError: There is no such source, or its content is not in the format of its name.
    """
    local = Path(path).expanduser()
    is_local = "://" not in path and _exists(local)
    source_format = _format_of(path, local, is_local)
    number = 0
    try:
        with _silent(logging.getLogger("datasets")):
            # A local file needs no second copy in a cache, whose disk may not be writable.
            table = _open(path, local, source_format, subset, split, streaming or is_local)
            for line, values in enumerate(table, start=1):
                if source_format != "text" or values["text"].strip():
                    number += 1
                    yield Row(path, number, values, f"line {line}" if source_format == "text" else "")
    except PromptSetError:
        raise
    except Exception as error:  # datasets, pyarrow, pandas, fsspec and the hub client each raise their own
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        if isinstance(cause, StopIteration):  # how datasets ends on a file without a row
            return
        if is_local or "://" in path:
            mistake = _first_mistake(local, source_format) if is_local and source_format is not None else ""
            # pandas: "Error tokenizing data. C error: Expected ..."; pyarrow: "JSON parse error: Column ... in row 0"
            why = first_line(cause).rpartition("error: ")[2].replace(". ", " ")
            raise PromptSetError(f"{path}: {mistake or f'cannot be read ({why})'}.") from error
        raise PromptSetError(
            f"{path}: there is no such file{_near(local)}, and as a hub data set it cannot be read "
            f"({first_line(cause)}). Without network, give a local file as its path.",
            PATH,
        ) from error


def _format_of(path: str, local: Path, is_local: bool) -> str | None:
    """Return the format of a file by its ending; None for a folder or the name of a hub data set."""
    if is_local and local.is_dir():
        return None
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    if suffixes and suffixes[-1] in _COMPRESSIONS:
        suffixes.pop()
    known = FORMATS.get(suffixes[-1]) if suffixes else None
    if is_local or "://" in path:
        if known is None:
            raise PromptSetError(f"{path}: its format is not known; the name has to end in {_KNOWN}.", PATH)
        return known
    if known is not None or not re.fullmatch(r"\w[\w.-]*/[\w.-]+", path):
        allowed = f"a file that ends in {_KNOWN}, its URL, a folder of datasets, and a hub name (owner/name)"
        raise PromptSetError(
            f"{path}: there is no such file{_near(local) or f'; allowed are {allowed}.'}", PATH
        )
    return None


def _open(
    path: str, local: Path, source_format: str | None, subset: str | None, split: str, streaming: bool
) -> Any:
    import datasets  # takes a second, so a missing source is reported first

    if source_format is None:
        if any((local / name).exists() for name in ("state.json", "dataset_dict.json")):
            return _split_of(datasets.load_from_disk(str(local)), path, split)
        name = str(local.resolve()) if _exists(local) else path
        return datasets.load_dataset(path=name, name=subset, split=split, streaming=streaming)
    file = path if "://" in path else str(local)
    arguments: dict[str, Any] = {"data_files": file, "split": "train", "streaming": streaming}
    if source_format == "text":
        arguments["encoding"] = "utf-8-sig"
    if source_format == "json":
        # datasets infers columns from the first chunk and fails if a later one has others.
        arguments |= {"chunksize": 1 << 28, "parse_agent_traces": False}
    if source_format != "csv":
        return datasets.load_dataset(source_format, **arguments)
    import pandas as pd

    # Without declared features pandas would make a number of the text 007.
    columns = pd.read_csv(file, nrows=0, index_col=False).columns
    features = datasets.Features(dict.fromkeys(columns, datasets.Value("string")))
    table = datasets.load_dataset(
        "csv", features=features, keep_default_na=False, index_col=False, **arguments
    )
    with warnings.catch_warnings(action="error", category=pd.errors.ParserWarning):
        return list(table)  # pandas only warns of fields that it drops, such as the end of "Hello, world"


def _split_of(saved: Any, path: str, split: str) -> Any:
    """Return the named split of a data set that ``datasets`` saved, or the only one."""
    if not isinstance(saved, dict):
        return saved
    if split not in saved and len(saved) > 1:
        raise PromptSetError(
            f"{path}: it has no split {split!r}; allowed are {', '.join(map(str, saved))}.",
            ("prompts", "init_args", "split"),
        )
    return saved.get(split) or next(iter(saved.values()))


def _first_mistake(path: Path, source_format: str) -> str:
    """Return the first mistake of a file and its line; empty if it encoding and JSON are right."""
    import fsspec

    number = 1
    try:
        with fsspec.open(str(path), "rb", compression="infer") as file:
            content: bytes = b"" if path.suffix == ".zst" or source_format == "parquet" else file.read()
        is_array = source_format == "json" and content.startswith(b"[")
        for number, line in enumerate([content] if is_array else content.splitlines(), start=1):
            text = line.decode("utf-8-sig")
            is_row = source_format != "json" or not text.strip() or isinstance(json.loads(text), dict)
            if not is_row and not is_array:
                return f'line {number} is not an object; write it as an object, as in {{"prompt": "..."}}'
    except UnicodeDecodeError as error:
        return f"line {number} is not UTF-8 text ({error.reason}, byte {error.object[error.start]:#04x})"
    except json.JSONDecodeError as error:
        return f"line {number + error.lineno - 1} is not JSON ({error.msg} at column {error.colno})"
    except (OSError, EOFError, RecursionError):
        pass
    return ""


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # no file can have this name
        return False


def _near(path: Path) -> str:
    """Suggest the most similar name in the same folder."""
    try:
        names = [entry.name for entry in path.parent.iterdir() if entry.name != path.name]
    except (OSError, ValueError):
        return ""
    near = difflib.get_close_matches(path.name, names, n=1, cutoff=0.8)  # a common ending is not enough
    return f"; did you mean {str(path.parent / near[0])!r}?" if near else ""


@contextmanager
def _silent(logger: logging.Logger) -> Iterator[None]:
    """Silence a library whose errors are reported here."""
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)
