"""Read a table of prompts with ``datasets``: from a local file, a folder, a URL or the Hugging Face hub.

Everything that can go wrong with a source is told here, once, in one sentence that names the source.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from specexp.core.messages import first_line
from specexp.data.prompt_set import PromptSetError

READERS = {".json": "json", ".jsonl": "json", ".txt": "text", ".parquet": "parquet", ".csv": "csv"}
COMPRESSIONS = {".gz", ".bz2", ".xz", ".zst"}


@dataclass(frozen=True)
class Row:
    """One row of a source, which knows where it stands."""

    where: str  # the source
    number: int  # counted from 1
    values: dict[str, Any]

    def text(self, key: str) -> str:
        """The text under ``key``; raises PromptSetError when it is missing, blank or no text."""
        value = self.values.get(key)
        if not isinstance(value, str) or not value.strip():
            raise self.error(key, "a text that is not blank", value)
        return value

    def texts(self, key: str) -> list[str]:
        """The texts under ``key``, at least one; raises PromptSetError when it is anything else."""
        value = self.values.get(key)
        if not isinstance(value, list) or not value:
            raise self.error(key, "a list of one or more texts", value)
        for item in value:
            if not isinstance(item, str) or not item.strip():
                raise self.error(key, "a list of texts that are not blank", value)
        return value

    def label(self, key: str) -> str:
        """The identifier under ``key``, a text or a whole number, as text."""
        value = self.values.get(key)
        return str(value) if isinstance(value, int) else self.text(key)

    def error(self, key: str, expected: str, given: object) -> PromptSetError:
        """What to raise when the value under ``key`` is not what was expected."""
        shown = repr(given)
        if len(shown) > 60:
            shown = shown[:57] + "..."
        return PromptSetError(
            f"{self.where}: row {self.number}, key {key!r}: expected {expected}, found {shown}."
        )


@dataclass(frozen=True)
class SourceTable:
    """Rows as they stand in a source."""

    where: str
    values: list[dict[str, Any]]

    def rows(self, *keys: str) -> Iterator[Row]:
        """The rows, in order.

        Raises:
            PromptSetError: one of ``keys`` is not a column; the message names the nearest one.
        """
        self._require(keys)
        for number, values in enumerate(self.values, start=1):
            yield Row(self.where, number, values)

    def has(self, key: str) -> bool:
        """Whether the source has a column of this name."""
        return key in self._columns()

    def _columns(self) -> list[str]:
        return list(dict.fromkeys(key for values in self.values for key in values))

    def _require(self, keys: Sequence[str]) -> None:
        present = self._columns()
        for key in keys:
            if key not in present:
                near = difflib.get_close_matches(key, present, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else "; is this the right prompt set for it?"
                raise PromptSetError(
                    f"{self.where}: no key {key!r} among {', '.join(map(repr, present))}{hint}"
                )


def read_table(
    path: str, *, subset: str | None = None, split: str = "train", limit: int | None = None
) -> SourceTable:
    """Read a source with ``datasets``.

    Args:
        path: a local file in its original format (``.json``, ``.jsonl``, ``.txt``, ``.parquet``, ``.csv``,
            also compressed), a URL of one (``https://`` or ``hf://``), a local folder laid out like a hub
            repository, or the name of a hub data set, ``owner/name``.
        subset: the subset of a hub data set or folder; a single file has none.
        split: the split of a hub data set or folder; a single file has none.
        limit: how many rows are read, as a stream: of a large set nothing more is downloaded. Without a limit
            ``datasets`` keeps what it downloads in its cache.

    Raises:
        PromptSetError: there is no such source, it is not in the format its name says, or it has no row.

    Example::

        read_table("gsm8k/test.jsonl").has("question")  # True
        read_table("openai/gsm8k", subset="main", split="test")
    """
    import datasets

    arguments = _load_arguments(path, subset, split)
    # A local file needs no second copy in the cache of datasets, which may be on a disk we cannot write to.
    streaming = limit is not None or _is_local(arguments)
    try:
        values = list(islice(datasets.load_dataset(**arguments, streaming=streaming), limit))
    except Exception as error:  # datasets, pyarrow, fsspec and the hub client each raise their own
        advice = "" if _is_local(arguments) else " Without network, give a local file as its path."
        raise PromptSetError(f"{path}: cannot be read ({_reason(error)}).{advice}") from error
    if not values:
        raise PromptSetError(f"{path}: the data set is empty; at least one prompt is needed.")
    return SourceTable(path, values)


def _load_arguments(path: str, subset: str | None, split: str) -> dict[str, Any]:
    """The arguments of ``load_dataset`` for a source, which is not opened yet."""
    reader = _reader(path)
    if "://" in path:
        if reader is None:
            raise PromptSetError(f"{path}: its format is not known; the name has to end in {_formats()}.")
        return {"path": reader, "data_files": path, "split": "train"}
    local = Path(path).expanduser()
    if local.is_dir():
        return {"path": str(local), "name": subset, "split": split}
    if local.is_file():
        if reader is None:
            raise PromptSetError(f"{path}: its format is not known; the name has to end in {_formats()}.")
        if local.stat().st_size == 0:
            raise PromptSetError(f"{path}: the data set is empty; at least one prompt is needed.")
        return {"path": reader, "data_files": str(local), "split": "train"}
    if reader is None and re.fullmatch(r"[\w.-]+/[\w.-]+", path) and not path.startswith("."):
        return {"path": path, "name": subset, "split": split}
    raise PromptSetError(f"{path}: there is no such file, and it is not a hub name (owner/name).")


def _reader(path: str) -> str | None:
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    if suffixes and suffixes[-1] in COMPRESSIONS:
        suffixes.pop()
    return READERS.get(suffixes[-1]) if suffixes else None


def _formats() -> str:
    return ", ".join(READERS) + f" (or one of them with {', '.join(sorted(COMPRESSIONS))})"


def _reason(error: BaseException) -> str:
    """The innermost cause in one line: datasets wraps what pyarrow or the network said."""
    while error.__cause__ is not None:
        error = error.__cause__
    return first_line(error)


def _is_local(arguments: dict[str, Any]) -> bool:
    return Path(arguments.get("data_files", arguments["path"])).exists()
